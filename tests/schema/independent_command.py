"""The independent reader in the protocol of the conformance suite: nothing of calltape is imported.
``python tests/schema/independent_command.py TAPE`` prints JSON. It finds what is on golden tapes,
and says nothing about damage; it was not written to survive hostile ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "fixtures")]

from elements import elements  # noqa: E402
from independent_reader import last_counts, read_tape, unpack  # noqa: E402
from plain_form import history_form, table_form, target_form, text, tree_form  # noqa: E402


def document(data: bytes) -> dict:
    manifest, calls, end = read_tape(data)
    made = {"version": str(manifest["version"]), "tape": manifest["tape"].hex()}
    if "target" in manifest:
        made["target"] = target_form(manifest["target"])
    if "history" in manifest:
        made["history"] = history_form(manifest["history"])
    made["sealed"] = end is not None
    counts = last_counts(data, manifest["tape"]) if end is None else None
    if counts is not None:
        counted_ns = str(counts["coverage"]["counted_ns"])
        made["counts"] = {"next_call": str(counts["next_call"]), "counted_ns": counted_ns}
        made["counts"] |= coverage_form(counts["coverage"])
    if "deleted" in (end or counts or {}):
        made["deleted"] = [list(map(str, run)) for run in (end or counts)["deleted"]]
    if end is not None:
        made["coverage"] = coverage_form(end["coverage"])
        made |= {"elsewhere": True} if end.get("elsewhere") else {}
        table = end["table"]
        made |= {} if table is None else {"table": table_form(table, unpack)}
    made["calls"] = [call_form(calls[number]) for number in sorted(calls)]
    made["leaves_out"] = ["damage"]
    return made


def coverage_form(counted: dict) -> dict:
    dropped = {reason: str(count) for reason, count in counted["dropped"].items()}
    return {"seen": str(counted["seen"]), "kept": str(counted["kept"]), "dropped": dropped}


def call_form(call: dict) -> dict:
    tensors, values = call["tensors"], "ok"
    trees = (call.get(side, {"leaves": ()}) for side in ("inputs", "outputs"))
    if tensors is None:
        values = "damaged"
    elif not {leaf["key"] for tree in trees for leaf in tree["leaves"] if "key" in leaf} <= {
        *tensors
    }:
        values, tensors = "invalid", None
    made = {"number": str(call["call"]), "values": values}
    for name in ("time_ns", "duration_ns"):
        if call.get(name) is not None:  # no writer writes nil, and a reader may take it for absent
            made[name] = str(call[name])
    made["thread"] = str(call.get("thread", 0))
    if call.get("error") is not None:
        made["error"] = {name: text(call["error"][name]) for name in ("type", "message")}
    if call.get("outputs_missing") is not None:
        made["outputs_missing"] = text(call["outputs_missing"])
    for side in ("inputs", "outputs"):
        if call.get(side) is not None:
            values = [value(leaf, tensors) for leaf in call[side]["leaves"]]
            made[side] = tree_form(call[side], values)
    return made


def value(leaf: dict, tensors: dict | None) -> dict:
    if "key" not in leaf or tensors is None:
        return {}
    _, data = tensors[leaf["key"]]
    return {"bytes": data.hex(), "elements": elements(leaf["dtype"], data)}


if __name__ == "__main__":
    print(json.dumps(document(Path(sys.argv[1]).read_bytes())))
