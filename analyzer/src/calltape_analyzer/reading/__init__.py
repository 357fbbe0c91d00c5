"""From the bytes of tape files to calls.

In come paths of files that anybody may have written. Out go segments, calls that read their values
when they are asked for, and the damage that was found.
"""
