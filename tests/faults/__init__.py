"""Deliberate faults, and whether the tests find them: ``python -m tests.faults``.

A suite that became faster must still find what the slow one found. Each fault is one that a
maintainer could make; it breaks a promise to a user. It is planted in a copy of the tree, where
tests run until one fails.
"""
