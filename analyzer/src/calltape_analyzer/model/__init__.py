"""The user's model: called like the recorded method, and afterwards as it was before.

In come a module and arguments. Out go what it returns, and what a call changed in it.
"""
