"""From a tape to one that can be given away.

In comes a tape, and what of it is to stay. Out goes a new tape, of which it was proven that the
analysis says the same and that what was removed is gone; or an account of what is private.
"""
