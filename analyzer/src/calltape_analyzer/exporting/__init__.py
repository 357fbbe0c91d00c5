"""From a model and a tape to verified programs.

In come a tape and the user's model. Out go programs, each compared with the recorded calls, and
what was tried for variants that have no program.
"""
