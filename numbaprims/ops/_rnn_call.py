"""What calls and plans of recurrent networks make of their arguments: options, tables of lengths, arrays in rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.ops._rnn_pose import Options
from numbaprims.ops.primitive import _write, scalar, truth, word
from numbaprims.philox import word64
from numbaprims.recurrent.lengths import Lengths
from numbaprims.recurrent.weights import RnnWeights

MERGES = ("concat", "sum")


def tables_of(of: Lengths) -> np.ndarray:
    """The tables of a batch's lengths."""
    batch, steps = len(of.lengths), of.steps
    sizes = np.zeros(steps + 1, np.int64)
    sizes[: len(of.batch_sizes)] = of.batch_sizes
    offsets = np.concatenate([[0], sizes[:-1].cumsum()])
    gather = of.rows()
    time = np.repeat(np.arange(steps), sizes[:-1])
    place = np.arange(len(time)) - offsets[time]
    scatter = np.full(steps * batch, -1)
    scatter[gather] = np.arange(len(gather))
    # a state's row behind those of the start: of the step before, else the start's own
    before_0 = np.where(time > 0, batch + offsets[np.maximum(time - 1, 0)] + place, place)
    before_1 = np.where(place < sizes[time + 1], batch + offsets[time + 1] + place, place)
    ordered, places = of.lengths[of.order], np.arange(batch)
    first_0 = np.where(ordered > 0, places, -1)
    first_1 = np.where(ordered > 0, offsets[np.maximum(ordered - 1, 0)] + places, -1)
    parts = (
        gather, scatter, offsets, of.order, of.inverse, of.lengths % 2 * batch + of.inverse, before_0, before_1,
        first_0, first_1,
    )  # fmt: skip
    return np.concatenate(parts).astype(np.int64)


def tables_in(x: Any, lengths: Any, batch_sizes: Any, batch_first: bool) -> tuple[Any, tuple[int, int] | None]:
    """(the tables of lengths in x's library, (steps, batch) of packed rows)."""
    shape = tuple(getattr(x, "shape", ()))
    packed = None
    if batch_sizes is not None:
        if lengths is not None or batch_first:
            raise ValueError("batch_sizes is for packed rows, which have neither lengths nor a batch in front")
        if len(shape) != 2:
            arrays.enter(x, "x")
            raise ValueError(f"x is a {arrays.describe(x)}; with batch_sizes it must be packed rows (rows, inputs)")
        of = Lengths.from_packed(x, batch_sizes, name="x")
        packed = (of.steps, len(of.lengths))
    elif len(shape) != 3:
        raise ValueError(f"x is a {arrays.describe(x)}; with lengths it must have three dimensions")
    else:
        steps, batch = shape[1::-1] if batch_first else shape[:2]
        of = Lengths.of(lengths, steps, batch)
    return _beside(x, tables_of(of)), packed


def _beside(x: Any, made: np.ndarray) -> Any:
    """Integers in the library and on the device of x."""
    if isinstance(x, np.ndarray):
        return made
    found, storage = arrays.enter(x, "x")[2].empty(made.shape, "i64")
    _write(storage, made)
    return found


def in_rows(given: Iterable[Any]) -> Iterator[Any]:
    """Arrays as kernels read states and weights, one element behind the other: copies of those that lie otherwise.

    Those of a library on a GPU that cannot copy one are refused when the call is posed.
    """
    for x in given:
        if isinstance(x, np.ndarray):
            yield x if x.flags.c_contiguous else x.copy(order="C")
        else:
            yield x.contiguous() if hasattr(x, "contiguous") else x


def random_of(x: Any, layers: int, p: float, seed: int, offset: int) -> Any:
    """What dropout's stream is known by, in words of 32 bits; None where nothing is dropped."""
    rate = scalar(p, "dropout")
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout is {p!r}; a probability lies between 0 and 1")
    seed, offset = word64(seed, "seed"), word64(offset, "offset")
    if layers == 1 or not rate:
        return None
    low = 0xFFFFFFFF
    return _beside(x, np.array([seed & low, seed >> 32, offset & low, offset >> 32], np.int64))


def options_of(
    cell: str, weights: Any, batch_first: bool, reverse: bool, merge: str, clip: float | None, way: str = "inference"
) -> Options:
    """What a network says beside its arrays, checked."""
    if not isinstance(weights, RnnWeights) or not weights.cell.startswith(cell):
        kind = f"those of {weights.cell}" if isinstance(weights, RnnWeights) else f"a {type(weights).__name__}"
        raise TypeError(f"weights is {kind}; {cell} takes RnnWeights of its cell")
    word(merge, "merge", MERGES)
    batch_first, reverse = truth(batch_first, "batch_first"), truth(reverse, "reverse")
    if reverse and weights.directions == 2:
        raise ValueError("reverse is for networks of one direction; these weights have two")
    if clip is not None and not scalar(clip, "clip") > 0:
        raise ValueError(f"clip is {clip!r}; it must be above 0")
    for layer in range(1, weights.layers):
        width = weights.out_size * (weights.directions if merge == "concat" else 1)
        if weights.sizes(layer) != width:
            raise ValueError(
                f"layer {layer} of the weights takes {weights.sizes(layer)} inputs; merge={merge!r} gives {width}"
            )
    return Options(
        weights.cell, weights.layers, weights.directions, batch_first, reverse, merge, weights.reset_after,
        weights.skip_input, clip is not None, False, way, None,
    )  # fmt: skip
