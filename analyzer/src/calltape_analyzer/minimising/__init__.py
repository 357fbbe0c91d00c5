"""Tapes that are as small as a failure allows.

In come a tape and something that fails with it. Out goes a sealed tape that fails for the same
reason: fewer calls, fewer and smaller arguments, simpler values.
"""
