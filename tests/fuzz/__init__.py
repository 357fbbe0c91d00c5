"""Tapes that lie under right checksums, and everything that reads them.

A tape is taken apart into plain data (:mod:`documents`), changed where the format has something to
say (:mod:`grammar`) or below (:mod:`framing`), put together again so that every checksum holds and
most blobs fit (:mod:`mutator`), and given to every reading path (:mod:`questions`). atheris keeps
the mutants that reach new branches (:mod:`guidance`).

``python -m tests.fuzz --seconds 600`` runs as long as is wanted, in processes of their own.
"""
