"""From a model and a tape to verified programs.

Takes a tape and the user's model; returns programs, each compared with the recorded calls, and what
was tried for variants that have no program.
"""
