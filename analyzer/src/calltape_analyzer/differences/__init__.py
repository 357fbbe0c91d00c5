"""What the traffic on one tape shows that another's does not.

In come two tapes. Out go changes, each with the calls that show it.
"""
