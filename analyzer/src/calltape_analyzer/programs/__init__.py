"""Exported programs and models: which one serves a call, how it runs, how it is saved and loaded.

Takes what an exporter made, a file, or a folder of saved programs; returns results of calls,
reports, and files.
"""
