"""What the recorder could not store: objects of unknown classes, long texts, sparse tensors.

In come the contents of a tape. Out go symptoms, with what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from calltape_analyzer.editing.contents import Contents
from calltape_analyzer.editing.symptom import Symptom
from calltape_analyzer.pytree.placeholder import UNKNOWN_CLASS
from calltape_analyzer.text import printable, some_of

__all__ = ["storage_symptoms"]

_MAX_NAMED = 5
_STAND_IN = (
    "a placeholder stands for each: a replay cannot compare it, and fails if the model reads it"
)
_SPARSE = (
    "call the model with a dense tensor (x.to_dense()), or with the indices and the values of the "
    "sparse one, and record again"
)
_PLAIN = "call the model with a dense tensor of a plain dtype in memory, and record again"


def storage_symptoms(found: Contents) -> Iterator[Symptom]:
    """What calls passed or gave, and the tape does not have."""
    classes = found.unstored.get(UNKNOWN_CLASS)
    if classes:
        yield Symptom(
            kind="classes_not_stored",
            level="warning",
            text=f"objects of classes that calltape does not know were not stored: "
            f"{_shown(classes)}",
            advice=f"{_STAND_IN}; register the class with torch.utils._pytree.register_pytree_node "
            "(docs/classes.md), or call the model with the tensors that the object holds, and "
            "record again",
        )
    others = {k: v for k, v in found.unstored.items() if k != UNKNOWN_CLASS}
    if others:
        yield Symptom(
            kind="values_not_stored",
            level="warning",
            text=f"values that a tape cannot hold were not stored: {_by_reason(others)}",
            advice=f"{_STAND_IN}; pass something shorter or simpler and record again; an "
            "argument that the model does without can be left out with --ignore "
            "(Tape.remove_inputs)",
        )
    sparse = {k: v for k, v in found.valueless.items() if "sparse" in k}
    rest = {k: v for k, v in found.valueless.items() if k not in sparse}
    for tensors, what, to_do in ((sparse, "sparse", _SPARSE), (rest, "some", _PLAIN)):
        if tensors:
            yield Symptom(
                kind="tensors_not_stored",
                level="warning",
                text=f"the values of {what} tensors could not be stored: {_by_reason(tensors)}",
                advice=f"only its shape is known of each, and no replay has or compares its "
                f"values; {to_do}",
            )


def _by_reason(found: Mapping[str, Iterable[str]]) -> str:
    """``layout sparse_coo: adjacency; ...``"""
    parts = [f"{printable(reason)}: {_shown(places)}" for reason, places in found.items()]
    return some_of(parts, _MAX_NAMED, "; ")


def _shown(places: Iterable[str]) -> str:
    return some_of([printable(place) for place in places], _MAX_NAMED)
