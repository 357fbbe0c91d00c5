"""Why a dimension, an int or an argument is what it is.

In come the variants of a tape. Out goes an explanation: data for programs, text for people.
"""
