"""Records a server without a change to its code.

Takes a command line or ``CALLTAPE`` with the name of a target. In each Python process that has the
target, attaches a :class:`~calltape_recorder.Recorder` to it.
"""
