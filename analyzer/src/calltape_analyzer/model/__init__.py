"""The user's model: called like the recorded method, and afterwards as it was before.

Takes a module and arguments; returns the outputs of the module, and what the call changed in it.
"""
