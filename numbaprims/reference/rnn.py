"""Recurrent networks by definition, in float64: every step of every layer, one after another.

With s = W x + b_W + R h + b_R, cut into gates, and products of elements:

    rnn    h' = tanh(s), or max(s, 0)
    lstm   i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of s;  c' = f c + i g;  h' = o tanh(c')
           peepholes add p_i c, p_f c and p_o c' to s_i, s_f and s_o; a projection makes h' = W_hr (o tanh(c'))
    gru    r, z = sigmoid of s;  h' = (1 - z) n + z h;  n = tanh(W_n x + b_W + r (R_n h + b_R)), or with the reset
           gate before the product n = tanh(W_n x + b_W + R_n (r h) + b_R)

A sequence that has ended keeps its state and gives zeros; the reverse direction walks from the last step to the first
by the same rule, so it starts at each sequence's own end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numbaprims.philox import dropout_mask
from numbaprims.recurrent.parts import RnnPart
from numbaprims.recurrent.weights import RnnWeights
from numbaprims.reference.convert import to_float64


class Step(NamedTuple):
    """What one step of one direction leaves for its gradient."""

    h: np.ndarray
    c: np.ndarray
    gates: list[np.ndarray]
    """In the order of the weights."""
    slopes: list[np.ndarray]
    """Of each gate, by what went into it."""
    extra: np.ndarray
    """c' of an LSTM; of a GRU what its reset gate scales: R_n h + b_R, or h."""


class Run(NamedTuple):
    """One direction of one layer."""

    part: RnnPart
    x: np.ndarray
    """(T, N, width)"""
    steps: list[Step]
    """By time."""
    reverse: bool


class Reserve(NamedTuple):
    """What `forward` leaves for `rnn_backward.backward`."""

    weights: RnnWeights
    runs: list[list[Run]]
    """A list of directions a layer."""
    kept: list[Any]
    """Behind each layer but the last the mask of dropout, divided by 1 - p; or 1."""
    valid: np.ndarray
    """(T, N, 1): whether the sequence has this step."""
    batch_first: bool
    merge: str


