"""Exports of models that people have, against bare exports of the same programs.

Each model is built from its config with random weights and recorded as its users call it. Then two
fresh processes work one after the other: one runs ``export`` on the tape. The other gives the same
arguments and dynamic shapes to ``torch.export.export`` (or ``torch.onnx.export``) itself, once per
program, and verifies nothing. Printed are the seconds of the one over those of the other, and how
much more memory the process took. On a CUDA device the memory is that of the device.

A UNet is among them if diffusers is installed, and a Llama of 1B parameters if there is a CUDA
device.

``python -m benchmarks real_sizes``, or
``python -m benchmarks.real_sizes [--to onnx] [--device cuda] [name ...]``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.report import Question, Row, table

__all__ = ["MODELS", "rows"]

_SHOWN = ("GPT-2 small", "ResNet-50", "UNet")
"""What docs/costs.md has of the models."""

_THREADS = 2
_GIB = 2**30

Target = Literal["torch", "onnx"]


@dataclass(frozen=True)
class RealModel:
    """A model of real size, and what its users call it with.

    Attributes:
        make: builds it in eval mode; the same weights each time.
        drive: makes the calls that are recorded, on the default device.
    """

    make: Callable[[], torch.nn.Module]
    drive: Callable[[Any], None]


def rows(scale: float) -> Iterator[Row]:
    """All models, for torch and for ONNX; no model is smaller with less of a ``scale``."""
    for name in MODELS:
        for to in ("torch", "onnx"):
            yield from _rows(name, to, "cuda" if torch.cuda.is_available() else "cpu")


def _rows(name: str, to: Target, device: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        tape = str(Path(folder) / "model.tape")
        in_process("record", name, to, device, tape)
        found = in_process("export", name, to, device, tape)
        bare = in_process("bare", name, to, device, tape, json.dumps(found["variants"]))
    without, ratio = f"a bare export fails: {bare.get('failure')}", ""
    memory, more_memory = "", ""
    if "failure" not in bare:
        least = bare["seconds"] + found["once"]
        more = (found["peak"] - bare["peak"]) / _GIB
        without = f"{bare['seconds']:.1f} s + {found['once']:.1f} s"
        ratio = f"{found['seconds'] / least:.2f} ×"
        memory, more_memory = f"{bare['peak'] / _GIB:.2f} GiB", f"{more:+.2f} GiB"
    what = f"{name} ({found['parameters'] / 1e6:.0f} M) to {to}"
    if device != "cpu":
        what += f" on {device}"
    question = Question.EXPORTS if name in _SHOWN else None
    yield Row(what, f"{found['seconds']:.1f} s", without, ratio, question)
    peak = f"{found['peak'] / found['bytes']:.1f} × the model's bytes"
    yield Row(f"{what}: peak memory", peak, memory, more_memory)
    yield Row(f"{what}: programs", f"{found['programs']}")
    yield Row(f"{what}: attempts", f"{found['attempts']}")
    yield Row(f"{what}: calls verified", f"{found['reproduced']} of {found['calls']}")


def in_process(*arguments: str) -> Any:
    """The JSON that this module prints in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.real_sizes", "--step", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _step(what: str, name: str, to: Target, device: str, tape: str, *more: str) -> dict[str, Any]:
    torch.set_num_threads(_THREADS)
    torch.manual_seed(0)
    chosen = MODELS[name]
    with torch.device(device):
        model = chosen.make().eval()
        if what == "record":
            return _recorded(chosen, model, tape)
    found = _exported(model, to, tape) if what == "export" else _bare(model, to, tape, *more)
    return {
        "peak": _peak_bytes(),
        **found,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(p.nbytes for p in model.parameters()),
    }


def _recorded(chosen: RealModel, model: torch.nn.Module, tape: str) -> dict[str, Any]:
    from calltape_recorder import record

    with record(model, tape), torch.no_grad():
        chosen.drive(model)
    return {}


def _exported(model: torch.nn.Module, to: Target, tape: str) -> dict[str, Any]:
    from calltape_analyzer import export, open_tape

    with open_tape(tape) as opened:
        begin = _now()
        programs = export(opened, model, to=to)
        seconds = _now() - begin
        peak = _peak_bytes()
        once = _once(opened, model, programs)
        report = programs.verify()
        return {
            "seconds": seconds,
            "once": once,
            "peak": peak,
            "programs": len(programs),
            "variants": list(programs),
            "reproduced": report.reproduced,
            "calls": len(report),
            "attempts": len(programs.attempts),
        }


