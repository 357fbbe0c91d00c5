"""Redaction: a tape without private data, and the list of private data on a tape."""
