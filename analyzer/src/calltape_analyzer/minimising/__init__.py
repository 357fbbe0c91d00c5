"""Minimising: the smallest tape for which a command or a function still fails."""
