"""Whether two results are the same.

Takes recorded results and the results of a program; returns differences, and reports with a row per
call.
"""
