"""The problem that a matrix product poses: what is checked, and what the dispatcher is told."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.ops import examples
from numbaprims.ops.epilogue import Activation


class Strides(NamedTuple):
    """Exact strides of one call, in elements; what `bind` needs beyond the problem."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    out: tuple[int, ...]
    c: tuple[int, ...]
    bias: int
    batch: tuple[tuple[int, ...], ...]
    """Strides of the batch dimensions of a, b, out, c."""
    first: tuple[int, int, int, int] = (0, 0, 0, 0)
    """The element at which the first product's a, b, out and c begin."""


@dataclasses.dataclass(frozen=True)
class GemmProblem(Problem):
    """out = activation(alpha op(A) op(B) + beta C + bias), A (m, k), B (k, n), once for each of `batch`."""

    stem: ClassVar[str] = "gemm"
    m: int
    n: int
    k: int
    batch: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    a_order: str
    """"row" (k is contiguous), "column" (m is contiguous) or "strided"; transposition is a change of order."""
    b_order: str
    out_order: str
    has_c: bool
    bias: str
    """"none", "n" (one value a column) or "m" (one value a row)."""
    activation: Activation
    scaled: bool
    """Whether alpha is anything but 1, which costs one more pass over the block of sums in the caches."""
    batch_shape: tuple[int, ...] = dataclasses.field(compare=False)
    strides: Strides = dataclasses.field(compare=False)

    @property
    def accumulate(self) -> str:
        """The type in which products are summed."""
        return arrays.DTYPES[self.a_dtype].accumulate

    @property
    def requantized(self) -> bool:
        """Whether sums of integers are scaled to 8 bits: by alpha, or a factor for each column, beta added."""
        return self.out_dtype in ("i8", "u8")

    @property
    def c_dtype(self) -> str:
        return "i32" if self.requantized else self.out_dtype

    @property
    def ends(self) -> bool:
        """Whether something is to be done once the sums are complete."""
        return self.scaled or self.has_c or self.bias != "none" or self.activation.kind != "identity"

    @property
    def empty(self) -> bool:
        return 0 in (self.batch, self.m, self.n)

    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    def bytes_moved(self) -> float:
        size = {name: arrays.DTYPES[name].itemsize for name in (self.a_dtype, self.b_dtype, self.out_dtype)}
        a = self.m * self.k * size[self.a_dtype]
        b = self.k * self.n * size[self.b_dtype]
        size[self.c_dtype] = arrays.DTYPES[self.c_dtype].itemsize
        out = self.m * self.n * (size[self.out_dtype] + size[self.c_dtype] * self.has_c)
        return float(self.batch * (a + b + out))

    def roundings(self) -> int:
        return 0 if self.accumulate == "i32" else self.k + 4  # alpha, beta, the bias, the activation

    def bench_command(self) -> str:
        if self.requantized:
            return f"numbaprims bench quantize --kind gemm{'' if self.m == 1 else 64} --shapes {self.k}x{self.n}"
        words = [f"numbaprims bench gemm --shapes {self.m}x{self.n}x{self.k}"]
        dtype = {"i8": "int8", "u8": "int8"}.get(self.a_dtype, self.a_dtype)
        words.append(f"--dtype {dtype}")
        if self.batch > 1:
            words.append(f"--batch {self.batch}")
        if self.a_order == "column":
            words.append("--trans-a")
        if self.b_order == "column":
            words.append("--trans-b")
        if self.bias != "none":
            words.append("--bias")
        if self.activation.kind != "identity":
            words.append(f"--activation {self.activation.kind}")
        return " ".join(words)


def example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    p, made = problem, {}
    lead = (p.batch,) if p.batch > 1 else ()
    if p.has_c:
        made["c"], made["beta"] = examples.array((*lead, p.m, p.n), p.out_dtype), 1.0
    if p.bias != "none":
        dtype = "i32" if arrays.DTYPES[p.a_dtype].accumulate == "i32" else p.a_dtype
        made["bias"] = examples.array((p.n,) if p.bias == "n" else (p.m, 1), dtype)
    if p.scaled:
        made["alpha"] = 0.5
    if _order(p.n, 1, p.m, p.n) != p.out_order:
        made["out"] = examples.matrix(p.m, p.n, p.out_dtype, p.out_order, _order, lead)
    args = (
        examples.matrix(p.m, p.k, p.a_dtype, p.a_order, _order, lead),
        examples.matrix(p.k, p.n, p.b_dtype, p.b_order, _order, lead),
    )
    if p.out_dtype in ("i8", "u8"):  # the fields of a stored problem
        zero = np.dtype(arrays.LONG_NAMES[p.out_dtype]).type(3)
        bias, out = made.get("bias"), made.get("out")
        return "qlinear_gemm", (args[0], 0.5, 1, args[1], 0.25, int(p.has_c), 0.5, zero, bias), {"out": out}
    return "gemm", args, {**made, "activation": examples.fused(p.activation.kind), "out_dtype": p.out_dtype}


def _order(row_stride: int, column_stride: int, rows: int, columns: int) -> str:
    """How a (rows, columns) matrix lies in memory; a dimension of one element fits any order."""
    if column_stride == 1 or columns == 1:
        return "row"
    if row_stride == 1 or rows == 1:
        return "column"
    return "strided"
