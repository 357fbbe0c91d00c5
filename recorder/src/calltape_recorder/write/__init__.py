"""Writes ended calls to files.

Takes calls, from any thread, into a queue with a bound in bytes; returns tape files with manifests,
groups of records and ends, which one background thread writes.
"""
