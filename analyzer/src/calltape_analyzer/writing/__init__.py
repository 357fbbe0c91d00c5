"""Writing tapes: the bytes of a new file, copies of calls, synthetic calls, and their manifest.

Everything here depends only on reading, so that pages, tables and surveys can write too. Tapes that
are made from variants or whole tapes belong to ``editing``.
"""
