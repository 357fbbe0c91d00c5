"""What a stranger's tape must not do, a file per promise of SECURITY.md.

``tests.forging`` makes the tapes, by code: no forged file is committed. Each test names the promise
that its tape attacks. ``sandbox`` runs what calltape wrote, and reports processes, files and
sockets; ``python -m tests.fuzz scripts`` does that with as many tapes as you like.
"""
