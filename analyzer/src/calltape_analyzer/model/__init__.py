"""The user's model: called like the recorded method, and afterwards as it was before.

Takes a module and arguments; returns what it returns, and what a call changed in it.
"""
