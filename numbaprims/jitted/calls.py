"""Calls whose arguments inside `@njit` are not those of the public function."""

from __future__ import annotations

import functools
from typing import Any

import numbaprims
from numbaprims.ops import conv_quantized, ctc, gemm_quantized
from numbaprims.ops._activation_call import prelu_backward as prelu_backward
from numbaprims.ops.random import of_number
from numbaprims.recurrent.parts import RnnPart, ending


def _drawn(function: str, seed: float, offset: float, **words: Any) -> None:
    """A function whose seed and offset come as floats of their bits."""
    getattr(numbaprims, function)(seed=of_number(seed), offset=of_number(offset), **words)


dropout, dropout_backward, random_uniform, random_normal = (
    functools.partial(_drawn, function)
    for function in ("dropout", "dropout_backward", "random_uniform", "random_normal")
)


def concat(axis: int, out: Any, **parts: Any) -> None:
    """`numbaprims.concat`, whose parts come one by one, in their order."""
    numbaprims.concat(tuple(parts.values()), axis, out=out)


def _recurrent(function: str, weights: tuple[Any, ...], **given: Any) -> Any:
    """A recurrent network whose weights come one by one, by their names."""
    cell, directions, *more = weights
    parts: list[RnnPart] = []
    while f"w_hh_{ending(len(parts), directions)}" in given:
        end = ending(len(parts), directions)
        parts.append(RnnPart(*(given.pop(f"{field}_{end}", None) for field in RnnPart._fields)))
    network = numbaprims.RnnWeights(cell, tuple(parts), directions, *more)
    return getattr(numbaprims, function)(weights=network, **given)


lstm, gru, rnn = (functools.partial(_recurrent, function) for function in ("lstm", "gru", "rnn"))


# what Python makes of scales, zero points and labels has been made by compiled code
conv_integer_with_extra = qlinear_conv_with_extra = conv_quantized.with_extra
qlinear_gemm_with_factors = gemm_quantized.with_factors
ctc_loss_with_table, ctc_loss_backward_with_table = ctc.loss_of, ctc.gradient_of
ctc_greedy_decode_with_table, ctc_beam_search_decode_with_table = ctc.greedy_of, ctc.beams_of
