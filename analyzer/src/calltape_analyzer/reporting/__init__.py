"""What a tape says, as one HTML file for people: the report page.

In comes a tape, or several of different targets. :mod:`contents` is what the page will say, as
plain data with bounds; :mod:`page` makes HTML of it, and :mod:`charts` the pictures.
"""
