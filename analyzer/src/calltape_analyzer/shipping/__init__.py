"""Sealed tape files to an object store, and to any other file system behind a URL.

In come a directory that recorders write to, and a URL. Each file that is complete is copied, and
compared with its copy; out goes a report. The recorder itself stays without a network.
"""
