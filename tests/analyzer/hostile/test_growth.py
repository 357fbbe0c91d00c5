"""What reading costs as a tape grows: twice the leaves, names, calls or files are not four times
the work.

Work is counted, in lines and calls of our own code, and not timed. In a regular expression nothing
can be counted: its text is so long that a test with quadratic work would not end in its time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, diff, dynamic_axes, open_tape, survey
from calltape_analyzer.observer.stored_calls import ObserverInfo, StoredCall
from calltape_analyzer.programs.reasons import GuardFails
from calltape_analyzer.pytree.nodes import values_in
from calltape_analyzer.surveying.survey import Loop
from calltape_analyzer.targets.exporters import additional_inputs
from calltape_analyzer.text import merge_alike
from calltape_schema.records import Segment
from calltape_schema.tree import BoolNode, DictNode
from tests.analyzer.cli.commands import run
from tests.analyzer.surveying.surveyed import written as written_survey
from tests.analyzer.tapes import Recorded, write_tape
from tests.counted_work import work_of

pytestmark = pytest.mark.integration

_DOUBLE = 2.6  # n log n, with room for what does not grow


def grows_little(make: Callable[[int], Callable[[], Any]], n: int) -> None:
    """Asserts that twice as much is about twice the work, and four times about four times.

    Args:
        make: prepares a question of a size, which is not counted.
        n: the smallest size.
    """
    counts: list[int] = []
    for size in (n, 2 * n, 4 * n):
        ask = make(size)
        counts.append(work_of(ask))
    assert counts[2] / counts[0] <= _DOUBLE**2, counts


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Tape]:
    """Writes a tape of some calls and opens it."""

    def write(calls: list[Any], name: str = "calls") -> Tape:
        return open_tape(write_tape(tmp_path / f"{name}-{len(calls)}.tape", calls, values="none"))

    return write


def names(n: int) -> list[dict[str, torch.Tensor]]:
    """Calls of n arguments, each with sizes of its own."""
    return [{f"a{i}": zeros(1, 1 + i + call * (i + 1) % 7) for i in range(n)} for call in range(3)]


def halves(n: int) -> list[dict[str, torch.Tensor]]:
    """Calls of n arguments, of which each call has another half."""
    every = [{f"a{i}": zeros(1, 1 + i) for i in range(n)}]
    return every + [
        {f"a{i}": zeros(1, 2 + i) for i in range(n) if (i >> call) & 1} for call in range(6)
    ]


def items(n: int, dtype: torch.dtype = torch.float32, more: int = 0) -> list[dict[str, Any]]:
    """Calls of one list of n tensors."""
    return [
        {"xs": [zeros(2, 2 + call + more, dtype=dtype) + more for _ in range(n)]}
        for call in range(3)
    ]


@pytest.mark.parametrize("calls", [names, halves])
def test_the_work_to_name_dimensions_grows_linearly(
    written: Callable[..., Tape], calls: Callable[[int], Any]
) -> None:
    def make(n: int) -> Callable[[], Any]:
        tape = written(calls(n))
        return lambda: tape.infer_dynamic_shapes(True, dim_names=True)

    grows_little(make, 60)


def test_the_work_to_take_given_names_grows_linearly(written: Callable[..., Tape]) -> None:
    def make(n: int) -> Callable[[], Any]:
        tape = written(names(n))
        return lambda: tape.infer_dynamic_shapes(dim_names={"a0": {0: "batch"}})

    grows_little(make, 60)


def test_the_work_for_shapes_grows_linearly_with_the_length_of_a_list(
    written: Callable[..., Tape],
) -> None:
    def make(n: int) -> Callable[[], Any]:
        tape = written(items(n))
        return lambda: tape.single.findings

    grows_little(make, 80)


def test_the_work_for_arguments_of_many_names_grows_linearly(written: Callable[..., Tape]) -> None:
    def make(n: int) -> Callable[[], Any]:
        tape = written(names(n))
        tape.variants()
        return tape.infer_arguments

    grows_little(make, 60)


def test_the_work_for_arguments_grows_linearly_with_the_number_of_calls(
    written: Callable[..., Tape],
) -> None:
    def make(n: int) -> Callable[[], Any]:
        tape = written([{"x": zeros(1, 1 + i)} for i in range(n)])
        return lambda: [tape.infer_arguments(i) for i in range(n)]

    grows_little(make, 30)


def test_the_work_of_an_observer_grows_linearly_with_the_calls(
    written: Callable[..., Tape],
) -> None:
    def make(n: int) -> Callable[[], Any]:
        tape = written([{"x": zeros(1, 1 + i)} for i in range(n)])

        def stored(index: int) -> StoredCall:
            return StoredCall.of(tape.calls[index], tape.class_index, tape.signature, {})

        return lambda: ObserverInfo(tape.calls, stored, lambda _: []).inputs

    grows_little(make, 30)


def test_the_work_for_dynamic_axes_grows_linearly_with_the_number_of_outputs(
    written: Callable[..., Tape],
) -> None:
    def make(n: int) -> Callable[[], Any]:
        calls = [
            Recorded(
                kwargs={f"a{i}": zeros(2 + call, 3) for i in range(n)},
                outputs=[zeros(2 + call, 3) for _ in range(n)],
            )
            for call in range(3)
        ]
        tape = written(calls)
        tape.variants()
        return lambda: dynamic_axes(tape, set_batch_dimension_for=True)

    grows_little(make, 40)


def test_the_work_to_explain_grows_linearly_with_the_length_of_a_list(
    written: Callable[..., Tape],
) -> None:
    def make(n: int) -> Callable[[], Any]:
        tape = written([{"xs": [zeros(1, 1 + i * call) for i in range(n)]} for call in range(3)])
        variants = tape.variants()
        tape.variants = lambda: variants  # type: ignore[method-assign]
        [variant.findings for variant in variants]
        return lambda: str(tape.explain("xs"))

    grows_little(make, 25)


def test_the_work_to_explain_what_varies_elsewhere_grows_linearly(
    written: Callable[..., Tape],
) -> None:
    def make(n: int) -> Callable[[], Any]:
        one = [{"xs": [zeros(1, 2 + i) for i in range(n)], "y": zeros(1)} for _ in range(2)]
        other = [{"xs": [zeros(1, 3 + i) for i in range(n)]} for _ in range(2)]
        tape = written([*one, *other])
        variants = tape.variants()
        tape.variants = lambda: variants  # type: ignore[method-assign]
        [variant.findings for variant in variants]
        return lambda: str(tape.explain("xs"))

    grows_little(make, 25)


def test_the_work_to_merge_places_grows_linearly() -> None:
    grows_little(lambda n: lambda: list(merge_alike((f"a{i}", str(i)) for i in range(n))), 100)


def test_the_work_of_diff_grows_linearly_with_the_elements_beyond_their_range(
    written: Callable[..., Tape],
) -> None:
    def make(n: int) -> Callable[[], Any]:
        before = written(items(n, torch.int64), "before")
        now = written(items(n, torch.int64, more=1), "now")
        return lambda: diff(before, now)

    grows_little(make, 25)


def test_the_work_to_compare_new_structures_grows_linearly(written: Callable[..., Tape]) -> None:
    def make(n: int) -> Callable[[], Any]:
        before = written([{"x": zeros(2), f"a{i}": zeros(3)} for i in range(n)], "before")
        now = written([{"x": zeros(2), f"b{i}": zeros(3)} for i in range(n)], "now")
        for tape in (before, now):  # what is asked here is how the structures compare
            tape.variants = list  # type: ignore[method-assign, assignment]
        return lambda: diff(before, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calltape_analyzer.traffic.MAX_COMPARED", 8)
        grows_little(make, 15)


@pytest.mark.integration
def test_the_work_of_show_grows_linearly_with_the_number_of_integers(tmp_path: Path) -> None:
    def make(n: int) -> Callable[[], Any]:
        path = write_tape(tmp_path / f"{n}.tape", items(n, torch.int64), values="none")
        return lambda: run("show", path, 0)

    grows_little(make, 600)  # all above 4 KiB, from where the values of a document are counted


def test_the_work_to_find_calls_grows_linearly_with_the_number_of_files(tmp_path: Path) -> None:
    def make(n: int) -> Callable[[], Any]:
        folder = tmp_path / str(n)
        folder.mkdir()
        for i in range(n):
            call = Recorded(kwargs={"x": zeros(1)}, number=i)
            segment = Segment(number=i, first_call=i)
            write_tape(folder / f"{i:05}.tape", [call], values="none", segment=segment)
        tape = open_tape(folder)
        refs = [call.ref for call in tape.calls]
        return lambda: [tape.calls.at(ref) for ref in refs]

    grows_little(make, 20)


def test_the_work_to_open_files_of_the_same_numbers_grows_linearly_with_them(
    tmp_path: Path,
) -> None:
    def make(n: int) -> Callable[[], Any]:
        folder = tmp_path / str(n)
        folder.mkdir()
        for i in range(n):
            write_tape(folder / f"{i:05}.tape", [{"x": zeros(1 + i)}], values="none")
        return lambda: open_tape(folder)

    grows_little(make, 20)


@pytest.mark.parametrize(
    "ask",
    [
        lambda tapes, _: survey(tapes, Loop()),
        lambda _, surveys: survey(surveys, Loop()),
        lambda _, surveys: open_tape(surveys[0]).variants(),
    ],
    ids=["tapes", "surveys", "answers"],
)
def test_the_work_of_surveys_grows_linearly_with_the_number_of_recordings(
    tmp_path: Path, ask: Callable[[Any, Any], Any]
) -> None:
    """A survey renumbers the calls of its recordings, and looks up the recording of each number."""
    counts: list[int] = []
    for n in (128, 256, 512):
        folder = tmp_path / str(n)
        folder.mkdir()
        tapes = [
            write_tape(
                folder / f"{i}.tape", [{"x": zeros(1, 1 + i)}], tape_id=i.to_bytes(16, "big")
            )
            for i in range(n)
        ]
        surveys = [written_survey(folder / f"{at}.s", *tapes[at::2]) for at in range(2)]
        counts.append(work_of(lambda: ask(tapes, surveys)))  # noqa: B023 - called at once
    # Reading the files is so much work that only the increase shows what is quadratic.
    assert counts[2] - counts[1] < 2.3 * (counts[1] - counts[0]), counts


def test_the_work_for_additional_inputs_grows_linearly_with_the_number_of_calls(
    written: Callable[..., Tape],
) -> None:
    def make(n: int) -> Callable[[], Any]:
        (variant,) = written([{"x": zeros(1, 2 + i)} for i in range(n)]).variants()
        variant.facts.rows  # noqa: B018
        return lambda: additional_inputs(variant, limit=2)

    grows_little(make, 100)


def test_the_work_for_values_grows_little_with_the_ways_to_one_path() -> None:
    def below(parts: int) -> Any:
        """Every way to write ``a.a.a`` as keys in keys."""
        if not parts:
            return BoolNode(kind="bool", value=True)
        ends = range(1, parts + 1)
        keys = tuple(".".join("a" * end) for end in ends)
        return DictNode(kind="dict", keys=keys, children=tuple(below(parts - end) for end in ends))

    def make(n: int) -> Callable[[], Any]:
        node = below(n.bit_length())
        return lambda: values_in(node, str, str)

    grows_little(make, 32)


@pytest.mark.parametrize(
    "unit", ["L['a']", "L", "L[1]", "L['", "L['a'", "[1]", "L['a'].size()", "é"]
)
def test_a_guard_of_a_long_name_is_worded_at_once(unit: str) -> None:
    text = unit * (4_000_000 // len(unit))
    rejection = GuardFails(text, ("x",))
    assert rejection.dimension is None
    assert str(rejection)
