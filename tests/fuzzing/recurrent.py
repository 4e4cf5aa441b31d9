"""Draws of recurrent networks: inference, and the gradient of a call in training."""

from typing import Any

import numpy as np
from contract import flat, network
from helpers import PRECISION, assert_close
from rnn_cases import DEFINITIONS, draw_weights

import numbaprims
from fuzzing.calls import Call, Draw, Operand
from numbaprims import arrays


def rnn(draw: Draw) -> Call:
    dtype, (cell, after) = draw.dtype(), draw.one(DEFINITIONS)
    name, lstm = cell.partition("_")[0], cell == "lstm"
    steps, batch, hidden = int(draw.one((1, 2, 3, 5))), int(draw.one((1, 1, 2, 3, 5, 13))), draw.size(dtype, 1)
    form = {"layers": int(draw.one((1, 1, 2))), "directions": int(draw.one((1, 1, 2)))}
    call: dict[str, Any] = {}
    if form["directions"] == 2:
        call["merge"] = str(draw.one(("concat", "sum")))
    else:
        call["reverse"] = draw.chance(2)
    like = draw_weights(
        draw.rng, cell, after=after, inputs=draw.size(dtype, 1), hidden=hidden, bias=draw.chance(2),
        peephole=lstm and draw.chance(3), proj=draw.size(dtype, 1) if lstm and draw.chance(3) else 0,
        merge=call.get("merge", "concat"), **form,
    )  # fmt: skip
    width = like.out_size * (form["directions"] if call.get("merge") != "sum" else 1)
    first = call["batch_first"] = draw.chance(2)
    if draw.chance(3):
        call["lengths"] = Operand(draw.rng.integers(0, steps + 1, batch), "i64", "C")

    def real(*shape: int) -> Operand:
        return draw.operand(draw.rng.standard_normal(shape), dtype)

    states = 2 if lstm else 1
    widths = (like.out_size, like.hidden_size)[:states]
    outer = (batch, steps) if first else (steps, batch)
    scale = max(hidden, like.input_size) ** -0.5
    args = [real(*outer, like.input_size), *(real(len(like.parts), batch, each) for each in widths)]
    args += [draw.operand(array * scale, dtype) for array in flat(like.parts)]

    def given(args: Any, words: Any) -> Any:
        x, *more = args
        return (x, network(like, more[states:]), *more[:states]), words

    def given_backward(args: Any, words: Any) -> Any:
        args, words, dy = *given(args[1:], words), args[0]
        return (dy, *[None] * states, getattr(numbaprims, f"{name}_train")(*args, **words)[-1]), {}

    backward = draw.chance(2)
    function, prepare = (f"{name}_backward", given_backward) if backward else (name, given)
    args = [real(*outer, width), *args] if backward else args

    def wide(x: Any) -> Any:
        return x.values.astype(np.float64) if isinstance(x, Operand) and x.dtype != "i64" else getattr(x, "storage", x)

    with numbaprims.config(device="reference"):
        wide_args, words = prepare([wide(x) for x in args], {key: wide(x) for key, x in call.items()})
        expected = flat(getattr(numbaprims, function)(*wide_args, **words))
    k, coarse = 256 * form["layers"] * steps + 16 * hidden, 16 * PRECISION[dtype].out

    def check(storage: Any, want: np.ndarray) -> None:
        largest = max(1.0, float(np.abs(want).max(initial=0.0)))
        assert_close(storage, want, k=k, dtype=dtype, max_abs=largest, coarse=coarse, vacuous=True)

    def more(result: Any) -> None:
        for have, want in zip(flat(result)[1:], expected[1:], strict=True):
            check(arrays.enter(have, "result")[0], want)

    return Call(
        "rnn", function, tuple(args), call, draw.result(expected[0].shape, dtype),
        lambda solver, storage: check(storage, expected[0]), more=more, given=prepare,
    )  # fmt: skip
