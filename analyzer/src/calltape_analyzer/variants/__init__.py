"""The programs that can serve the calls.

Takes observations; returns variants: the calls that one program can serve, with its dynamic
dimensions, their symbols and their names.
"""
