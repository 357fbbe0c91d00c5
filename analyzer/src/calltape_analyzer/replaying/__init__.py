"""Recorded calls through something that was exported.

Takes a tape and a model, a program or a file; returns a report: which calls it reproduces (replay),
or which calls it would accept (check, which runs nothing).
"""
