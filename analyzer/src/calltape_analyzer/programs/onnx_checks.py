"""The output of an ONNX model that says which assertions of its program hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from calltape_analyzer.foreign_errors import failed_text, says_where
from calltape_analyzer.programs.exported_model import ConditionError

__all__ = ["CHECKS", "demand"]

CHECKS = "calltape_checks"
"""The name of the output, a boolean per assertion, and of the metadata that has their texts."""
_MAX_TEXT = 300


def demand(holds: Sequence[bool], metadata: Mapping[str, str]) -> None:
    """Checks the output of a run.

    Args:
        holds: the output.
        metadata: of the model. A file may be anybody's: its texts are shown, and cut.

    Raises:
        ConditionError: an assertion does not hold.
    """
    if all(holds):
        return
    try:
        texts = json.loads(metadata.get(CHECKS, "[]"))
    except ValueError:
        texts = []
    failed = [place for place, one in enumerate(holds) if not one]
    known = [str(texts[i]) for i in failed if isinstance(texts, list) and i < len(texts)]
    # Some assertions are there twice, and only one says where in the model it comes from.
    known.sort(key=lambda text: not says_where(text))
    text = known[0][:_MAX_TEXT] if known else f"number {failed[0]}"
    raise ConditionError(failed_text(text))
