"""What is known of tensors, copies of them that nobody else can change, and calls of such copies.

Takes the tensors of one side of a call; returns their facts (dtype, shape, strides, aliases) and
their bytes, in host memory that a pool uses again.
"""