def forward(
    x: np.ndarray, weights: RnnWeights, h0: Any = None, c0: Any = None, lengths: Any = None, *,
    batch_first: bool = False, reverse: bool = False, merge: str = "concat", clip: float = 0.0, dropout: float = 0.0,
    seed: int = 0, offset: int = 0, return_reserve: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """(y, h_n), of an LSTM (y, h_n, c_n), and the `Reserve` where it is asked for.

    x is (T, N, input), or (N, T, input) with `batch_first`, as is y; states are (layers * directions, N, width) in the
    order l0, l0_reverse, l1, ..., and zero where they are None. `merge` says whether the directions of every layer are
    put side by side ("concat") or added ("sum"). `clip` bounds what goes into each gate to [-clip, clip]; 0 does not.

    Dropout stands between the layers: behind layer k it keeps what ``dropout_mask((T, N, width), dropout, seed,
    offset + k)`` says, whatever the lengths and `batch_first`, and divides it by 1 - dropout.
    """
    if reverse and weights.directions == 2:
        raise ValueError("reverse is True; a network of two directions goes both ways")
    x = np.asarray(x, np.float64)
    x = x.swapaxes(0, 1) if batch_first else x
    steps, batch = x.shape[:2]
    ends = np.full(batch, steps) if lengths is None else np.asarray(lengths)
    valid = (np.arange(steps)[:, None] < ends)[..., None]
    parts = [
        RnnPart(*(each if each is None else to_float64(each, weights.dtype) for each in part))
        for part in weights.storages
    ]
    widths = weights.out_size, weights.hidden_size
    h, c = (_state(given, len(parts), batch, width) for given, width in zip((h0, c0), widths, strict=True))
    runs: list[list[Run]] = []
    kept: list[Any] = []
    last: list[tuple[np.ndarray, np.ndarray]] = []
    y = np.where(valid, x, 0.0)  # what pads may be anything
    for layer in range(weights.layers):
        outputs = []
        runs.append([])
        for k in range(layer * weights.directions, (layer + 1) * weights.directions):
            backwards = reverse or k % weights.directions == 1
            run, out, states = _run(weights, parts[k], y, h[k], c[k], valid, backwards, clip)
            runs[-1].append(run)
            outputs.append(out)
            last.append(states)
        y = np.concatenate(outputs, -1) if merge == "concat" else sum(outputs, np.zeros(()))
        if layer + 1 < weights.layers:
            mask = dropout_mask(y.shape, dropout, seed, offset + layer) if dropout else True
            kept.append(np.where(mask, 1 / (1 - dropout) if dropout < 1 else 0.0, 0.0))
            y = y * kept[-1]
    h_n, c_n = (np.stack(states) for states in zip(*last, strict=True))
    y = y.swapaxes(0, 1) if batch_first else y
    results = (y, h_n, c_n) if weights.cell == "lstm" else (y, h_n)
    return (*results, Reserve(weights, runs, kept, valid, batch_first, merge)) if return_reserve else results


def _state(given: Any, parts: int, batch: int, width: int) -> np.ndarray:
    return np.zeros((parts, batch, width)) if given is None else np.asarray(given, np.float64)


def _run(
    weights: RnnWeights, part: RnnPart, x: np.ndarray, h: np.ndarray, c: np.ndarray, valid: np.ndarray, reverse: bool,
    clip: float,
) -> tuple[Run, np.ndarray, tuple[np.ndarray, np.ndarray]]:  # fmt: skip
    """One direction of one layer: what it leaves, its outputs, its last states."""
    cell = {"lstm": _lstm, "gru": _gru_after if weights.reset_after else _gru_before}.get(weights.cell, _rnn)
    kinds = {"lstm": ("sigmoid", "sigmoid", "tanh", "sigmoid"), "gru": ("sigmoid", "sigmoid", "tanh")}
    gates = [(kind, clip) for kind in kinds.get(weights.cell, (weights.cell[4:],))]
    s = np.tile(x, len(gates)) if part.w_ih is None else x @ part.w_ih.T
    s = s if part.b_ih is None else s + part.b_ih
    y = np.zeros((*x.shape[:2], weights.out_size))
    steps: list[Any] = [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        new_h, new_c, steps[t] = cell(part, gates, s[t], h, c)
        y[t] = np.where(valid[t], new_h, 0.0)
        h, c = np.where(valid[t], new_h, h), np.where(valid[t], new_c, c)
    return Run(part, x, steps, reverse), y, (h, c)


# ---------------------------------------------------------------- cells: (h', c', what is left) of one step


def _rnn(part: RnnPart, gates: Any, s: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[Any, Any, Step]:
    value, slope = _gate(gates[0], s + _recurrent(part, h))
    return value, c, Step(h, c, [value], [slope], value)


def _lstm(part: RnnPart, gates: Any, s: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[Any, Any, Step]:
    s_i, s_f, s_g, s_o = np.split(s + _recurrent(part, h), 4, -1)
    if part.peephole is not None:
        s_i, s_f = s_i + part.peephole[0] * c, s_f + part.peephole[1] * c
    i, di = _gate(gates[0], s_i)
    f, df = _gate(gates[1], s_f)
    g, dg = _gate(gates[2], s_g)
    new_c = f * c + i * g
    if part.peephole is not None:
        s_o = s_o + part.peephole[2] * new_c
    o, do = _gate(gates[3], s_o)
    new_h = o * np.tanh(new_c)
    new_h = new_h if part.w_hr is None else new_h @ part.w_hr.T
    return new_h, new_c, Step(h, c, [i, f, g, o], [di, df, dg, do], new_c)


def _gru_after(part: RnnPart, gates: Any, s: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[Any, Any, Step]:
    (s_r, s_z, s_n), (q_r, q_z, q_n) = np.split(s, 3, -1), np.split(_recurrent(part, h), 3, -1)
    r, dr = _gate(gates[0], s_r + q_r)
    z, dz = _gate(gates[1], s_z + q_z)
    n, dn = _gate(gates[2], s_n + r * q_n)
    return (1 - z) * n + z * h, c, Step(h, c, [r, z, n], [dr, dz, dn], q_n)


def _gru_before(part: RnnPart, gates: Any, s: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[Any, Any, Step]:
    (s_r, s_z, s_n), (q_r, q_z, _) = np.split(s, 3, -1), np.split(_recurrent(part, h), 3, -1)
    r, dr = _gate(gates[0], s_r + q_r)
    z, dz = _gate(gates[1], s_z + q_z)
    n, dn = _gate(gates[2], s_n + np.split(_recurrent(part, r * h), 3, -1)[2])
    return (1 - z) * n + z * h, c, Step(h, c, [r, z, n], [dr, dz, dn], h)


def _recurrent(part: RnnPart, h: np.ndarray) -> np.ndarray:
    q = h @ part.w_hh.T
    return q if part.b_hh is None else q + part.b_hh


def _gate(how: tuple[str, float], s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(value, slope) of a gate; how is its function and the bound of what goes into it."""
    kind, clip = how
    within = np.abs(s) <= clip if clip else 1.0
    s = np.clip(s, -clip, clip) if clip else s
    if kind == "relu":
        return np.maximum(s, 0.0), (s > 0) * within
    value = np.tanh(s) if kind == "tanh" else 0.5 + 0.5 * np.tanh(0.5 * s)
    return value, (1 - value * value if kind == "tanh" else value * (1 - value)) * within
