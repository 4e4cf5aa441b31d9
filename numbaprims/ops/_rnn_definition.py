"""The definition of recurrent networks over the arrays of a call: ``config(device="reference")``."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.ops._rnn_problem import GATES, PART, table_parts
from numbaprims.recurrent.lengths import Lengths
from numbaprims.recurrent.parts import RnnPart
from numbaprims.recurrent.weights import RnnWeights
from numbaprims.reference import rnn, rnn_backward
from numbaprims.reference.rnn import Reserve


def _network(o: Any, arrays: Any) -> RnnWeights:
    parts = [RnnPart(*arrays[k : k + PART]) for k in range(0, len(arrays), PART)]
    return RnnWeights(o.cell, tuple(parts), o.directions, o.reset_after, o.skip_input)


def _lengths(o: Any, x: np.ndarray, tables: np.ndarray | None) -> Lengths:
    """The lengths that tables are of; without tables all are whole."""
    if o.packed:
        steps, batch = o.packed
    else:
        steps, batch = x.shape[:2][::-1] if o.batch_first else x.shape[:2]
    if tables is None:
        return Lengths.of(np.full(batch, steps), steps)
    fixed = table_parts(0, steps, batch)[""]
    at = table_parts((len(tables) - fixed) // 3, steps, batch)
    sizes = np.diff(tables[at["offsets"] : at["offsets"] + steps + 1])
    order = tables[at["order"] : at["order"] + batch].astype(np.int64)
    lengths = np.empty(batch, np.int64)
    lengths[order] = (sizes[:, None] > np.arange(batch)).sum(0)
    return Lengths(lengths, steps, order)


def _padded(o: Any, of: Lengths, rows: np.ndarray) -> np.ndarray:
    """(time, batch, ...) of an array of the call."""
    if o.packed:
        return of.pad(rows)
    return rows.swapaxes(0, 1) if o.batch_first else rows


def _as_given(o: Any, of: Lengths, padded: np.ndarray) -> np.ndarray:
    if o.packed:
        return of.pack(padded)
    return padded.swapaxes(0, 1) if o.batch_first else padded


def _run(
    o: Any, of: Lengths, x: np.ndarray, weights: RnnWeights, h0: Any, c0: Any, random: Any, numbers: Any
) -> tuple[Any, ...]:  # fmt: skip
    words: dict[str, Any] = {"clip": numbers[0]} if o.clipped else {}
    if o.dropout:
        low, high, *offset = (int(word) for word in random)
        words = {"dropout": numbers[0], "seed": low + (high << 32), "offset": offset[0] + (offset[1] << 32)}
    return rnn.forward(
        _padded(o, of, x), weights, h0, c0, of.lengths, reverse=o.reverse, merge=o.merge, return_reserve=True, **words
    )


def forward(values: Any, options: Any, numbers: Any) -> Any:
    """y, h_n, of an LSTM c_n; in training what the gradient reads."""
    x, h0, c0, tables, random, _, *arrays = values
    o, of = options, _lengths(options, x, tables)
    *results, reserve = _run(o, of, x, _network(o, arrays), h0, c0, random, numbers)
    found = [_as_given(o, of, results[0]), *results[1:]]
    return tuple(found + _kept(o, of, reserve, results) if o.way == "train" else found)


def _kept(o: Any, of: Lengths, reserve: Reserve, results: list[np.ndarray]) -> list[np.ndarray]:
    """Gates, cell states or recurrent sums, states: in packed rows."""
    gates, saved, states = [], [], []
    start = of.order

    def packed(steps: list[np.ndarray], width: int) -> np.ndarray:
        return of.pack(np.stack(steps) if steps else np.zeros((0, len(start), width)))

    for layer, runs in enumerate(reserve.runs):
        of_layer = []
        for d, run in enumerate(runs):
            at = layer * o.directions + d
            # without steps the last states are the first ones
            (steps, last), (wide, width) = (run.steps, results[1][at]), run.part.w_hh.shape
            hidden = wide // GATES[o.cell]
            gates.append(packed([np.concatenate(step.gates, -1) for step in steps], wide))
            extra = packed([step.extra for step in steps], hidden)
            first = steps[-1 if run.reverse else 0] if steps else None
            head = np.zeros((len(start), hidden))
            if o.cell == "lstm":
                head = results[2][at] if first is None else first.c
            saved.append(np.concatenate([head[start], extra]))
            before = [step.h for step in steps]
            after = [last, *before[:-1]] if run.reverse else [*before[1:], last]
            head = last if first is None else first.h
            of_layer.append(np.concatenate([head[start], packed(after[: len(steps)], width)]))
        states.append(np.concatenate(of_layer, -1))
    shape = (len(reserve.runs), o.directions)
    found = [np.stack(each).reshape(*shape, *each[0].shape) for each in (gates, saved)]
    keeps = 2 if o.cell == "lstm" or (o.cell == "gru" and o.reset_after) else int(o.cell == "gru")
    return [*found[:keeps], np.stack(states)]


def backward(values: Any, options: Any, numbers: Any) -> Any:
    """dx, dh0, of an LSTM dc0, and the gradients of the weights that are there."""
    x, dy, dh_n, dc_n, _, saved, states, tables, random, *arrays = values
    o, of = options, _lengths(options, x, tables)
    batch = len(of.lengths)

    def start(kept: np.ndarray) -> np.ndarray:
        """(layers * directions, batch, width) of rows (layers, directions, batch, width) in the order of lengths."""
        return np.concatenate([each[:, of.inverse] for each in kept])

    heads = np.stack([np.stack(np.split(each[:batch], o.directions, -1)) for each in states])
    c0 = start(saved[:, :, :batch]) if o.cell == "lstm" else None
    reserve = _run(o, of, x, _network(o, arrays), start(heads), c0, random, numbers)[-1]
    dx, dh0, dc0, parts = rnn_backward.backward(None if dy is None else _padded(o, of, dy), dh_n, dc_n, reserve)
    found = [_as_given(o, of, dx), dh0, *([dc0] if o.cell == "lstm" else [])]
    return (*found, *(each for part in parts for each in part if each is not None))
