"""A tape as a table, for any tool that reads Arrow or Parquet.

Takes the calls of a tape and its variants; returns record batches with a row per call or per leaf,
and files of them. pyarrow is imported only here, and only when a table is made.
"""
