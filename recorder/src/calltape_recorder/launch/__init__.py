"""Records a server without a change to its code.

A command line or ``CALLTAPE`` with a target's name comes in. In each Python process that has the
target, a :class:`~calltape_recorder.Recorder` that is attached to it goes out.
"""
