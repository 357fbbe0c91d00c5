"""Recorded calls through something that was exported.

In come a tape and a model, a program or a file. Out goes a report: which calls it reproduces
(replay), or which calls it would accept (check, which runs nothing).
"""
