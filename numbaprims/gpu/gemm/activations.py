"""Activations at the end of a product.

A kind that is a few instructions is an arm of one run-time switch (`formulas.CHEAP`): all threads take the same arm,
so it costs a branch for each vector of sums and no kernel of its own.  A kind with mathematics in it (gelu, silu,
tanh, ...) is part of the kernel's spec, compiled when it is first asked for.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.activation.formulas import CHEAP
from numbaprims.gpu.activation.kernels import SWITCH, forward_of
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.jit import device_function, types


def activation_code(kind: str) -> int:
    """The switch's number for a kind; 0, which is not looked at, where the kind is in the code."""
    return CHEAP.index(kind) if kind in CHEAP else 0


def compiled_kind(kind: str) -> str:
    """What a kernel's spec says of an activation: `SWITCH`, or the kind itself."""
    return SWITCH if kind in CHEAP else kind


@functools.cache
def make_activation(kind: str, acc: str, count: int) -> Any:
    """A device function ``activate(code, x, p0, p1, p2)`` on a local array of `count` sums, in place; `kind` as
    `compiled_kind` gives it."""
    if acc == "i32":
        relu, I32 = CHEAP.index("relu"), types.int32

        @device_function
        def activate_integers(code, x, p0, p1, p2):  # type: ignore[no-untyped-def]
            if code == relu:  # integer products take no other
                for e in range(count):
                    x[e] = max(x[e], I32(0))

        return activate_integers

    as_tuple, fill = TUPLES[count]
    cheap = kind == SWITCH

    @device_function
    def activate(code, x, p0, p1, p2):  # type: ignore[no-untyped-def]
        # 0 is the identity
        if not cheap or code != 0:
            fill(x, forward_of(kind, code, as_tuple(x), p0, p1, p2))

    return activate
