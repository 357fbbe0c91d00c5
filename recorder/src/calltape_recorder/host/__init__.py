"""Sees the calls of the application's object, and notifies a listener.

Takes the object; a :class:`~.listener.Listener` is notified of the begin and the end of each of its
calls. Nothing here copies, keeps or writes anything.
"""
