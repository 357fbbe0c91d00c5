"""Tapes that state what is not so, made of the bytes of good ones."""
