"""Writes ended calls to files.

Takes calls from any thread into a queue that is bounded in bytes. One background thread writes them
to tape files, with manifests, groups of records, and ends.
"""
