"""From the bytes of tape files to calls.

Takes paths of files that anybody may have written; returns segments, calls that read their values
when they are asked for, and the damage that was found.
"""
