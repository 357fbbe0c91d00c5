"""What was tried to export a variant, as data."""

from __future__ import annotations

import json

from calltape_analyzer.arguments.sizings import Sizing
from calltape_analyzer.facts import Other
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.reasons import Because, OfCall, Sampled, Unseen, UntriedSize, Why
from calltape_analyzer.programs.strategies import Strategy

SAMPLE = Sampled(3)
LARGE = Because(Why.TOO_LARGE)


def test_its_json_has_what_a_person_may_want() -> None:
    attempt = Attempt(variant="decode", strategy=Strategy.BY_VALUES, sample=SAMPLE)
    attempt.reproduced = attempt.tried = 2
    attempt.probed, attempt.agreed = 3, 2
    attempt.rows[SizeRow(((2, 3),), ())] = "ok"
    attempt.note_wrong(Sizing(0, (7,), True))
    attempt.error = OfCall(2, Other("\ud800 differs"))
    document = json.loads(attempt.model_dump_json())
    assert document == {
        "variant": "decode",
        "what": "call 3 as recorded, by its values",
        "strategy": "by_values",
        "sample": {"code": "sampled", "call": 3, "sizes": "", "text": "call 3 as recorded"},
        "reproduced": 2,
        "tried": 2,
        "unrun": 0,
        "agreed": 2,
        "probed": 3,
        "declined": 0,
        "error": {
            "code": "of_call",
            "call": 2,
            "why": {"code": "other", "text": "\\ud800 differs"},
            "text": "call 2: \\ud800 differs",
        },
        "remark": None,
        "seconds": 0.0,
        "failed": 0,
        "untried": [],
        "compared": 0,
        "unverified": [],
        "by_values": False,
        "wrong": 1,
    }
    assert attempt.ok
    assert not attempt.perfect


def test_an_error_says_more_than_a_remark_and_the_first_remark_stays() -> None:
    attempt = Attempt(variant="decode", strategy=Strategy.BY_VALUES, sample=SAMPLE)
    assert attempt.summary is None
    attempt.note(OfCall(4, LARGE))
    attempt.note(Unseen(LARGE))
    assert attempt.summary == attempt.remark == OfCall(4, LARGE)
    attempt.error = OfCall(5, LARGE)
    assert attempt.summary == OfCall(5, LARGE)


def test_attempts_do_not_share_what_they_note() -> None:
    one, other = (Attempt(variant="main", strategy=Strategy.PLAIN) for _ in range(2))
    one.rows[SizeRow((), ())] = "wrong"
    one.rejected.append(Sizing(0, (1,), True))
    one.untried.append(UntriedSize("batch=7", LARGE))
    assert (other.rows, other.rejected, other.untried) == ({}, [], [])
