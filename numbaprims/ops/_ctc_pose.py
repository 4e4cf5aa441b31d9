"""What calls of CTC pose: their checks, the table of their integers, their primitives."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dtypes import DTYPES
from numbaprims.ops._ctc_problem import CtcProblem, Lies
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, _write, integer, word
from numbaprims.reference import ctc as reference
from numbaprims.shapes import element_strides

REDUCTIONS = ("none", "mean", "sum")
#: Labels in the table are padded to a multiple of this.
PAD = 16


class Options(NamedTuple):
    """What a call says beside its arrays."""

    way: str
    blank: int
    labels: int = 0
    """Columns of the table."""
    wide: bool = False
    """Whether losses are kept in the type that is computed in, for a sum of them."""
    mean: bool = False
    zero_infinity: bool = False
    logits: bool = False
    width: int = 1
    paths: int = 1


def integers(values: Any, name: str) -> np.ndarray:
    """Integers of any library as int64 of the host."""
    if type(values) is not np.ndarray:
        values = arrays.values_of(values, name)
    if values.dtype.kind not in "iu" and values.size:
        raise TypeError(f"{name} is of {values.dtype}; it must be integers")
    return np.ascontiguousarray(values, np.int64)


def _beyond(values: np.ndarray, most: int) -> bool:
    """Whether one of them is not from 0 to `most`: without its sign what is negative is larger too."""
    return bool(np.maximum.reduce(values.view(np.uint64), axis=None, initial=0) > most)


def sizes(log_probs: Any, blank: Any) -> Any:
    """(steps, batch, classes) of checked log-probabilities."""
    x = arrays.enter(log_probs, "log_probs")[0]
    if x.ndim != 3:
        raise ValueError(f"log_probs is a {arrays.describe(log_probs)}; it must be (steps, batch, classes)")
    if not 0 <= integer(blank, "blank") < x.shape[2]:
        raise ValueError(
            f"blank is {blank} and log_probs is a {arrays.describe(log_probs)}; it must be one of its classes"
        )
    return x.shape


def lengths_of(values: Any, name: str, batch: int, most: int, of: str) -> np.ndarray:
    """(batch,) numbers from 0 to `most`."""
    found = integers(values, name)
    if found.shape != (batch,):
        raise ValueError(f"{name} has shape {found.shape}; for a batch of {batch} it must be ({batch},)")
    if _beyond(found, most):
        at = int(np.flatnonzero((found < 0) | (found > most))[0])
        raise ValueError(f"{name}[{at}] is {found[at]}; with {most} {of} it must be 0 to {most}")
    return found


def table_of(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: Any) -> tuple[Any, int]:
    """(the table of a loss, its columns of labels)."""
    steps, batch, classes = sizes(log_probs, blank)
    given = integers(targets, "targets")
    if given.ndim not in (1, 2) or (given.ndim == 2 and len(given) != batch):
        raise ValueError(f"targets has shape {given.shape}; it must be ({batch}, labels), or all labels in a row")
    inputs = lengths_of(input_lengths, "input_lengths", batch, steps, "steps")
    counts = lengths_of(target_lengths, "target_lengths", batch, given.shape[-1], "labels")
    most = int(np.maximum.reduce(counts, initial=0))
    columns = max(PAD, -(-most // PAD) * PAD)
    table = np.full(batch * (2 + columns), blank, np.int64)
    table[:batch], table[batch : 2 * batch] = inputs, counts
    own = np.arange(most) < counts[:, None]
    if given.ndim == 2:
        flat = given[:, :most][own]
    elif np.count_nonzero(own) != len(given):
        raise ValueError(f"targets has {len(given)} labels; target_lengths say {counts.sum()}")
    else:
        flat = given
    if _beyond(flat, classes - 1) or np.logical_or.reduce(flat == blank):
        wrong = flat[(flat < 0) | (flat >= classes) | (flat == blank)][0]
        raise ValueError(
            f"targets holds {wrong}, which is {'blank' if wrong == blank else f'no class of 0 to {classes - 1}'}"
        )
    table[2 * batch :].reshape(batch, columns)[:, :most][own] = flat
    return beside(log_probs, table), columns


def beside(x: Any, made: np.ndarray) -> Any:
    """Integers in the library and on the device of x."""
    if isinstance(x, np.ndarray):
        return made
    found, storage = arrays.enter(x, "log_probs")[2].empty(made.shape, "i64")
    _write(storage, made)
    return found


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    o, x, dtype = Options(*options), given.storages[0], given.dtypes[0]
    assert dtype is not None
    steps, batch, classes = x.shape
    wide = DTYPES[dtype].accumulate
    dy = 0
    if o.way == "loss":
        results = [Result((batch,), wide if o.wide else dtype)]
    elif o.way == "backward":
        results = [Result(x.shape, dtype, like=0)]
        shape = given.storages[1].shape
        if shape not in ((), (batch,)):
            raise ValueError(f"{given.words(1)}; the losses have shape ({batch},)")
        dy = element_strides(given.storages[1])[0] if shape and batch > 1 else 0
    else:
        rows = (batch,) if o.way == "greedy" else (batch, o.paths)
        results = [Result((*rows, steps), "i64"), Result(rows, "i64"), Result(rows, dtype)]

    def problem(made: Sequence[Any]) -> CtcProblem:
        x_t, x_n, x_c = element_strides(x)
        lies = Lies((x_t, x_n, x_c), element_strides(made[0]), dy)
        ends = [lies.x[2], lies.out[2]] if o.way == "backward" else [lies.x[2]]
        order = "rows" if classes == 1 or all(step == 1 for step in ends) else "strided"
        return CtcProblem(
            o.way, dtype, steps, batch, classes, o.labels, o.logits, o.width, o.paths, order, o.blank, o.mean,
            o.zero_infinity, o.wide, lies,
        )  # fmt: skip

    return Pose(tuple(results), problem)


def _define(values: Any, options: Any, numbers: Any) -> Any:
    o = Options(*options)
    x, table = values[0], values[-1].astype(np.int64)
    batch = x.shape[1]
    inputs = table[:batch]
    if o.way in ("greedy", "beam"):
        return _decoded(o, x, inputs)
    counts, rows = table[batch : 2 * batch], table[2 * batch :].reshape(batch, -1)
    pairs = reference.each(x, inputs.tolist(), [row[:count] for row, count in zip(rows, counts, strict=True)])
    factors = 1.0 / (np.maximum(counts, 1) * batch) if o.mean else np.ones(batch)
    if o.way == "loss":
        losses = np.array([reference.loss(*pair, o.blank) for pair in pairs], np.float64)
        return np.where(o.zero_infinity & (losses == np.inf), 0.0, losses) * factors
    dx = np.zeros(x.shape)
    for n, (y, labels) in enumerate(pairs):
        if reference.loss(y, labels, o.blank) != np.inf:
            p = reference.posteriors(y, labels, o.blank)
            dx[: len(y), n] = ((np.exp(y) if o.logits else 0.0) - p) * (
                np.broadcast_to(values[1], batch)[n] * factors[n]
            )
    return dx


def _decoded(o: Options, x: np.ndarray, inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    steps, batch, _ = x.shape
    labels, lengths = np.full((batch, o.paths, steps), o.blank), np.zeros((batch, o.paths))
    scores = np.full((batch, o.paths), -np.inf)
    for n, length in enumerate(inputs):
        y = x[:length, n]
        found = [reference.greedy(y, o.blank)] if o.way == "greedy" else reference.beams(y, o.blank, o.width)
        for at, (sequence, score) in enumerate(found[: o.paths]):
            labels[n, at, : len(sequence)], lengths[n, at], scores[n, at] = sequence, len(sequence), score
    if o.way == "greedy":
        return labels[:, 0], lengths[:, 0], scores[:, 0]
    return labels, lengths, scores


def _primitive(name: str, *more: str) -> Primitive:
    return Primitive(
        name, ("log_probs", *more, "table"), _pose, _define, others=("table",), required=2 + len(more)
    )  # fmt: skip


_LOSS, _BACKWARD = _primitive("ctc_loss"), _primitive("ctc_loss_backward", "dy")
_GREEDY, _BEAM = _primitive("ctc_greedy_decode"), _primitive("ctc_beam_search_decode")


def run(given: tuple[Any, ...], options: Options, out: Any = None) -> Any:
    """A call of the primitive of its way."""
    made = {"loss": _LOSS, "backward": _BACKWARD, "greedy": _GREEDY, "beam": _BEAM}[options.way]
    way, blank, *others, width, paths = options
    # of NumPy's integers the sizes of memory would wrap round
    blank, width, paths = index(blank), index(width), index(paths)
    return made.run(given, (way, blank, *others, width, paths), (), out)


def reduction_of(reduction: Any) -> str:
    """The reduction, if it is one."""
    return word(reduction, "reduction", REDUCTIONS)
