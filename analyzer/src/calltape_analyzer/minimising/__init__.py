"""Tapes that are as small as a failure allows.

Takes a tape and something that fails with it; returns a sealed tape that fails for the same reason:
fewer calls, fewer and smaller arguments, simpler values.
"""
