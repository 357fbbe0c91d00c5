"""Sees the calls of the application's object, and tells a listener of them.

The application's object and its calls come in. A :class:`~.listener.Listener` is told of the begin
and the end of each call. Nothing here copies, keeps or writes anything.
"""
