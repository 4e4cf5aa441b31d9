"""What calls of recurrent networks pose: their checks, the shapes of their results, their primitives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy import ndarray

from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.dtypes import DTYPES
from numbaprims.ops import _rnn_definition as definition
from numbaprims.ops._rnn_problem import (
    B_GATES,
    B_PARTS,
    B_RANDOM,
    B_SAVED,
    B_STATES,
    B_TABLES,
    B_X,
    C_N,
    DC0,
    DC_N,
    DH0,
    DH_N,
    DX,
    DY,
    GATES,
    GATES_SAVED,
    H_N,
    PART,
    SAVED,
    STATES,
    W_HH,
    W_HR,
    W_IH,
    Lies,
    RnnProblem,
    X,
    Y,
    table_parts,
)  # fmt: skip
from numbaprims.ops.primitive import Given, Pose, Primitive, Result
from numbaprims.shapes import element_strides

_PART = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr", "peephole")


class Options(NamedTuple):
    """What a call says beside its arrays."""

    cell: str
    layers: int
    directions: int
    batch_first: bool
    reverse: bool
    merge: str
    reset_after: bool
    skip_input: bool
    clipped: bool
    dropout: bool
    way: str
    packed: tuple[int, int] | None
    """(steps, batch) where x is packed rows."""
    weights: str = "given"


class _Sizes:
    """What x and the weights of a call say of sizes."""

    def __init__(self, given: Given, o: Options, x_at: int, tables: Any, weights: list[Any]) -> None:
        x = given.storages[x_at]
        if x.ndim != (2 if o.packed else 3):
            order = "(batch, time, inputs)" if o.batch_first else "(time, batch, inputs)"
            raise ValueError(f"{given.words(x_at)}; it must be {'packed rows (rows, inputs)' if o.packed else order}")
        self.options = o
        self.steps, self.batch = _steps_and_batch(o, x.shape)
        self.inputs = x.shape[-1]
        self.rows = self.steps * self.batch
        if tables is not None:
            fixed = table_parts(0, self.steps, self.batch)[""]
            self.rows = (tables.shape[0] - fixed) // 3
        self.gates = GATES[o.cell]
        self.hidden = weights[W_HH].shape[0] // self.gates
        self.state = weights[W_HH].shape[1]
        self.projected = self.state if weights[W_HR] is not None else 0
        wanted = self.hidden if o.skip_input else weights[W_IH].shape[1]
        if self.inputs != wanted:
            raise ValueError(f"{given.words(x_at)}; the weights take {wanted} inputs")
        self.width = self.state * (o.directions if o.merge == "concat" else 1)
        self.parts = o.layers * o.directions
        wide = self.gates * self.hidden
        for at in range(len(weights)):
            inputs = self.width if at >= PART * o.directions else self.inputs
            shapes = (wide, inputs), (wide, self.state), (wide,), (wide,), (self.state, self.hidden), (3, self.hidden)
            self.check(given, at + len(given.storages) - len(weights), shapes[at % PART])

    def like(self, width: int) -> tuple[int, ...]:
        """The shape of x, y and their gradients."""
        if self.options.packed:
            return (self.rows, width)
        both = (self.batch, self.steps) if self.options.batch_first else (self.steps, self.batch)
        return (*both, width)

    def lies(self, array: Any) -> tuple[int, int, int]:
        """Strides over (time, batch, features)."""
        *outer, along = element_strides(array)
        time, each = (outer * 2)[:2] if self.options.packed else outer[::-1] if self.options.batch_first else outer
        return time, each, along

    def check(self, given: Given, at: int, shape: tuple[int, ...], anyhow: bool = False) -> None:
        """Raise unless an array that is given has a shape, and unless it may lie `anyhow`, its elements follow one
        another."""
        array = given.storages[at]
        if array is not None and array.shape != shape:
            raise ValueError(f"{given.words(at)}; it must have shape {shape}")
        if array is not None and not anyhow and not _contiguous(array):
            raise ValueError(f"{given.words(at)}; it must be contiguous")

    def states(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of h and of c."""
        return (self.parts, self.batch, self.state), (self.parts, self.batch, self.hidden)

    def order(self, lies: tuple[int, int, int]) -> str:
        if self.options.packed:
            return "packed"
        time, each, _ = lies
        if self.steps == 1 or self.batch == 1 or time == self.batch * each:
            return "time"
        return "batch" if each == self.steps * time else "strided"

    def kept(self) -> dict[int, tuple[tuple[int, ...], bool]]:
        """What training keeps: array of a launch -> (shape, whether it is in the type that is computed in)."""
        o = self.options
        lead = (o.layers, o.directions)
        found: dict[int, tuple[tuple[int, ...], bool]] = {}
        if self.gates > 1:
            found[GATES_SAVED] = ((*lead, self.rows, self.gates * self.hidden), True)
        if o.cell == "lstm" or (o.cell == "gru" and o.reset_after):
            found[SAVED] = ((*lead, self.batch + self.rows, self.hidden), True)
        found[STATES] = ((o.layers, self.batch + self.rows, o.directions * self.state), False)
        return found

    def problem(self, dtype: str, lengths: bool, lies: Lies) -> RnnProblem:
        o = self.options
        return RnnProblem(
            o.cell, dtype, self.steps, self.batch, self.rows, self.inputs, self.hidden, self.projected, o.layers,
            o.directions, o.reverse, o.merge, lengths, o.reset_after, o.skip_input, o.clipped, o.dropout, o.way,
            self.order(lies.x), o.weights, lies,
        )  # fmt: skip


