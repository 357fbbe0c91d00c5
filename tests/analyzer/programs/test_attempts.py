"""What was tried to export a variant, as data."""

from __future__ import annotations

import json

from calltape_analyzer.arguments.sizings import Sizing
from calltape_analyzer.observing.columns import SizeRow
from calltape_analyzer.programs.attempts import Attempt


def test_its_json_has_what_a_person_may_want() -> None:
    attempt = Attempt(variant="decode", what="call 3 as recorded")
    attempt.reproduced = attempt.tried = 2
    attempt.probed, attempt.agreed = 3, 2
    attempt.rows[SizeRow(((2, 3),), ())] = "ok"
    attempt.note_wrong(Sizing(0, (7,), True))
    attempt.error = "at unseen sizes: \ud800 differs"
    found = json.loads(attempt.model_dump_json())
    assert found == {
        "variant": "decode",
        "what": "call 3 as recorded",
        "reproduced": 2,
        "tried": 2,
        "unrun": 0,
        "agreed": 2,
        "probed": 3,
        "error": "at unseen sizes: \\ud800 differs",
        "seconds": 0.0,
        "failed": 0,
        "untried": [],
        "compared": 0,
        "unverified": [],
        "wrong": 1,
    }
    assert attempt.ok
    assert not attempt.perfect


def test_attempts_do_not_share_what_they_note() -> None:
    one, other = (Attempt(variant="main", what=what) for what in ("first", "second"))
    one.rows[SizeRow((), ())] = "wrong"
    one.refused.append(Sizing(0, (1,), True))
    one.untried.append("too large")
    assert (other.rows, other.refused, other.untried) == ({}, [], [])
