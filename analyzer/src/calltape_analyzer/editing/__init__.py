"""Tapes that are made of other tapes: cut, joined, mended; and what is wrong with a tape.

Takes open tapes; returns new, sealed tapes that say how they were made, and reports.
"""
