"""Writes ended calls to files.

In come calls, from any thread, into a queue with a bound in bytes. Out go tape files with
manifests, groups of records and ends, which one background thread writes.
"""
