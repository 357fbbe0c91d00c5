"""Nested values: described, flattened, rebuilt and printed.

Takes Python objects, or the nodes of a spec with their leaves and scalars; returns descriptions,
flat leaves, rebuilt objects and text. Every rule about classes and about caches is here.
"""
