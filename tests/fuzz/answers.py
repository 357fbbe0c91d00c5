"""The right answer: what a mutant gives is asked in two ways, and the answers must agree.

A mutant is another tape, and nobody wrote down what is on it. So each comparison asks the reader
something that can be known in another way.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tests.fixture_files  # noqa: F401 - makes the readers of fixtures/ importable
from calltape_analyzer import TapeError, open_tape
from calltape_schema.tar import is_group
from tests.fuzz.classes import CLASSES
from tests.fuzz.framing import Grouped, split
from tests.fuzz.steps import WrongAnswerError
from tests.schema import independent_command, independent_reader

import calltape_reader  # isort: skip
import run_conformance  # isort: skip

__all__ = ["COMPARISONS"]


def _same(what: str, one: Any, other: Any) -> None:
    if one != other:
        raise WrongAnswerError(f"{what}: {one!r:.600} is not {other!r:.600}")


def twice(path: Path, tape: Any) -> None:
    """A call read again, in another way, is the same."""
    numbers = [call.number for call in tape.calls]
    _same("each number once", len(numbers), len(set(numbers)))
    for call in tape.calls[:8]:
        again = tape.find(call.number)
        _same("record", repr(call.record.inputs.leaves), repr(again.record.inputs.leaves))
        _same("description", call.record.inputs.structure, again.record.inputs.structure)


def verified(path: Path, tape: Any) -> None:
    """If ``verify`` finds nothing, no value is damaged."""
    if tape.verify():
        return
    for call in tape.calls[:8]:
        for side in ("inputs", "outputs"):
            try:
                getattr(call, side)
            except TapeError as error:
                if error.kind == "damaged":
                    raise WrongAnswerError(
                        f"verify found nothing, but call {call.number}: {error}"
                    ) from None


def sizes(path: Path, tape: Any) -> None:
    """The sizes in the findings are the sizes on the tape."""
    recorded: Counter[int] = Counter()
    for call in tape.calls:
        for leaf in call.record.inputs.facts():
            recorded.update(set(leaf.shape))
    for variant in tape.variants():
        for symbol in variant.findings.symbols:
            counted = sum(seen.calls for seen in symbol.sizes)
            if symbol.distinct <= 64 and counted > len(variant):
                raise WrongAnswerError(f"{symbol.name}: {counted} calls of {len(variant)}")
            axes = (axis for tensor in variant.findings.tensors for axis in tensor.dimensions)
            is_size = any(axis.symbol == symbol.name for axis in axes)
            unseen = [seen.size for seen in symbol.sizes if seen.size not in recorded]
            if is_size and unseen:
                raise WrongAnswerError(f"{symbol.name}: no call had {unseen[0]}")


def partition(path: Path, tape: Any) -> None:
    """Each call is in at most one variant, and a variant has calls."""
    seen: Counter[Any] = Counter()
    for variant in tape.variants():
        refs = [call.ref for call in variant.calls]
        _same("calls of a variant", len(refs), len(variant))
        seen.update(refs)
    twice = [str(ref) for ref, count in seen.items() if count > 1]
    _same("calls in two variants", twice, [])
    _same(
        "calls of variants alone", sorted(map(str, seen.keys() - {c.ref for c in tape.calls})), []
    )


def counted(path: Path, tape: Any) -> None:
    """A sealed tape without damage has the calls that it says it kept."""
    if tape.sealed and not tape.verify():
        _same("calls", len(tape), tape.coverage.kept)


def summed(path: Path, tape: Any) -> None:
    """If the records say that the table of the end is true, both give the same answers."""
    with open_tape(path, classes=CLASSES, scan=True) as scanned:
        if scanned.verify():
            return
        with open_tape(path, classes=CLASSES) as quick:
            for ask in (lambda one: one.single.findings, lambda one: one.variants()):
                _same("by the table", *(_told(ask, one) for one in (quick, scanned)))


def _told(ask: Callable[[Any], Any], tape: Any) -> str:
    try:
        found = ask(tape)
    except TapeError as error:
        return f"{error.kind}: {error.reason}"
    if isinstance(found, list):
        return str([one.findings.model_dump_json() for one in found])
    return str(found.model_dump_json())


def plain_data(path: Path, tape: Any) -> None:
    """Findings can be read back from their JSON, which says the same again."""
    try:
        findings = tape.single.findings
    except TapeError:
        return
    text = findings.model_dump_json()
    json.loads(text, parse_constant=_refused)
    _same("findings", type(findings).model_validate_json(text).model_dump_json(), text)


def _refused(name: str) -> Any:
    raise WrongAnswerError(f"{name} in JSON")


def arguments_fit(path: Path, tape: Any) -> None:
    """Representative arguments have the dtypes of the tape, and sizes where those are constant."""
    try:
        findings, given = tape.single.findings, tape.infer_arguments()
    except TapeError:
        return
    import torch

    tensors = [t for t in torch.utils._pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]
    # An array of a dtype that NumPy lacks is given as a tensor, which shapes do not speak of.
    allowed = {leaf.dtype for call in tape.calls for leaf in call.record.inputs.facts()}
    allowed |= {tensor.dtype for tensor in findings.tensors}
    # Some dtypes of torch have two names ("float" and "float32").
    allowed |= {str(getattr(torch, name, name)).removeprefix("torch.") for name in allowed}
    for value in tensors:
        if str(value.dtype).removeprefix("torch.") not in allowed:
            raise WrongAnswerError(f"an argument of {value.dtype}, which no call had")
        nbytes = value.untyped_storage().nbytes() if value.device.type == "cpu" else 0
        if nbytes > 2**28:
            raise WrongAnswerError(f"an argument of {nbytes} bytes")


def independent(path: Path, tape: Any) -> None:
    """The reader that was written from FORMAT.md alone finds the same in a call. It was not written
    to survive lies: where it gives up, there is nothing to compare."""
    try:
        _, calls, _ = independent_reader.read_tape(path.read_bytes())
    except Exception:
        return
    theirs = {str(number): call for number, call in calls.items()}
    # Of two groups with one number, the first that holds counts; that reader knows of no other.
    numbers: Counter[int] = Counter()
    for member in split(path.read_bytes()):
        if is_group(member.name):
            with contextlib.suppress(Exception):  # no group
                numbers.update(Grouped.of(member.content).numbers())
    theirs = {name: call for name, call in theirs.items() if numbers[call["call"]] == 1}
    for ours in calltape_reader.document(str(path)).get("calls", ()):
        call = theirs.get(ours["number"])
        if call is None or ours["values"] != "ok" or call["tensors"] is None:
            continue
        if "unsupported" in json.dumps(ours):
            continue  # it knows nothing of later versions
        try:
            found = independent_command.call_form(call)
        except Exception:
            continue
        for difference in run_conformance.differences(ours, found, "", frozenset()):
            raise WrongAnswerError(f"call {ours['number']}: {difference}")


COMPARISONS: dict[str, Callable[[Path, Any], None]] = {
    "read twice": twice,
    "verified": verified,
    "sizes": sizes,
    "partition": partition,
    "counted": counted,
    "summed": summed,
    "plain data": plain_data,
    "arguments fit": arguments_fit,
    "independent": independent,
}
