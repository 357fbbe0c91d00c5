"""From a tape to one that can be given away.

Takes a tape, and what of it is to stay; returns a new tape, of which each byte was checked to be of
a fact that may stay; or an account of what is private.
"""
