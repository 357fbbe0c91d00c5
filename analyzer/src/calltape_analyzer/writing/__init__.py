"""From calls to the bytes of a new, sealed tape.

Takes recorded calls, or records with the values of their tensors; returns one file, which has its
name only when it is complete. The bytes of a tape are written by
:class:`calltape_schema.writer.TapeWriter` alone. This room stands on reading only, so that pages,
tables and surveys write with it too; what is made of whole tapes and variants is in *editing*.
"""
