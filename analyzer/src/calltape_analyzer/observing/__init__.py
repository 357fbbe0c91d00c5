"""What was seen in the calls, as data that adds up over tapes.

In come calls, and the tables of counted inputs. Out go groups of calls of one layout, with the
size of every dimension (columns) in every distinct call (rows).
"""
