"""What was seen in the calls, as data that adds up over tapes.

Takes calls, and the tables of counted inputs; returns groups of calls of one layout, with the size
of every dimension (columns) in every distinct call (rows).
"""
