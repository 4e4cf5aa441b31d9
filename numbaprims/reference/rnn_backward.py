"""Gradients of recurrent networks by definition, in float64: the steps of `rnn` walked back.

Khan et al., MIOpen: An open source library for deep learning primitives, 2019, equations 15 to 21.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.recurrent.parts import RnnPart
from numbaprims.reference.rnn import Reserve, Run, Step


def backward(
    dy: Any, dh_n: Any, dc_n: Any, reserve: Reserve
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[RnnPart, ...]]:
    """(dx, dh0, dc0, the gradients of each part): dc0 is None unless of an LSTM; what is None in a part stays None.

    dy, dh_n and dc_n are the gradients of what `rnn.forward` gave, zero where they are None.
    """
    weights, valid = reserve.weights, reserve.valid
    directions, batch = weights.directions, valid.shape[1]
    widths = {"h": weights.out_size, "c": weights.hidden_size}
    dh, dc = (
        [np.zeros((batch, width))] * len(weights.parts) if given is None else np.asarray(given, np.float64)
        for given, width in zip((dh_n, dc_n), widths.values(), strict=True)
    )
    side_by_side = reserve.merge == "concat"
    above = weights.out_size * (directions if side_by_side else 1)
    if dy is None:
        error = np.zeros((*valid.shape[:2], above))
    else:
        error = np.asarray(dy, np.float64).swapaxes(0, 1) if reserve.batch_first else np.asarray(dy, np.float64)
    found: list[Any] = [None] * len(weights.parts)
    for layer in reversed(range(weights.layers)):
        if layer + 1 < weights.layers:
            error = error * reserve.kept[layer]
        errors = np.split(error, directions, -1) if side_by_side else [error] * directions
        error = np.zeros(())
        for d, run in enumerate(reserve.runs[layer]):
            k = layer * directions + d
            found[k] = _walk(weights, run, errors[d], dh[k], dc[k], valid)
            error = error + found[k][0]
    dx = error.swapaxes(0, 1) if reserve.batch_first else error
    dh0, dc0 = (np.stack([each[at] for each in found]) for at in (1, 2))
    return dx, dh0, dc0 if weights.cell == "lstm" else None, tuple(each[3] for each in found)


def _walk(
    weights: Any, run: Run, dy: np.ndarray, dh: np.ndarray, dc: np.ndarray, valid: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, RnnPart]:
    """(dx, dh0, dc0, gradients of the weights) of one direction of one layer."""
    cell = {"lstm": _lstm, "gru": _gru_after if weights.reset_after else _gru_before}.get(weights.cell, _rnn)
    part, x, steps, reverse = run
    grads = {name: None if each is None else np.zeros_like(each) for name, each in part._asdict().items()}
    ds = np.zeros((*x.shape[:2], part.w_hh.shape[0]))
    for t in range(len(x)) if reverse else reversed(range(len(x))):
        live = valid[t]
        ds[t], before_h, before_c = cell(
            part, steps[t], np.where(live, dh + dy[t], 0.0), np.where(live, dc, 0.0), grads
        )
        dh, dc = np.where(live, before_h, dh), np.where(live, before_c, dc)
    if part.w_ih is not None:
        dx = ds @ part.w_ih
        grads["w_ih"] = np.einsum("tnr,tni->ri", ds, x)
    else:
        dx = ds.reshape(*x.shape[:2], ds.shape[2] // x.shape[2], x.shape[2]).sum(2)
    if part.b_ih is not None:
        grads["b_ih"] = ds.sum((0, 1))
    return dx, dh, dc, RnnPart(**grads)


# ------------------------------------------- cells: (ds, dh, dc) of one step; what the state leads to joins `grads`


def _rnn(part: RnnPart, step: Step, dh: np.ndarray, dc: np.ndarray, grads: Any) -> tuple[Any, Any, Any]:
    ds = dh * step.slopes[0]
    return ds, _through(part, ds, step.h, grads), dc


def _lstm(part: RnnPart, step: Step, dh: np.ndarray, dc: np.ndarray, grads: Any) -> tuple[Any, Any, Any]:
    (i, f, g, o), c, new_c = step.gates, step.c, step.extra
    tanh_c = np.tanh(new_c)
    if part.w_hr is not None:
        grads["w_hr"] += dh.T @ (o * tanh_c)
        dh = dh @ part.w_hr
    ds_o = dh * tanh_c * step.slopes[3]
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    if part.peephole is not None:
        dc = dc + part.peephole[2] * ds_o
    ds_i, ds_f, ds_g = dc * g * step.slopes[0], dc * c * step.slopes[1], dc * i * step.slopes[2]
    before = dc * f
    if part.peephole is not None:
        before = before + part.peephole[0] * ds_i + part.peephole[1] * ds_f
        grads["peephole"] += np.stack([(ds_i * c).sum(0), (ds_f * c).sum(0), (ds_o * new_c).sum(0)])
    ds = np.concatenate([ds_i, ds_f, ds_g, ds_o], -1)
    return ds, _through(part, ds, step.h, grads), before


def _gru_after(part: RnnPart, step: Step, dh: np.ndarray, dc: np.ndarray, grads: Any) -> tuple[Any, Any, Any]:
    (r, z, n), q_n = step.gates, step.extra
    ds_n, ds_z = dh * (1 - z) * step.slopes[2], dh * (step.h - n) * step.slopes[1]
    ds_r = ds_n * q_n * step.slopes[0]
    dq = np.concatenate([ds_r, ds_z, ds_n * r], -1)
    return np.concatenate([ds_r, ds_z, ds_n], -1), dh * z + _through(part, dq, step.h, grads), dc


def _gru_before(part: RnnPart, step: Step, dh: np.ndarray, dc: np.ndarray, grads: Any) -> tuple[Any, Any, Any]:
    (r, z, n), h = step.gates, step.h
    ds_n, ds_z = dh * (1 - z) * step.slopes[2], dh * (h - n) * step.slopes[1]
    none = np.zeros_like(ds_n)
    scaled = _through(part, np.concatenate([none, none, ds_n], -1), r * h, grads)
    ds_r = scaled * h * step.slopes[0]
    before = dh * z + scaled * r + _through(part, np.concatenate([ds_r, ds_z, none], -1), h, grads)
    return np.concatenate([ds_r, ds_z, ds_n], -1), before, dc


def _through(part: RnnPart, dq: np.ndarray, h: np.ndarray, grads: Any) -> np.ndarray:
    """The gradient of h by that of q = R h + b; R's and b's join `grads`."""
    grads["w_hh"] += dq.T @ h
    if part.b_hh is not None:
        grads["b_hh"] += dq.sum(0)
    return dq @ part.w_hh