def _once(tape: Any, model: torch.nn.Module, programs: Any) -> float:
    """Seconds of one run of every recorded call through the model and through its program."""
    device = next(model.parameters()).device
    begin = _now()
    with torch.no_grad():
        for call in tape.calls:
            args, kwargs = call.inputs_on(device)
            model(*args, **kwargs)
            args, kwargs = call.inputs_on(device)
            programs(*args, **kwargs)
    return _now() - begin


def _bare(model: torch.nn.Module, to: Target, tape: str, names: str) -> dict[str, Any]:
    """One export per program and nothing else, with the arguments and shapes that were found."""
    from calltape_analyzer import open_tape, register_flattening_functions

    device = next(model.parameters()).device
    with open_tape(tape) as opened:
        variants = {variant.name: variant for variant in opened.variants()}
        given = [
            (*variant.infer_arguments(device=str(device)), variant.infer_dynamic_shapes())
            for variant in (_variant(variants, name) for name in json.loads(names))
        ]
    seconds = 0.0
    with register_flattening_functions(), torch.no_grad():
        for args, kwargs, shapes in given:
            begin = _now()
            try:
                _bare_export(model, to, args, kwargs, shapes)
            except Exception as error:
                return {"failure": f"{type(error).__name__}: {error}".splitlines()[0]}
            seconds += _now() - begin
    return {"seconds": seconds}


def _bare_export(model: torch.nn.Module, to: Target, args: Any, kwargs: Any, shapes: Any) -> None:
    if to == "onnx":
        torch.onnx.export(
            model, args, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False
        )
    else:
        torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)


def _variant(variants: dict[str, Any], name: str) -> Any:
    """The variant of a program's name: ``prefill + decode`` is traced as ``decode``."""
    last = name.split(" + ")[-1]
    return variants.get(last) or next(v for n, v in variants.items() if last.startswith(n))


def _now() -> float:
    """Seconds, when all that was given to the device is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def _peak_bytes() -> int:
    """The most memory that this process ever had: of the device, if it used one."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config())


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(torch.bfloat16)


def _generate(model: Any) -> None:
    for size in ((1, 24), (2, 80), (1, 256)):
        ids = torch.randint(0, 50257, size)
        mask = torch.ones_like(ids)
        model.generate(ids, attention_mask=mask, max_new_tokens=3, pad_token_id=50256)


def _bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig())


def _encode(model: Any) -> None:
    for size in ((1, 16), (4, 64), (2, 128)):
        ids = torch.randint(0, 30522, size)
        model(input_ids=ids, attention_mask=torch.ones_like(ids))


def _resnet50() -> torch.nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig())


def _vit() -> torch.nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig())


def _see(model: Any) -> None:
    for batch in (1, 4, 2):
        model(torch.randn(batch, 3, 224, 224))


def _whisper() -> torch.nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config)


def _listen(model: Any) -> None:
    for batch in (1, 2):
        sounds = torch.randn(batch, 80, 3000)
        model.generate(sounds, max_new_tokens=4, do_sample=False)


def _t5() -> torch.nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config)


def _translate(model: Any) -> None:
    for size in ((1, 12), (2, 40), (3, 96)):
        ids = torch.randint(2, 32128, size)
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)


def _unet() -> torch.nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=32, cross_attention_dim=768, block_out_channels=(160, 320, 640, 640),
        attention_head_dim=8,
    )  # fmt: skip


def _denoise(model: Any) -> None:
    for batch, size in ((1, 32), (2, 48), (2, 32)):
        model(torch.randn(batch, 4, size, size), torch.tensor(7), torch.randn(batch, 77, 768))


MODELS: dict[str, RealModel] = {
    "GPT-2 small": RealModel(_gpt2, _generate),
    "BERT-base": RealModel(_bert, _encode),
    "ResNet-50": RealModel(_resnet50, _see),
    "ViT-B/16": RealModel(_vit, _see),
    "Whisper-base": RealModel(_whisper, _listen),
    "T5-small": RealModel(_t5, _translate),
}

if torch.cuda.is_available():
    MODELS["Llama-1B"] = RealModel(_llama, _generate)
if importlib.util.find_spec("diffusers") is not None:
    MODELS["UNet"] = RealModel(_unet, _denoise)


def _main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--step"]:
        what, name, to, device, tape, *more = arguments[1:]
        target: Target = "onnx" if to == "onnx" else "torch"
        print(json.dumps(_step(what, name, target, device, tape, *more)))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_sizes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(MODELS))
    parser.add_argument("--to", choices=("torch", "onnx"), default="torch")
    parser.add_argument("--device", default="cpu", help="cpu (the default), cuda, ...")
    options = parser.parse_args(arguments)
    names = options.names or MODELS
    print(table([row for name in names for row in _rows(name, options.to, options.device)]))


if __name__ == "__main__":
    _main(sys.argv[1:])
