"""Which calls are kept, and the accounts of all calls, kept or not.

Takes what is known of a call before it is copied; returns a yes or a no, the counts that stand in
the end of a tape, and the statistics of a recorder.
"""