def _steps_and_batch(o: Options, shape: tuple[int, ...]) -> tuple[int, int]:
    if o.packed:
        return o.packed
    return (shape[1], shape[0]) if o.batch_first else (shape[0], shape[1])


def _step(array: Any) -> int:
    """From one feature to the next; 1 where there is one."""
    return int(element_strides(array)[-1]) if array.shape[-1] > 1 else 1


def _contiguous(array: Any) -> bool:
    if 0 in array.shape:
        return True
    size = 1
    for n, step in zip(array.shape[::-1], element_strides(array)[::-1], strict=True):
        if n > 1 and step != size:
            return False
        size *= n
    return True


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    o = Options(*options)
    x, _, _, tables, _, _, *weights = given.storages
    sizes, dtype = _Sizes(given, o, 0, tables, weights), given.dtypes[0]
    assert dtype is not None
    h, c = sizes.states()
    sizes.check(given, 1, h)
    sizes.check(given, 2, c)
    results, slots = [Result(sizes.like(sizes.width), dtype), Result(h, dtype)], [Y, H_N]
    if o.cell == "lstm":
        results.append(Result(c, dtype))
        slots.append(C_N)
    if o.way == "train":
        for number, (shape, wide) in sizes.kept().items():
            results.append(Result(shape, DTYPES[dtype].accumulate if wide else dtype))
            slots.append(number)
    slots += [X + at for at, array in enumerate(given.storages) if array is not None]

    def problem(made: Sequence[Any]) -> RnnProblem:
        if _step(made[0]) != 1 and (not isinstance(made[0], ndarray) or registry.device_of(arrays.NUMPY) != "cpu"):
            raise ValueError(f"out is a {arrays.describe(made[0])}; on a GPU its last dimension must be contiguous")
        lies = Lies(sizes.lies(x), (*sizes.lies(made[0])[:2], _step(made[0])), given=tuple(slots))
        return sizes.problem(dtype, tables is not None, lies)

    return Pose(tuple(results), problem, tuple(slots))


def _pose_backward(given: Given, options: tuple[Any, ...]) -> Pose:
    o = Options(*options)
    x, dy, _, _, *kept, tables, _ = given.storages[:9]
    weights = list(given.storages[9:])
    sizes, dtype = _Sizes(given, o, 0, tables, weights), given.dtypes[0]
    assert dtype is not None
    h, c = sizes.states()
    sizes.check(given, 1, sizes.like(sizes.width), anyhow=True)
    sizes.check(given, 2, h)
    sizes.check(given, 3, c)
    for at, number in enumerate((GATES_SAVED, SAVED, STATES)):
        if kept[at] is not None:
            sizes.check(given, 4 + at, sizes.kept()[number][0])
    results, slots = [Result(x.shape, dtype), Result(h, dtype)], [DX, DH0]
    if o.cell == "lstm":
        results.append(Result(c, dtype))
        slots.append(DC0)
    first = B_PARTS + len(weights)
    for at, weight in enumerate(weights):
        if weight is not None:
            results.append(Result(weight.shape, dtype))
            slots.append(first + at)
    places = (
        B_X,
        DY,
        DH_N,
        DC_N,
        B_GATES,
        B_SAVED,
        B_STATES,
        B_TABLES,
        B_RANDOM,
        *range(B_PARTS, B_PARTS + len(weights)),
    )
    slots += [place for place, array in zip(places, given.storages, strict=True) if array is not None]

    def problem(made: Sequence[Any]) -> RnnProblem:
        y = (0, 0, 0) if dy is None else sizes.lies(dy)
        lies = Lies(sizes.lies(x), (*sizes.lies(made[0])[:2], 1), y, tuple(slots))
        return sizes.problem(dtype, tables is not None, lies)

    return Pose(tuple(results), problem, tuple(slots))


def _names(parts: int) -> list[str]:
    return [f"{name} of part {part}" for part in range(parts) for name in _PART]


@functools.cache
def forward_of(parts: int) -> Primitive:
    """Of networks with so many layers times directions."""
    others = ("lengths", "random", "prepared")
    return Primitive("rnn", ("x", "h0", "c0", *others, *_names(parts)), _pose, _define, others=others)


@functools.cache
def backward_of(parts: int) -> Primitive:
    names = ("x", "dy", "dh_n", "dc_n", "gates", "saved", "states", "lengths", "random", *_names(parts))
    others = ("gates", "saved", "lengths", "random")
    return Primitive("rnn_backward", names, _pose_backward, _define_backward, others=others)


def _define(values: Any, options: Any, numbers: Any) -> Any:
    return definition.forward(values, Options(*options), numbers)


def _define_backward(values: Any, options: Any, numbers: Any) -> Any:
    return definition.backward(values, Options(*options), numbers)
