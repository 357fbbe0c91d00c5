"""From calls to the bytes of a new, sealed tape.

In come recorded calls, or records with the values of their tensors. Out goes one file, which has
its name only when it is complete.
"""
