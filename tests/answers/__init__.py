"""What calltape answers, pinned: one JSON file per tape in ``golden/``.

``python -m tests.answers`` (``make answers``) records the zoo, asks every tape every question,
exports some of the models, and compares the answers with the files. A difference is either a
mistake or a change that somebody wanted: then ``--update`` writes the files, and the commit says
why.

``subjects`` says which tapes and models there are, ``questions`` and ``exports`` make the answers,
``normalising`` leaves out what another run or machine changes, ``comparing`` finds the differences,
and ``running`` spreads the work over processes.
"""
