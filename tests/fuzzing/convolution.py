"""Draws of convolutions: sizes below a window's, padding larger than the image, one to three dimensions."""

from typing import Any

import numpy as np
from conv_cases import FUNCTIONS, Case, amplification, arguments, from_layout, is_exact, to_layout
from helpers import assert_close, assert_exact

import numbaprims
from fuzzing.calls import Call, Draw, Operand, exactly
from fuzzing.dense import _filled, _scalars
from numbaprims import shapes
from numbaprims.reference import conv as reference

MOST = 2_000_000
"""Products of a drawn call: the definition takes a tenth of a second for as many."""
LAYOUTS = ("NCHW", "NCHW", "NHWC")


def conv(draw: Draw) -> Call:
    """A convolution, one of its gradients, a transposed one, or one of integers."""
    what = str(draw.one(("forward", "forward", "forward", "data", "weight", "bias", "transpose", "integer")))
    if what == "bias":
        return _bias(draw)
    dtype = (
        str(draw.one(("i8", "u8"))) if what == "integer" else draw.dtype("i8") if what == "forward" else draw.dtype()
    )
    while True:
        case = _case(draw, dtype)
        if case is not None:
            break
    if what == "integer":
        return _integer(draw, case, dtype)
    return _transpose(draw, case, dtype) if what == "transpose" else _plain(draw, case, what, dtype)


