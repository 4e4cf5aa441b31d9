"""What the kernels of a convolution take, and how a problem becomes it.

Every kernel of the folder begins with the same parameters, in this order; it adds its own after them::

    def kernel(
        out, first, second, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        ...
    ):

`first` and `second` are x and w forward, dy and w for the data gradient, dy and x for the weight's.  They are kept in
the kernel's constant bank: reading one costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.gemm.activations import activation_code
from numbaprims.gpu.gemm.arguments import bias_dtype, scalar_type
from numbaprims.gpu.jit import STORAGE, types

#: Sizes of a kernel are int32, with room for a tile behind them; a larger dimension is the naive solver's.
LARGEST = 2**31 - 4096


def pointer(dtype: str) -> Any:
    """The type of a pointer to elements of a dtype."""
    return types.CPointer(STORAGE[dtype])


def common_types(first: str, second: str, out: str) -> tuple[Any, ...]:
    """The types of the common parameters, for a kernel's signature."""
    acc = DTYPES[first].accumulate
    return (
        pointer(out), pointer(first), pointer(second), pointer(out), pointer(bias_dtype(first)),
        types.int32, types.int32, types.int64, types.int32, *(scalar_type(acc),) * 5,
    )  # fmt: skip


Common = Callable[[tuple[Any, ...], tuple[float, ...]], tuple[Any, ...]]


def common_values(problem: Any) -> Common:
    """The values of the common parameters of a launch."""
    ints = (
        int(problem.has_c), int(problem.bias), problem.strides.bias, activation_code(problem.activation.kind)
    )  # fmt: skip

    def values(arrays: tuple[Any, ...], floats: tuple[float, ...]) -> tuple[Any, ...]:
        out, first, second, c, bias = arrays[:5]
        return (
            out.pointer, first.pointer, second.pointer, 0 if c is None else c.pointer,
            0 if bias is None else bias.pointer, *ints, *floats[:5],
        )  # fmt: skip

    return values


def operand_dtypes(problem: Any) -> tuple[str, str, str]:
    """The types of first, second and out."""
    p = problem
    return {
        "forward": (p.x_dtype, p.w_dtype, p.y_dtype), "data": (p.y_dtype, p.w_dtype, p.x_dtype),
        "weight": (p.y_dtype, p.x_dtype, p.w_dtype), "bias": (p.y_dtype, p.y_dtype, p.w_dtype),
    }[p.direction]  # fmt: skip
