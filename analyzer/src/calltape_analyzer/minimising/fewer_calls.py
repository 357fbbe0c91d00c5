"""The fewest calls, and of these nothing of what they returned that is not needed."""

from __future__ import annotations

from calltape_analyzer.editing.withholding import Withholding
from calltape_analyzer.minimising.changed_calls import is_changed, without_outcome
from calltape_analyzer.minimising.halving import fewest, without_most
from calltape_analyzer.minimising.search import Search
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.text import counted
from calltape_analyzer.writing.built_calls import BuiltCall
from calltape_schema.tree import TensorNode

__all__ = ["drop_calls", "drop_outcomes"]


def drop_calls(search: Search) -> None:
    """Leaves calls out until none of the rest can be left out."""
    with search.opened() as base:
        places = range(len(base.calls))

        def enough(some: list[int]) -> bool:
            what = f"{counted(len(some), 'call')} of {len(places)}"
            return search.keeps(what, (base.calls[place] for place in some))

        # A check that names calls saves most of the search.
        hinted = [at for at in places if base.calls[at].number in set(search.hints[:1])]
        if len(places) > 1 and hinted and enough(hinted):
            return
        fewest(places, enough)


def drop_outcomes(search: Search) -> None:
    """Leaves out what the calls returned or raised; if that matters, the values of outputs that do
    not."""
    calls = list(search.tape.calls)
    if all(call.record.outputs is None and call.record.error is None for call in calls):
        return
    if search.keeps("no outcomes", map(without_outcome, calls)):
        return
    search.outcome_matters = True
    with search.opened() as base:
        roots = [call.record.outputs.spec().root for call in base.calls if call.record.outputs]
        paths = list(
            dict.fromkeys(
                path
                for root in roots
                for path, node in nodes_with_paths(root, "outputs")
                if isinstance(node, TensorNode)
            )
        )

        def enough(kept: list[str]) -> bool:
            dropped = [path for path in paths if path not in set(kept)]
            how = Withholding(dropped, outputs=False, signature=base.signature)
            what = f"{counted(len(kept), 'output')} of {len(paths)}"
            made = (
                call if is_changed(call) else BuiltCall(*how.apply(call)) for call in base.calls
            )
            return search.keeps(what, made)

        if len(paths) > 1:
            without_most(paths, enough)