def _case(draw: Draw, dtype: str) -> Case | None:
    """A geometry, or None where no window fits or the sums are many."""
    rank = draw.one((1, 2, 2, 2, 3))
    one, few = lambda: draw.one((1, 1, 1, 2, 3)), lambda: draw.one((0, 1, 2, 3))
    groups = draw.one((1, 1, 1, 2, 3))
    depthwise = draw.chance(5)
    if depthwise:
        groups = max(draw.size(dtype), 1)
    group_c = 1 if depthwise else draw.size(dtype, 0 if draw.chance(20) else 1)
    k = groups * (one() if depthwise else draw.size(dtype, 0 if draw.chance(20) else 1))
    kernel = tuple(draw.one((1, 2, 3, 3, 4, 5, 6, 7, *((19, 30) if few() else ()))) for _ in range(rank))
    sizes = tuple(1 if draw.chance(6) else draw.size(dtype, 0 if draw.chance(20) else 1) for _ in range(rank))
    stride = tuple(draw.one((1, 1, 2, 3, taps + 1)) for taps in kernel)
    dilation = (1,) * rank if not draw.chance(3) else tuple(draw.one((1, 2, 3)) for _ in range(rank))
    if draw.chance(2):  # what networks have, and most solvers take
        kernel, stride, dilation = (draw.one((1, 3, 3, 3, 5)),) * rank, (1,) * rank, (1,) * rank
    if rank == 3:
        sizes, kernel = (draw.one((1, 1, 2, 3)), *sizes[1:]), (draw.one((1, 1, kernel[0])), *kernel[1:])
    padding: Any = tuple(
        (draw.one((0, 0, 1, 1, 2, taps // 2, size + 1, size + taps)), draw.one((0, 0, 1, 1, 2, taps // 2, size + 1)))
        for taps, size in zip(kernel, sizes, strict=True)
    )
    if draw.chance(4):
        padding = "same"
    elif draw.chance(3):
        padding = tuple(max(taps // 2 * gap, 0) for taps, gap in zip(kernel, dilation, strict=True))
    case = Case((few() or 1 if draw.chance(2) else few(), groups * group_c, *sizes), (k, group_c, *kernel), stride,
                padding, dilation, groups)  # fmt: skip
    y = case.y()
    if min(y[2:]) < 1 or np.prod(y[2:]) > 4096:
        return None
    products = np.prod([max(size, 1) for size in y]) * np.prod([max(size, 1) for size in case.w[1:]])
    return case if products <= MOST else None


def _plain(draw: Draw, case: Case, direction: str, dtype: str) -> Call:
    layout = str(draw.one(LAYOUTS))
    result = "NCHW" if direction == "weight" else layout
    integers = dtype in ("i8", "u8")
    stored = "i32" if integers else dtype
    sums = case.sums(direction)
    first, second = (
        draw.operand(to_layout(draw.integers(shape, of, sums), lies), of)
        for shape, of, lies in zip(
            case.operand_shapes(direction), (dtype, "i8" if integers else dtype),
            (layout, layout if direction == "weight" else "NCHW"), strict=True,
        )
    )  # fmt: skip
    shape = to_layout(np.empty(case.result_shape(direction)), result).shape
    alpha, beta = _scalars(draw, dtype)
    more, window = arguments(case, direction, layout)
    kwargs: dict[str, Any] = {**window, "alpha": alpha, "beta": beta}
    out = draw.result(shape, stored)
    in_place, c = "", None
    if beta:
        c = draw.operand(draw.integers(shape, stored, 4), stored)
        if draw.chance(3):
            out, in_place = out._replace(storage=_filled(out.storage, c.storage)), "c"
        else:
            kwargs["c"] = c
    bias, activation = None, None
    if direction == "forward":
        bias = kwargs["bias"] = draw.operand(draw.integers((case.w[0],), stored, 4), stored) if draw.chance(2) else None
        activation = kwargs["activation"] = draw.one((None, "relu"))
    wide = [
        from_layout(first.values, layout),
        second.values if direction != "weight" else from_layout(second.values, layout),
    ]
    expected = reference.finish(
        case.expected(direction, *wide), alpha=alpha, beta=beta, c=None if c is None else from_layout(c.values, result),
        bias=None if bias is None else bias.values, activation=activation,
    )  # fmt: skip
    largest = max(abs(alpha), 1) * np.prod([np.abs(x).max(initial=1.0) for x in wide]) * np.sqrt(max(sums, 1)) + 70
    plan = _conv_plan if direction == "forward" and alpha == 1.0 and not beta else None
    return Call(
        "conv", FUNCTIONS[direction], (first, second, *more), kwargs, out,
        _check(to_layout(expected, result), stored, largest, sums), plan, in_place,
    )  # fmt: skip


def _check(expected: np.ndarray, dtype: str, largest: float, sums: int) -> Any:
    def check(solver: str, storage: np.ndarray) -> None:
        if is_exact(solver):
            assert_exact(storage, expected, dtype, vacuous=True)
        else:
            k = amplification(solver) * max(sums, 1)
            assert_close(
                storage, expected, k=k, dtype=dtype, max_abs=max(largest, np.abs(expected).max(initial=0)), vacuous=True
            )

    return check


def _conv_plan(args: Any, kwargs: Any) -> Any:
    taken = {name: value for name, value in kwargs.items() if name not in ("alpha", "beta")}
    return numbaprims.conv.plan(args[0].shape, args[1], **taken), args[:1]


def _bias(draw: Draw) -> Call:
    dtype, layout = draw.dtype(), str(draw.one(LAYOUTS))
    shape = (draw.one((0, 1, 2, 3)), *(draw.size(dtype) for _ in range(1 + draw.one((1, 2, 2, 3)))))
    if np.prod(shape) > 100_000:
        shape = shape[:3]
    dy = draw.operand(to_layout(draw.integers(shape, dtype, int(np.prod(shape)) + 1), layout), dtype)
    expected = reference.conv_backward_bias(from_layout(dy.values, layout))
    return Call(
        "conv",
        "conv_backward_bias",
        (dy,),
        {"layout": layout},
        draw.result((shape[1],), dtype),
        exactly(expected, dtype),
    )


def _transpose(draw: Draw, case: Case, dtype: str) -> Call:
    """The data gradient under its other name: x is what y was, the result as large as window and padding say."""
    layout = str(draw.one(LAYOUTS))
    window = case.resolved()
    pairs = shapes.resolve_padding(case.padding, case.x[2:], case.w[2:], window["stride"], window["dilation"])
    more = tuple(draw.one((0, 0, max(s, d) - 1)) for s, d in zip(window["stride"], window["dilation"], strict=True))
    y = case.y()
    size = tuple(map(shapes.transposed_size, y[2:], case.w[2:], window["stride"], window["dilation"], pairs, more))
    sums = case.sums("data")
    if min(size) < 1:
        return _plain(draw, case, "data", dtype)
    x = draw.operand(to_layout(draw.integers(y, dtype, sums), layout), dtype)
    weight = draw.operand(draw.integers(case.w, dtype, sums), dtype)
    bias = draw.operand(draw.integers((case.x[1],), dtype, 4), dtype) if draw.chance(2) else None
    activation = draw.one((None, "relu"))
    wide = from_layout(x.values, layout)
    expected = reference.finish(
        reference.conv_backward_data(wide, weight.values, size, **window),
        activation=activation,
        bias=None if bias is None else bias.values,
    )
    expected = to_layout(expected, layout)
    kwargs = {
        "bias": bias, "stride": window["stride"], "padding": pairs, "output_padding": more,
        "dilation": window["dilation"], "groups": case.groups, "layout": layout, "activation": activation,
    }  # fmt: skip
    largest = np.abs(wide).max(initial=1.0) * np.abs(weight.values).max(initial=1.0) * np.sqrt(max(sums, 1)) + 70
    out = draw.result(expected.shape, dtype)
    return Call("conv", "conv_transpose", (x, weight), kwargs, out, _check(expected, dtype, largest, sums))


def _integer(draw: Draw, case: Case, dtype: str) -> Call:
    """conv_integer with zero points, which stand in the padding too."""
    layout, sums = str(draw.one(LAYOUTS)), case.sums("forward")
    x = draw.operand(to_layout(draw.integers(case.x, dtype, sums), layout), dtype)
    weight = draw.operand(draw.integers(case.w, "i8", sums), "i8")
    limits = np.iinfo(x.storage.dtype)
    x_zero = int(draw.one((0, limits.min, limits.max, 3)))
    w_zero: Any = draw.one((0, -128, 5))
    zeros = np.full(case.w[0], w_zero)
    if draw.chance(3) and case.w[0]:
        zeros = draw.rng.integers(-128, 128, case.w[0])
        w_zero = Operand(zeros.astype(np.int8), "i8", "C")
    moved = weight.values - zeros.reshape(-1, *(1,) * (case.rank + 1))
    expected = reference.conv(from_layout(x.values, layout) - x_zero, moved, case.y()[2:], **case.resolved())
    expected = to_layout(expected, layout)
    kwargs = {"x_zero_point": x_zero, "weight_zero_point": w_zero, "layout": layout, **case.window}
    out = draw.result(expected.shape, "i32")
    return Call("conv", "conv_integer", (x, weight), kwargs, out, exactly(expected, "i32"))
