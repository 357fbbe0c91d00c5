"""Operators of torchvision, whose results only values count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.analyzer.exported import assert_as_module, call, made
from tests.analyzer.exporting.models import Model, t

vision = pytest.importorskip("torchvision")


class Keeping(Model):
    """Keeps the boxes that no better one overlaps."""

    def forward(self, boxes, scores):
        return scores[vision.ops.nms(boxes, scores, 0.5)] * 2


def _boxes(count: int, step: float) -> torch.Tensor:
    begin = torch.arange(count)[:, None] * step
    return torch.cat([begin, begin, begin + 10, begin + 10], 1).float()


def test_one_box_is_kept_although_every_recorded_call_kept_some(tmp_path: Path) -> None:
    programs = made(tmp_path, Keeping(), [call(_boxes(n, 20), t(n)) for n in (4, 6, 9)])
    assert len(programs) == 1
    assert_as_module(programs, Keeping(), [call(_boxes(5, 0.1), t(5)), call(_boxes(7, 4), t(7))])


class Padded(Model):
    """Pads a picture to a multiple of 32 as detectors do, and looks at it in strides of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 1, 3, stride=2, padding=1)

    def forward(self, x, boxes):
        high, wide = (int(float(-(-float(n) // 32.0)) * 32.0) for n in x.shape[2:])
        padded = x.new_zeros((x.shape[0], 1, high, wide))
        padded[:, :, : x.shape[2], : x.shape[3]].copy_(x)
        maps = self.body(padded)
        scale = 2 ** float(torch.tensor(float(maps.shape[2]) / float(high)).log2().round())
        found = boxes[boxes[:, 3] > 4]
        if found.numel() == 0:
            return found
        return vision.ops.roi_align(maps, [found], 2, spatial_scale=scale).flatten(1)


@pytest.mark.integration
def test_floats_of_sizes_are_open(tmp_path: Path) -> None:
    model, boxes = Padded(), torch.tensor([[1.0, 2, 9, 11], [4, 4, 8, 3], [0, 3, 12, 14]])
    calls = [call(t(1, 1, n, n + 7), boxes) for n in (40, 52, 71)]
    programs = made(tmp_path, model, calls)
    assert len(programs) == 1
    assert_as_module(programs, model, [call(t(1, 1, 66, 50), boxes), call(t(1, 1, 40, 36), -boxes)])


class Suppressed(Model):
    """Keeps boxes above a threshold, per picture: two counts that only values tell."""

    def forward(self, boxes, scores):
        image, at = torch.where(scores > 0.5)
        keep = vision.ops.batched_nms(boxes[image, at], scores[image, at], image, 0.5)
        return image[keep], boxes[image, at][keep]


def _pictures(images: int, count: int) -> Any:
    generator = torch.Generator().manual_seed(100 * images + count)
    corner = torch.rand(images, count, 2, generator=generator) * 50
    far = corner + 10 * torch.rand(images, count, 2, generator=generator)
    return call(torch.cat([corner, far], -1), torch.rand(images, count, generator=generator))


@pytest.mark.integration
def test_counts_of_the_traced_call_are_no_constants_of_an_onnx_model(tmp_path: Path) -> None:
    model = Suppressed()
    calls = [_pictures(2, 9), _pictures(3, 14), _pictures(2, 20)]
    programs = made(tmp_path, model, calls, to="onnx")
    assert len(programs) == 1
    assert_as_module(programs, model, [_pictures(4, 30), _pictures(1, 9), _pictures(2, 11)])
    (program,) = programs.values()
    shapes = [one.type.tensor_type.shape for one in program.exported.model_proto.graph.value_info]
    # Only constants have a shape; the first picture had 9 boxes.
    assert not [dim for shape in shapes for dim in shape.dim if dim.dim_param or dim.dim_value > 2]
