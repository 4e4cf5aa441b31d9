"""From a solver's kernels to a launcher: what depends on where the arrays of one call begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu import driver as devices
from numbaprims.gpu.gemm.arguments import OFFSETS, Batch, batch_of, batch_steps, common_ints, out_vectors
from numbaprims.gpu.launch import Program


class Pointers(NamedTuple):
    """The last four bits of the pointers of one call; 0 where an array is not there."""

    out: int
    a: int
    b: int
    c: int


ALIGNED = Pointers(0, 0, 0, 0)
Common = Callable[[tuple[Any, ...], tuple[float, ...]], tuple[Any, ...]]
_tables: dict[Any, Any] = {}
"""Offsets of batches on devices, never freed: a CUDA graph holds their addresses, and may outlive the launcher that it
was captured from."""


def _table(problem: Any, batch: Batch, device: int) -> int:
    """The address of a batch's offsets; 0 if it needs none."""
    if batch.offsets is None:
        return 0
    from numbaprims.gpu.memory import to_device

    key = (devices.current(device), problem.batch_shape, problem.strides.batch)
    if key not in _tables:
        _tables.setdefault(key, to_device(batch.offsets, device=device))
    return int(_tables[key].pointer)


def common_values(problem: Any, batch: Batch, flags: int, table: int) -> Common:
    """The values of the common parameters (see arguments.py) of a launch."""
    ints = (*common_ints(problem, batch), flags | (OFFSETS if table else 0))

    def values(arrays: tuple[Any, ...], floats: tuple[float, ...]) -> tuple[Any, ...]:
        out, a, b, c, bias = arrays[:5]
        return (
            out.pointer, a.pointer, b.pointer, 0 if c is None else c.pointer, 0 if bias is None else bias.pointer,
            table, *ints, *floats[:5],
        )  # fmt: skip

    return values


def make_gemm_launcher(problem: Any, make_program: Callable[[Pointers, Common], Program]) -> Callable[..., None]:
    """A launcher that looks where the arrays begin, and makes the kernels for each alignment that it meets.

    A view may begin at any element, and what is copied 16 bytes at a time must begin at a multiple of 16: it is the
    pointers' last bits that decide, and in most programs they are always 0.
    """
    batch = batch_of(problem)
    known: dict[Any, Callable[..., None]] = {}

    def program(pointers: Pointers = ALIGNED, table: int = 0) -> Program:
        flags = out_vectors(problem, pointers.out, pointers.c)
        return make_program(pointers, common_values(problem, batch, flags, table))

    def make(key: tuple[int, ...]) -> Callable[..., None]:
        table = _table(problem, batch, key[0])
        return known.setdefault(key, program(Pointers(*key[1:]), table).launcher())

    def launch(  # type: ignore[no-untyped-def]
        a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0
    ):
        key = (
            a0.origin.index, a0.pointer & 15, a1.pointer & 15, a2.pointer & 15, 0 if a3 is None else a3.pointer & 15,
        )  # fmt: skip
        found = known.get(key)
        if found is None:
            found = make(key)
        found(a0, a1, a2, a3, a4, a5, a6, f0, f1, f2, f3, f4, f5)

    launch.program = program  # type: ignore[attr-defined]
    return launch


def operand_steps(problem: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """For A and B what `loads.way_of` asks beside the pointer: dtype, strides of outer and k, their lengths, batch."""
    s = problem.strides
    return (
        (problem.a_dtype, s.a[0], s.a[1], problem.m, problem.k, batch_steps(problem, 0)),
        (problem.b_dtype, s.b[1], s.b[0], problem.n, problem.k, batch_steps(problem, 1)),
    )


def waste(dtype: str, way: str) -> float:
    """Bytes moved for each wanted: a 32-byte sector for every element where neither dimension has unit stride."""
    return 32 / DTYPES[dtype].itemsize if way in ("s", "g") else 1.0
