"""Describes what is in a call: its structure, tensors and scalars, without their bytes.

Takes the arguments or the result of a call; returns tokens, which are equal for equal structures,
and for each structure a document for the tape, without omitted values.
"""
