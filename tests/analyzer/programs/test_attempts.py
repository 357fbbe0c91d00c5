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
    attempt.error = "call 2: \ud800 differs"
    found = json.loads(attempt.model_dump_json())
    assert found == {
        "variant": "decode",
        "what": "call 3 as recorded",
        "reproduced": 2,
        "tried": 2,
        "unrun": 0,
        "agreed": 2,
        "probed": 3,
        "declined": 0,
        "error": "call 2: \\ud800 differs",
        "remark": None,
        "seconds": 0.0,
        "failed": 0,
        "untried": [],
        "compared": 0,
        "unverified": [],
        "wrong": 1,
    }
    assert attempt.ok
    assert not attempt.perfect


def test_an_error_says_more_than_a_remark_and_the_first_remark_stays() -> None:
    attempt = Attempt(variant="decode", what="call 3 as recorded")
    assert attempt.summary is None
    attempt.note("call 4 is refused")
    attempt.note("at unseen sizes: refused")
    assert attempt.summary == attempt.remark == "call 4 is refused"
    attempt.error = "call 5 differs"
    assert attempt.summary == "call 5 differs"


def test_attempts_do_not_share_what_they_note() -> None:
    one, other = (Attempt(variant="main", what=what) for what in ("first", "second"))
    one.rows[SizeRow((), ())] = "wrong"
    one.refused.append(Sizing(0, (1,), True))
    one.untried.append("too large")
    assert (other.rows, other.refused, other.untried) == ({}, [], [])
