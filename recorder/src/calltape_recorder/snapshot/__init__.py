"""Copies the two sides of a call, so that the application may change its tensors afterwards.

Takes the tensors of one side of a call; returns their facts (dtype, shape, strides, aliases) and
their bytes, in host memory that a pool reuses.
"""
