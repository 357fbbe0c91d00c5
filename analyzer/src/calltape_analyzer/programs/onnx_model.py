"""An ONNX model in ONNX Runtime: torch tensors in, torch tensors out.

Besides its outputs, a model that calltape made says which assertions of its program hold, and which
outputs are complex: ONNX Runtime has no complex tensors, and torch.onnx makes the real and the
imaginary part a last dimension of two floats.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from calltape_analyzer.comparison.comparing import ONNX_TOLERANCES
from calltape_analyzer.errors import TapeError
from calltape_analyzer.facts import Rejection
from calltape_analyzer.foreign_errors import failed_text, says_where
from calltape_analyzer.programs import reasons
from calltape_analyzer.programs.conditions import Sized
from calltape_analyzer.programs.exported_model import ConditionError, ExportedModel
from calltape_analyzer.programs.onnx_session import (
    NOT_OF_NUMPY,
    Feed,
    crash_of,
    session_of_model,
    session_of_program,
    value_of,
)
from calltape_analyzer.programs.reasons import End
from calltape_analyzer.programs.untrusted_files import (
    EXPECTED_FILES,
    load_onnx_proto,
    reject_data_outside,
)
from calltape_analyzer.writing.output_file import TemporaryFolder

__all__ = ["CHECKS", "COMPLEX_OUTPUTS", "OnnxModel"]

_FILE = "model.onnx"
_TYPES = ("ONNXProgram", "ModelProto", "InferenceSession")


class DeclaredInput(NamedTuple):
    """What a model declares of an input: its dtype in torch's words, and per dimension a size, the
    name of one, or None. Both are None if they are not declared."""

    name: str
    dtype: str | None
    dims: tuple[int | str | None, ...] | None


class OnnxModel(ExportedModel):
    """Runs an ONNX model in ONNX Runtime, fed by name (rule 13 of
    docs/decisions/export-strategies.md: by position feeds shift if the exporter dropped inputs that
    the program does not use).

    Args:
        exported: a path, an ``onnx.ModelProto``, its bytes, a ``torch.onnx.ONNXProgram``, or an
            ``onnxruntime.InferenceSession``.
        names: of no use here: the model has names of its own.
        initializer: makes the session from a path or bytes; on the CPU by default.
    """

    runtime = "ONNX Runtime"
    suffix = ".onnx"
    tolerances = ONNX_TOLERANCES

    def __init__(
        self,
        exported: Any,
        names: Sequence[str] | None = None,
        *,
        initializer: Callable[[str | bytes], Any] | None = None,
    ) -> None:
        super().__init__(exported, names)
        self._make_session = initializer
        self._session = exported if hasattr(exported, "run_with_ort_values") else None
        self._folder: TemporaryFolder | None = None
        self._lost: list[Any] = []

    @classmethod
    def takes(cls, source: Any) -> bool:
        """Whether it is a file (of any name: they have many), bytes, or an object of onnx, torch or
        ONNX Runtime."""
        if isinstance(source, str | os.PathLike | bytes):
            return True
        return any(base.__name__ in _TYPES for base in type(source).__mro__)

    @property
    def session(self) -> Any:
        """The session of ONNX Runtime, made when it is first needed.

        Raises:
            TapeError: it is no model, or its data are outside of its folder.
        """
        if self._session is None:
            self._session = self._new_session()
        return self._session

    def _new_session(self) -> Any:
        model = self.exported
        make = self._make_session or session_of_model
        if isinstance(model, str | os.PathLike | bytes):
            return make(model if isinstance(model, bytes) else os.fspath(model))
        path = self._saved()
        if hasattr(model, "save") and self._make_session is None:
            return session_of_program(model, path)
        return make(path)

    def _saved(self) -> str:
        """The path of a file with the model, written when it is first needed."""
        if self._folder is None:
            folder = TemporaryFolder()
            model, path = self.exported, folder.path / _FILE
            if hasattr(model, "save"):
                # To a file, because a protobuf message ends at 2 GiB. The weights lie beside it: a
                # message with them would be in memory as well.
                model.save(str(path), external_data=True)
            else:
                reject_data_outside(model, None)
                path.write_bytes(model.SerializeToString())
            self._folder = folder
        return str(self._folder.path / _FILE)

    def open(self) -> None:
        try:
            _ = self.session
        except TapeError:
            raise
        except Exception as error:  # the runtime's own, of any type
            if not isinstance(self.exported, str):
                raise
            reason = f"ONNX Runtime cannot load it: {type(error).__name__}: {str(error)[:200]}"
            raise TapeError("invalid", reason, path=self.exported, advice=EXPECTED_FILES) from None

    def after_fork(self) -> None:
        # To delete a session waits for its threads, which are not there.
        self._lost.append(self._session)
        if self.exported is not self._session:
            self._session = None

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def __del__(self) -> None:
        self.close()

    @cached_property
    def _declared(self) -> tuple[DeclaredInput, ...]:
        """The inputs of the session if there is one, else of the file or message."""
        if self._session is not None:
            return tuple(
                DeclaredInput(
                    one.name,
                    _dtype(one.type.removeprefix("tensor(").removesuffix(")")),
                    tuple(one.shape),
                )
                for one in self._session.get_inputs()
            )
        model = self.exported
        if isinstance(model, str | os.PathLike | bytes):
            model = load_onnx_proto(model)
        graph = getattr(model, "model_proto", model).graph
        initial = {one.name for one in graph.initializer}
        return tuple(_declared_by_proto(one) for one in graph.input if one.name not in initial)

    @property
    def input_names(self) -> Sequence[str]:
        if self._session is not None:
            return [known.name for known in self._session.get_inputs()]
        return [declared.name for declared in self._declared]

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        values = {name: value_of(*feed) for name, feed in self._feeds(inputs).items()}
        results = self.session.run_with_ort_values(None, values)
        # What an ``initializer`` of somebody makes may be less than a session.
        read = getattr(self.session, "get_modelmeta", None)
        metadata = {} if read is None else read().custom_metadata_map
        are_complex = complex_outputs(metadata)
        outputs: list[Any] = []
        for known, output in zip(self.session.get_outputs(), results, strict=True):
            if known.name == CHECKS:
                check_assertions(output.numpy().tolist(), metadata)
                continue
            tensor = _to_torch(output)
            outputs.append(from_pairs(tensor) if known.name in are_complex else tensor)
        return outputs

    def crash(self, inputs: Mapping[str, Any], seconds: float) -> End | None:
        path = self.exported
        if not isinstance(path, str) and self._folder is not None:
            path = str(self._folder.path / _FILE)
        if not isinstance(path, str) or self._make_session is not None:
            return None  # a session of somebody else, who knows what it does
        return crash_of(path, self._feeds(inputs), seconds)

    def named(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        found: dict[str, Any] = {}
        for known in self.session.get_inputs():
            # The exporter adds _orig to the name of an input that is also a value of the graph.
            is_own = known.name in inputs
            value = inputs[known.name if is_own else known.name.removesuffix("_orig")]
            tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
            found[known.name] = as_pairs(tensor)
        return found

    def _feeds(self, inputs: Mapping[str, Any]) -> dict[str, Feed]:
        return {name: _feed(tensor) for name, tensor in self.named(inputs).items()}

    def rejects(self, sizes: Mapping[str, Sized | int]) -> Rejection | None:
        """Compares dtypes, ranks and sizes with what the inputs declare. Sizes of one name must be
        one size, which ONNX Runtime wants as well."""
        named: dict[str, tuple[int, str]] = {}
        for declared in self._declared:
            value = sizes[declared.name]
            tensor = value if isinstance(value, Sized) else Sized("int64", ())
            rejection = _rejected(declared, sizes_as_pairs(tensor), named)
            if rejection is not None:
                return rejection
        return None

    def save(self, path: Path) -> None:
        if not isinstance(self.exported, str):
            self.exported.save(str(path))
            return
        import onnx

        load_onnx_proto(self.exported)  # rejects data outside of its folder
        has_data_file = Path(f"{self.exported}.data").exists()
        model = onnx.load(self.exported)
        data = f"{path.name}.data"
        onnx.save(model, str(path), save_as_external_data=has_data_file, location=data)


def _rejected(
    declared: DeclaredInput, tensor: Sized, named: dict[str, tuple[int, str]]
) -> Rejection | None:
    """What an input's declaration says against a tensor. ``named`` keeps the sizes that named
    dimensions have in this call, and where."""
    name, shape = declared.name, tensor.shape
    if declared.dtype is not None and declared.dtype != tensor.dtype:
        return reasons.OtherDtype(name, tensor.dtype, declared.dtype, "model")
    if declared.dims is None:
        return None
    if len(declared.dims) != len(shape):
        return reasons.OtherRank(name, len(shape), len(declared.dims), "model")
    for axis, (declared_size, size) in enumerate(zip(declared.dims, shape, strict=True)):
        where = f"{name}[{axis}]"
        if isinstance(declared_size, int) and declared_size != size:
            return reasons.OtherSize(where, size, declared_size, "model")
        if isinstance(declared_size, str) and declared_size.isidentifier():
            named_size, place = named.setdefault(declared_size, (size, where))
            if named_size != size:
                return reasons.UnequalNames(where, size, place, named_size, declared_size)
    return None


def _declared_by_proto(value: Any) -> DeclaredInput:
    import onnx

    tensor = value.type.tensor_type
    try:
        dtype = _dtype(onnx.TensorProto.DataType.Name(tensor.elem_type).lower())
    except ValueError:
        dtype = None
    if not tensor.HasField("shape"):
        return DeclaredInput(value.name, dtype, None)
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in tensor.shape.dim
    )
    return DeclaredInput(value.name, dtype, dims)


def _dtype(name: str) -> str | None:
    """The name that torch has for a dtype of ONNX; None if it is not declared."""
    named = {"float": "float32", "double": "float64", "undefined": None}
    return named.get(name, _FLOAT8.sub(r"\1_\2", name))


_FLOAT8 = re.compile(r"^(float8)(e\d)")
"""``float8e4m3fn`` is ``float8_e4m3fn`` in torch."""


def _feed(tensor: Any) -> Feed:
    import torch

    plain = tensor.detach().cpu().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name in NOT_OF_NUMPY:
        bits = torch.int16 if plain.element_size() == 2 else torch.uint8
        return plain.view(bits).numpy(), NOT_OF_NUMPY[name]
    return plain.numpy(), None


def _to_torch(value: Any) -> Any:
    import torch
    from torch.utils import dlpack

    if value.data_type() == "tensor(bool)":  # DLPack of ONNX Runtime has bytes in its place
        return torch.from_numpy(value.numpy().copy())
    # The tensor has the memory of the value, which the runtime does not write again.
    return dlpack.from_dlpack(value._ortvalue.to_dlpack())


CHECKS = "calltape_checks"
"""The name of the output, a boolean per assertion, and of the metadata that has their texts."""
_MAX_TEXT = 300


def check_assertions(holds: Sequence[bool], metadata: Mapping[str, str]) -> None:
    """Checks the output of a run.

    Args:
        holds: the output.
        metadata: of the model. A file may be anybody's: its texts are shown, and cut.

    Raises:
        ConditionError: an assertion does not hold.
    """
    if all(holds):
        return
    texts = _listed(metadata, CHECKS)
    failed = [place for place, one in enumerate(holds) if not one]
    messages = [str(texts[i]) for i in failed if i < len(texts)]
    # Some assertions are there twice, and only one says where in the model it comes from.
    messages.sort(key=lambda text: not says_where(text))
    text = messages[0][:_MAX_TEXT] if messages else f"number {failed[0]}"
    raise ConditionError(failed_text(text))


COMPLEX_OUTPUTS = "calltape_complex"
"""The name of the metadata that lists the outputs that are complex in the program."""
_PARTS = {"complex64": "float32", "complex128": "float64"}


def as_pairs(tensor: Any) -> Any:
    """A tensor as the model takes it: a complex one with its parts as a last dimension."""
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def sizes_as_pairs(tensor: Sized) -> Sized:
    """Dtype and sizes of :func:`as_pairs`."""
    part = _PARTS.get(tensor.dtype)
    return tensor if part is None else Sized(part, (*tensor.shape, 2))


def complex_outputs(metadata: Mapping[str, str]) -> frozenset[str]:
    """The names of the outputs that are complex in the program.

    Args:
        metadata: of the model. A file may be anybody's: other content names no output.
    """
    return frozenset(name for name in _listed(metadata, COMPLEX_OUTPUTS) if isinstance(name, str))


def _listed(metadata: Mapping[str, str], name: str) -> list[Any]:
    try:
        found = json.loads(metadata.get(name, "[]"))
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def from_pairs(tensor: Any) -> Any:
    """A complex tensor of pairs of floats. Another tensor stays as it is."""
    import torch

    is_pairs = tensor.dtype in (torch.float32, torch.float64) and tensor.shape[-1:] == (2,)
    return torch.view_as_complex(tensor.contiguous()) if is_pairs else tensor
