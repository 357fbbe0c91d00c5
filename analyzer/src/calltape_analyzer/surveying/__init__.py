"""Many tapes as one: what a fleet of servers called a model with.

Takes paths of tapes, and an executor that reads them; returns a survey: per recorded target the
distinct inputs of all calls and the counts of the whole traffic, which add up in any order, and
answers as a tape gives them, as far as no values are needed.
"""
