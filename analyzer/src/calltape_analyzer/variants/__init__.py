"""The programs that can serve the calls.

In come observations. Out go variants: the calls that one program can serve, with its dynamic
dimensions, their symbols and their names.
"""
