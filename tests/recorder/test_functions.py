"""Which object a function is recorded on."""

from __future__ import annotations

import math
import os.path

import pytest

from calltape_recorder.host.target import owner_of
from calltape_schema import TapeError


class Kernel:
    def double(self, x: int) -> int:
        return 2 * x


def test_the_owner_of_functions_and_names() -> None:
    kernel = Kernel()
    assert owner_of(kernel.double) == (kernel, "double")
    assert owner_of(kernel) == (kernel, None)
    assert owner_of("math:sqrt") == (math, "sqrt")
    assert owner_of(math.sqrt) == (math, "sqrt")
    assert owner_of("os:path.join") == (os.path, "join")
    assert owner_of("math:pi") == (math.pi, None)
    assert owner_of("math") == (math, None)


@pytest.mark.parametrize(
    "target", [lambda x: x, "math:nothing", "no_such_module:f", "", ":", "math:", "a b:c"]
)
def test_what_has_no_owner(target: object) -> None:
    with pytest.raises(TapeError) as caught:
        owner_of(target, "a.tape")
    assert caught.value.kind == "usage"
