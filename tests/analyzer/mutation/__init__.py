"""Tapes that lie under right checksums, made by grammar, and everything that reads them.

A tape is taken apart into plain data (:mod:`documents`), changed where the format has something to
say (:mod:`grammar`), put together again so that every checksum holds and most blobs fit, and given
to every reading path (:mod:`reading`). The same seed gives the same mutant.

``python -m tests.analyzer.mutation 10000`` runs as many as are wanted, in processes of their own.
"""
