"""The ``calltape`` command: what is on a tape, and what follows from it.

Takes words of a command line; prints, and ends with an exit code.
"""
