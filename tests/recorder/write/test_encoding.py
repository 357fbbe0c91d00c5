"""What the file holds beside values: the manifest, blobs that other libraries open, shapes only."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import safetensors
import torch

from calltape_recorder import record
from calltape_schema.reader import TapeReader
from calltape_schema.storage import BytesSource
from tests.recorder.calls import ORDINARY, bits
from tests.recorder.models import Add, Identity
from tests.recorder.reading import ReadTape, read


def test_the_safetensors_library_opens_every_extracted_blob(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    names = (
        "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64"
        " complex64 float8_e4m3fn float8_e5m2"
    )
    known = [d for d in ORDINARY if str(d).removeprefix("torch.") in names.split()]
    sent = [torch.randint(0, 2, (3, 4 * d.itemsize), dtype=torch.uint8).view(d) for d in known]
    with record(model, path):
        model({"many": sent, "plain": torch.arange(3), "é": torch.ones(2, 0)})
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "out", filter="data")
        names = tar.getnames()
    assert names == [
        "tape.msgpack", "blobs/00000000.safetensors", "records/00000000.msgpack", "end.msgpack",
    ]  # fmt: skip
    with safetensors.safe_open(tmp_path / "out" / names[1], "pt") as blob:
        for index, tensor in enumerate(sent):
            opened = blob.get_tensor(f"args.0.many.{index}")
            assert opened.dtype == tensor.dtype
            assert bits(opened) == bits(tensor)
        assert blob.get_tensor("args.0.é").shape == (2, 0)
    header = (tmp_path / "out" / names[1]).read_bytes()[:8]
    assert (8 + int.from_bytes(header, "little")) % 64 == 0


def test_the_manifest_has_signature_policy_and_producer(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(
            self, x: Any, /, y: int = 3, *rest: Any, z: Any = None, o: Any = None, **more: Any
        ):
            if o is None:
                o = {}
            return x

    with record(Model(), tmp_path / "t.tape", outputs=False, max_calls=7):
        pass
    manifest = read(tmp_path / "t.tape").manifest
    assert manifest.target.signature is not None
    assert (manifest.target.method, manifest.target.via) == ("forward", "hook")
    assert [(p.name, p.kind, p.has_default, p.default) for p in manifest.target.signature] == [
        ("x", "POSITIONAL_ONLY", False, None),
        ("y", "POSITIONAL_OR_KEYWORD", True, 3),
        ("rest", "VAR_POSITIONAL", False, None),
        ("z", "KEYWORD_ONLY", True, None),
        ("o", "KEYWORD_ONLY", True, None),
        ("more", "VAR_KEYWORD", False, None),
    ]
    assert (manifest.policy.outputs, manifest.policy.max_calls) == (False, 7)
    assert manifest.producer.torch == torch.__version__
    assert manifest.producer.host is None


def test_shapes_only_keeps_ranges_only_of_many_integers(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path, values="none"):
        model(torch.tensor([4, -4]), torch.ones(2))
        model(torch.arange(-9, 1024 - 9), torch.ones(1))
        model(torch.zeros(1 << 20, dtype=torch.int64), torch.ones(1))
    tape: ReadTape = read(path)
    assert [call.blob for call in tape.calls] == [b"", b"", b""]
    first = tape.calls[0].record
    assert [fact.missing for fact in first.inputs.facts()] == ["policy", "policy"]
    # Of so few it would be what they are.
    assert [call.ranges for call in tape.calls] == [{}, {0: (-9, 1014)}, {}]
    assert path.stat().st_size < 20_000


def test_tensors_are_not_compressed_and_records_are_deflated(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    x = torch.zeros(250_000)
    with record(model, path) as recorder:
        model(x, x + 1)
        assert recorder.flush()
        tensors = path.stat().st_size
        text = " ".join(map(str, range(20_000)))
        model(text, "")
        assert recorder.flush()
        texts = path.stat().st_size - tensors
    assert tensors > 3 * x.nbytes  # two arguments and a result
    assert texts < len(text)  # which is an argument and the result


def test_each_tensor_begins_at_a_multiple_of_its_elements(tmp_path: Path) -> None:
    model = torch.nn.Identity()
    given = {
        "a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(5, dtype=torch.float64),
        "c": torch.ones(1, dtype=torch.int16), "d": torch.ones(7, dtype=torch.complex64),
    }  # fmt: skip
    with record(model, tmp_path / "t.tape"):
        for _ in range(3):  # the first one, and those that are alike
            model(given)
    reader = TapeReader(BytesSource((tmp_path / "t.tape").read_bytes()))
    for at in range(3):
        found = reader.record_at(at)
        for leaf in found.inputs.facts():
            (part,) = reader.place(found, leaf).parts
            assert part.offset % getattr(torch, leaf.dtype).itemsize == 0
