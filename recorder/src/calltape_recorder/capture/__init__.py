"""Describes what is in a call: its structure, tensors and scalars, without their bytes.

The arguments or the result of a call come in. Tokens go out, which are equal for equal structures,
and for each structure a document for the tape, in which omitted values are already left out.
"""
