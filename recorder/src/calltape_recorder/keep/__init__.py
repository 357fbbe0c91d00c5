"""Decides which calls are kept, and counts all calls, kept or not.

Takes what is known of a call before it is copied; returns whether it is kept, the counts in the end
of a tape, and the statistics of a recorder.
"""
