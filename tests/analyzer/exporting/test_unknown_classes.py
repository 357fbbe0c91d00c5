"""Arguments of a class that calltape does not know: the error says what to do, and that works."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from calltape_analyzer import export, load_programs, open_tape
from calltape_analyzer.errors import ExportError
from calltape_recorder import record
from tests.analyzer.exported import Call, assert_as_module, call, made, taped

PAGE = Path(__file__).resolve().parents[3] / "docs" / "classes.md"


class Thing:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class Adding(torch.nn.Module):
    def forward(self, data: Any) -> Any:
        return data.x + data.y.sum(0)


@pytest.fixture
def registered() -> Iterator[None]:
    pytree.register_pytree_node(
        Thing,
        lambda one: ([one.x, one.y], None),
        lambda tensors, _: Thing(*tensors),
        serialized_type_name="Thing",
    )
    yield
    pytree._deregister_pytree_node(Thing)


def things() -> list[Call]:
    return [call(Thing(torch.rand(n, 3), torch.rand(k, 3))) for n, k in ((2, 4), (3, 6), (5, 7))]


def test_the_error_names_the_class_and_how_to_register_it(tmp_path: Path) -> None:
    tape = taped(tmp_path, Adding(), things())
    with pytest.raises(ExportError) as caught:
        export(tape, Adding())
    text = str(caught.value)
    assert "data holds a tests.analyzer.exporting.test_unknown_classes:Thing" in text
    assert "Register Thing with torch.utils._pytree.register_pytree_node, record again" in text
    assert "open_tape(path, classes=[Thing])" in text


class Summing(torch.nn.Module):
    def forward(self, x: Any, given: Any) -> Any:
        return x + sum(len(one) for one in given)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: (range(n) for n in (2, 3)), "builtins:generator"),
        (lambda: io.BytesIO(b"one"), "_io:BytesIO"),
        (lambda: iter(["two"]), "builtins:list_iterator"),
    ],
)
def test_a_generator_or_a_file_is_not_to_be_registered(
    tmp_path: Path, make: Callable[[], Any], name: str
) -> None:
    model = Summing()
    with record(model, tmp_path / "calls.tape"):
        assert (model(torch.zeros(1), make()) > 0).all()
    with pytest.raises(ExportError) as caught:
        export(open_tape(tmp_path / "calls.tape"), model)
    text = str(caught.value)
    assert f"given holds a {name}" in text
    assert "read it before, and call the model with a list or tensors" in text
    assert "register" not in text
    assert "eval()" not in text  # the model was not called


@pytest.mark.usefixtures("registered")
def test_what_it_says_works(tmp_path: Path) -> None:
    unseen = [call(Thing(torch.rand(4, 3), torch.rand(9, 3)))]
    programs = made(tmp_path, Adding(), things(), unseen, classes=[Thing])
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", classes=[Thing], trusted=True)
    assert_as_module(loaded, Adding(), unseen)


@pytest.mark.integration
def test_a_graph_of_torch_geometric_is_exported_once_it_is_registered(tmp_path: Path) -> None:
    data: Any = pytest.importorskip("torch_geometric.data").Data

    class Summing(torch.nn.Module):
        def forward(self, data: Any) -> Any:
            source, target = data.edge_index
            return torch.zeros_like(data.x).index_add(0, target, data.x[source])

    def graph(nodes: int, edges: int) -> Call:
        index = torch.randint(0, nodes, (2, edges))
        return call(data(x=torch.rand(nodes, 4), edge_index=index))

    # As the page says.
    pytree.register_pytree_node(
        data,
        lambda data: (list(data.to_dict().values()), tuple(data.to_dict())),
        lambda values, names: data.from_dict(dict(zip(names, values, strict=True))),
        serialized_type_name="Data",
    )
    try:
        calls = [graph(5, 8), graph(6, 11), graph(9, 20)]
        made(tmp_path, Summing(), calls, [graph(7, 13)], classes=[data])
    finally:
        pytree._deregister_pytree_node(data)


@pytest.mark.integration
def test_the_page_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "page.py").write_text(block)
    ended = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.strip() == "torch.Size([7, 4])"
