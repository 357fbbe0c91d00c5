"""Nested values: described, flattened, rebuilt and printed.

In come Python objects, or the nodes of a spec with their leaves and scalars. Out go descriptions,
flat leaves, rebuilt objects and text. Every rule about classes and about caches is here.
"""
