"""Whether two results are the same.

In come recorded results and the results of a program. Out go differences, and reports with a row
per call.
"""
