"""The call that poses a stored convolution, for `find` and `tune`."""

from __future__ import annotations

import functools
import math
from typing import Any

from numbaprims import arrays, shapes
from numbaprims.ops import examples
from numbaprims.ops._conv_problem import five, order_of

Sizes = tuple[int, int, int, int, int]


def _laid_out(sizes: Sizes, dtype: str, order: str, rank: int) -> Any:
    """An array (n, c, spatial...) that lies in memory as `order` says, if an array of these sizes can."""
    n, c, *spatial = (*sizes[:2], *sizes[5 - rank :])
    makers = (
        lambda: examples.array((n, c, *spatial), dtype),
        lambda: examples.array((n, *spatial, c), dtype).transpose((0, rank + 1, *range(1, rank + 1))),
        lambda: examples.array((n, c, *spatial[:-1], spatial[-1] + 1), dtype)[..., :-1],
        lambda: examples.array((n, c, *spatial[:-1], 2 * spatial[-1]), dtype)[..., ::2],
    )
    for make in makers:
        x = make()
        view = arrays.enter(x, "x")[0]
        if order_of(*reversed(five(view.shape, view.strides, view.itemsize, False))) == order:
            return x
    return makers[0]()


def _fresh_order(sizes: Sizes, last: bool) -> str:
    """The order of a new array, its channels behind or not."""
    n, c, d, h, w = sizes
    shape = (n, d, h, w, c) if last else sizes
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(5))
    return order_of(*reversed(five(shape, strides, 1, last)))


def _padding(problem: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """(before, after): the least behind that leads to the size of y."""
    pairs = []
    for size, taps, step, gap, before, outputs in zip(
        problem.x_size, problem.kernel, problem.stride, problem.dilation, problem.padding, problem.y_size, strict=True
    ):
        pairs.append((before, max((outputs - 1) * step + shapes.window_extent(taps, gap) - size - before, 0)))
    return tuple(pairs[3 - rank :])


def example(problem: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function, the arguments and the keywords of a call that poses `problem`."""
    p = problem
    deep = p.x_size[0] * p.kernel[0] * p.y_size[0] > 1 or p.stride[0] > 1 or p.dilation[0] > 1 or p.padding[0] > 0
    rank = 3 if deep else 2
    x_sizes, y_sizes = (p.n, p.c, *p.x_size), (p.n, p.k, *p.y_size)
    w_sizes = (p.k, p.c // p.groups, *p.kernel)
    make = functools.partial(_laid_out, rank=rank)
    if p.direction == "bias":
        return "conv_backward_bias", (make(y_sizes, p.y_dtype, p.y_order),), {}
    window: dict[str, Any] = {
        "stride": p.stride[3 - rank :], "padding": _padding(p, rank), "dilation": p.dilation[3 - rank :],
        "groups": p.groups,
    }  # fmt: skip
    ending: dict[str, Any] = {}
    result = {
        "forward": (y_sizes, p.y_dtype, p.y_order), "data": (x_sizes, p.x_dtype, p.x_order),
        "weight": (w_sizes, p.w_dtype, p.w_order),
    }[p.direction]  # fmt: skip
    if p.scaled:
        ending["alpha"] = 2.0
    if p.has_c:
        ending |= {"beta": 1.0, "c": make(*result)}
    last = p.direction != "weight" and (p.x_order if p.direction == "forward" else p.y_order) == "channels_last"
    if result[2] != _fresh_order(result[0], last):
        ending["out"] = make(*result)
    elif p.direction == "forward" and p.y_dtype not in (p.x_dtype, "i32"):
        ending["out_dtype"] = p.y_dtype
    w = make(w_sizes, p.w_dtype, p.w_order)
    if p.direction == "weight":
        x, dy = make(x_sizes, p.x_dtype, p.x_order), make(y_sizes, p.y_dtype, p.y_order)
        return "conv_backward_weight", (dy, x, _shape(w_sizes, rank)), window | ending
    if p.direction == "data":
        dy = make(y_sizes, p.y_dtype, p.y_order)
        if not (p.bias or p.activation.kind != "identity"):
            return "conv_backward_data", (dy, w, _shape(x_sizes, rank)), window | ending
        return "conv_transpose", (dy, w, _bias(p.c, p)), window | _transposed(p, rank) | _only_out(ending) | _act(p)
    x = make(x_sizes, p.x_dtype, p.x_order)
    bias = _bias(p.k, p)
    if p.zeros != "none" or p.requantized:
        return _quantized(p, x, w, bias, window | _only_out(ending))
    if p.prepared:
        return _planned, (x, w, bias), window | _only_out(ending) | _act(p)
    return "conv", (x, w, bias), window | ending | _act(p)


def _planned(x: Any, w: Any, bias: Any, out: Any = None, **arguments: Any) -> Any:
    """What a plan computes; the plan itself is made at the first call of one set of arguments."""
    from numbaprims.ops import conv_plan

    key = (id(w), id(bias), repr(arguments))
    if key not in _plans:
        _plans.clear()  # a problem's calls follow one another
        # with the arrays, whose addresses then stay theirs
        _plans[key] = conv_plan.plan(x.shape, w, bias=bias, **arguments), w, bias
    return _plans[key][0](x, out=out)


_plans: dict[Any, tuple[Any, Any, Any]] = {}


def _quantized(problem: Any, x: Any, w: Any, bias: Any, more: dict[str, Any]) -> tuple[Any, ...]:
    """The call of a quantised convolution, with zero points where the problem has them."""
    x_zero = 3 if problem.zeros in ("input", "both") else 0
    w_zero = 2 if problem.zeros in ("weight", "both") else 0
    if not problem.requantized:
        return "conv_integer", (x, w), {"x_zero_point": x_zero, "weight_zero_point": w_zero, **more}
    y_zero = arrays.DTYPES[problem.y_dtype].storage.type(5)
    return "qlinear_conv", (x, 0.02, x_zero, w, 0.01, w_zero, 0.05, y_zero, bias), more


def _shape(sizes: Sizes, rank: int) -> tuple[int, ...]:
    return (*sizes[:2], *sizes[5 - rank :])


def _bias(channels: int, problem: Any) -> Any:
    dtype = "i32" if arrays.DTYPES[problem.x_dtype].accumulate == "i32" else problem.w_dtype
    return examples.array((channels,), dtype) if problem.bias else None


def _act(problem: Any) -> dict[str, Any]:
    return {"activation": examples.fused(problem.activation.kind)}


def _only_out(ending: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in ending.items() if name == "out"}


def _transposed(problem: Any, rank: int) -> dict[str, Any]:
    """Padding and output_padding of the transposed convolution that gives x_size."""
    pairs, more = [], []
    for size, taps, step, gap, before, inputs in zip(
        problem.x_size, problem.kernel, problem.stride, problem.dilation, problem.padding, problem.y_size, strict=True
    ):
        left = size - ((inputs - 1) * step + shapes.window_extent(taps, gap) - before)
        pairs.append((before, max(-left, 0)))
        more.append(max(left, 0))
    return {"padding": tuple(pairs[3 - rank :]), "output_padding": tuple(more[3 - rank :])}
