"""The parts of docs/zoo.md that follow from the results: totals, and what fails."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from tests.zoo import CASES, FAMILIES
from tests.zoo.reasons import NOT_TRIED, Cause, reason_for
from tests.zoo.results import EARLIER, TARGETS, Result, Results

__all__ = ["written"]

_PART = re.compile(
    r"(<!-- written by tests\.zoo\.run: (\w+) -->\n\n).*?(\n<!-- end -->)", re.DOTALL
)


def written(page: str, rows: Results) -> str:
    """The page with the parts that its comments of HTML name, as the results have them."""

    def part(found: re.Match[str]) -> str:
        lines = {"totals": _totals, "failures": _failures}[found[2]](rows)
        return found[1] + "".join(f"{line}\n" for line in lines) + found[3]

    return _PART.sub(part, page)


def _totals(rows: Results) -> Iterator[str]:
    ran = {name for of_target in rows.values() for name in of_target}
    runs = {one.run for of_target in rows.values() for one in of_target.values()} - {EARLIER}
    yield f"The zoo has {len(CASES)} models in {len(FAMILIES)} families; {len(ran)} have results."
    if runs:
        yield f"The last run used {max(runs, key=len)}, on CPUs."
    yield ""
    yield (
        "| target | models | reproduce all recorded calls | and all unseen calls |"
        " silently wrong calls | right only with the bare exporter |"
    )
    yield "| --- " * 6 + "|"
    for target in TARGETS:
        every = rows[target].values()
        last = [one for one in every if one.run != EARLIER]
        yield _total(target, every)
        if 0 < len(last) < len(every):
            yield _total(f"{target}, the last run", last)


def _total(title: str, ran: Collection[Result]) -> str:
    recorded = sum(one.has_recorded for one in ran)
    whole = sum(one.is_whole for one in ran)
    wrong = sum(one.wrong for one in ran)
    bare = [one.bare for one in ran if one.bare is not None]
    calls = f"{sum(bare)} calls of {len(bare)} models" if bare else "-"
    return f"| {title} | {len(ran)} | {recorded} | {whole} | {wrong} | {calls} |"


def _failures(rows: Results) -> Iterator[str]:
    failed = [
        (name, target)
        for name in CASES
        for target in TARGETS
        if name in rows[target] and not rows[target][name].is_whole
    ]
    tried = {name for name, target in failed if _by_hand(name, target) != NOT_TRIED}
    models = {name for name, _ in failed}
    yield f"{len(models)} models fail with at least one target. {len(tried)} of them also fail when"
    yield "exported by hand, without calltape."
    yield ""
    yield f"| what stops it | {' | '.join(TARGETS)} |"
    yield "| --- " * (1 + len(TARGETS)) + "|"
    for cause in (*Cause, None):
        if of_cause := [one for one in failed if _cause(*one) is cause]:
            names = [
                ", ".join(f"`{n}`" for n, to in of_cause if to == target) for target in TARGETS
            ]
            yield f"| {cause.value if cause else 'Nobody has found out'} | {' | '.join(names)} |"


def _cause(name: str, target: str) -> Cause | None:
    reason = reason_for(name, target)
    return reason.cause if reason else None


def _by_hand(name: str, target: str) -> str:
    reason = reason_for(name, target)
    return reason.by_hand if reason else NOT_TRIED
