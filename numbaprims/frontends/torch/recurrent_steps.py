"""Recurrent networks step by step, by functions that have gradients of any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from numbaprims.frontends.torch import activations as f
from numbaprims.frontends.torch.products import linear
from numbaprims.philox import dropout_mask
from numbaprims.recurrent.lengths import Lengths
from numbaprims.recurrent.parts import RnnPart
from numbaprims.recurrent.weights import RnnWeights


def run(
    x: Any, weights: RnnWeights, parts: Sequence[RnnPart], h0: Any, c0: Any, *, lengths: Any = None,
    batch_sizes: Any = None, batch_first: bool = False, reverse: bool = False, merge: str = "concat",
    dropout: float = 0.0, seed: int = 0, offset: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """What the public functions of the same arguments give, of other parts than the weights' own."""
    of, packed = None, batch_sizes is not None
    if packed:
        of = Lengths.from_packed(x, batch_sizes)
        rows = torch.from_numpy(of.rows()).to(x.device)
        shape = (of.steps, len(of.lengths), x.shape[-1])
        x = x.new_zeros(shape[0] * shape[1], shape[2]).index_copy(0, rows, x).reshape(shape)
    elif batch_first:
        x = x.transpose(0, 1)
    if lengths is not None:
        of = Lengths.of(lengths, *x.shape[:2])
    valid = None
    if of is not None:
        there = np.arange(of.steps)[:, None, None] < of.lengths[:, None]
        valid = torch.from_numpy(there).to(x.device)
    last_h, last_c = [], []
    for layer in range(weights.layers):
        outputs = []
        for d in range(weights.directions):
            k = layer * weights.directions + d
            h = x.new_zeros(x.shape[1], weights.out_size) if h0 is None else h0[k]
            c = x.new_zeros(x.shape[1], weights.hidden_size) if c0 is None else c0[k]
            y, h, c = _direction(x, weights, parts[k], h, c, valid, reverse or d > 0)
            outputs.append(y)
            last_h.append(h)
            last_c.append(c)
        x = torch.cat(outputs, -1) if merge == "concat" else sum(outputs)
        if dropout and layer < weights.layers - 1:
            kept = torch.from_numpy(dropout_mask(tuple(x.shape), dropout, seed, offset + layer))
            x = x * kept.to(x) / (1.0 - dropout)
    if packed:
        x = x.flatten(0, 1)[rows]
    elif batch_first:
        x = x.transpose(0, 1)
    return x, torch.stack(last_h), *([torch.stack(last_c)] if weights.cell == "lstm" else [])


def _direction(
    x: Any, weights: RnnWeights, part: RnnPart, h: Any, c: Any, valid: Any, backwards: bool
) -> tuple[Any, Any, Any]:
    """Outputs and last states of a direction of a layer."""
    steps, gates = len(x), part.w_hh.shape[0] // weights.hidden_size
    if part.w_ih is not None:
        inputs = linear(x, part.w_ih, part.b_ih)
    else:
        inputs = x.repeat(1, 1, gates) + (0.0 if part.b_ih is None else part.b_ih)
    outputs: list[Any] = [x.new_zeros(0)] * steps
    for t in reversed(range(steps)) if backwards else range(steps):
        y, new = _step(inputs[t], weights, part, h, c)
        if valid is None:
            outputs[t], h, c = y, y, new
        else:
            outputs[t] = torch.where(valid[t], y, 0.0)
            h, c = torch.where(valid[t], y, h), torch.where(valid[t], new, c)
    return (torch.stack(outputs) if steps else x.new_zeros(*x.shape[:2], weights.out_size)), h, c


def _step(s: Any, weights: RnnWeights, part: RnnPart, h: Any, c: Any) -> tuple[Any, Any]:
    """(h', c') of a step whose inputs give s; c' is c where a cell has none."""
    if weights.cell == "lstm":
        i, j, g, o = (s + linear(h, part.w_hh, part.b_hh)).chunk(4, -1)
        if part.peephole is not None:
            i, j = i + part.peephole[0] * c, j + part.peephole[1] * c
        c = f.sigmoid(j) * c + f.sigmoid(i) * f.tanh(g)
        if part.peephole is not None:
            o = o + part.peephole[2] * c
        h = f.sigmoid(o) * f.tanh(c)
        return (h if part.w_hr is None else linear(h, part.w_hr)), c
    if weights.cell == "gru":
        return _gru(s, weights, part, h), c
    end = f.tanh if weights.cell == "rnn_tanh" else f.relu
    return end(s + linear(h, part.w_hh, part.b_hh)), c


def _gru(s: Any, weights: RnnWeights, part: RnnPart, h: Any) -> Any:
    two = 2 * weights.hidden_size
    bias = (None, None) if part.b_hh is None else (part.b_hh[:two], part.b_hh[two:])
    r, z = f.sigmoid(s[:, :two] + linear(h, part.w_hh[:two], bias[0])).chunk(2, -1)
    if weights.reset_after:
        n = r * linear(h, part.w_hh[two:], bias[1])
    else:
        n = linear(r * h, part.w_hh[two:], bias[1])
    n = f.tanh(s[:, two:] + n)
    return (1.0 - z) * n + z * h
