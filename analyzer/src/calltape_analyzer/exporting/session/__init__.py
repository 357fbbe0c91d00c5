"""Runs of the model and of its programs: what they may cost, and whether they agree."""
