"""Writes ended calls to files.

Takes calls, from any thread, into a queue with a bound in bytes. One background thread writes them
to tape files, which have manifests, groups of records, and ends.
"""
