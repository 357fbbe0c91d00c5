"""Arguments for a variant: recorded ones, the same with other sizes, and their shapes.

Takes a variant and a recorded or a live call; returns the values with which a program is traced,
probed and run, and the way in which they are passed.
"""
