"""Draws of what goes over images: stacks of operations, response normalisation; and of tensor operators."""

from itertools import starmap
from typing import Any

import numpy as np

from fuzzing.calls import Call, Draw
from fuzzing.formulas import _call, _real
from numbaprims.shapes import sees_nothing
from numbaprims.stacks.operations import NUMBERS, Operation, Pointwise, Window


def stack(draw: Draw) -> Call:
    """One to five operations over images of any width, often narrow and high; or the gradient, of what does not choose
    by what rounding leaves."""
    back, dtype, layout = draw.chance(3), draw.dtype(), str(draw.one(("NCHW", "NHWC")))
    n, c = int(draw.one((1, 2))), draw.size(dtype, 1) if layout == "NHWC" else int(draw.one((1, 2, 3)))
    size = int(draw.rng.integers(1, 40 if draw.chance(2) else 9)), draw.size(dtype, 1)

    def image(size: tuple[int, int]) -> Any:
        return _real(draw, (n, *size, c) if layout == "NHWC" else (n, c, *size), dtype)

    x, operations, numbers, added, taps = image(size), list[Operation](), list[np.ndarray](), list[Any](), 1
    for _ in range(int(draw.rng.integers(1, 6))):
        kind = str(draw.one(("avg", "depthwise", "sigmoid", *NUMBERS, *(() if back else ("max", "relu")))))
        if kind in ("max", "avg", "depthwise"):
            each: Operation = _window(draw, kind, size)
            assert isinstance(each, Window)
            size, taps = each.out_size(size), taps + each.kernel[0] * each.kernel[1]
        else:
            each = Pointwise(kind, NUMBERS.get(kind, 0))
        if kind == "add":
            if len(added) == 4:
                continue
            added.append(image(size))
        operations.append(each)
        numbers += [draw.rng.uniform(-1, 1, c) for _ in range(each.numbers)]
    acc = dtype if dtype in ("f32", "f64") else "f32"
    parameters = draw.operand(np.stack(numbers, 1), acc) if numbers else None
    args = (x, operations, parameters, *added)
    if back:
        args, words = (image(size), *args), {"layout": layout, "of_parameters": (), "of_added": ()}
        given = lambda a, k: (a[:4], k | {"added": list(a[4:])})  # noqa: E731
        return _call(draw, "stack", "stack_backward", args, words, 256 * taps, given)
    words = {"layout": layout, "limit": int(draw.one((0, 0, 3000, -1))), "most": int(draw.one((0, 0, 1, 2)))}
    return _call(draw, "stack", "stack", args, words, 64 * taps, lambda a, k: (a[:3], k | {"added": list(a[3:])}))


def _window(draw: Draw, op: str, size: tuple[int, int]) -> Window:
    """A window that fits."""
    while True:
        kernel, stride = (tuple(int(draw.one(of)) for _ in size) for of in ((1, 2, 3, 3, 5), (1, 1, 2, 3)))
        before, after = (tuple(int(draw.rng.integers(0, k // 2 + 1)) for k in kernel) for _ in range(2))
        dilation = (int(draw.one((1, 1, 1, 2))), int(draw.one((1, 1, 1, 2))))
        ceil = op != "depthwise" and draw.chance(3)
        made = Window(op, kernel, stride, before, after, dilation, ceil, draw.chance(2))
        outs = made.out_size(size)
        along = zip(outs, size, kernel, stride, dilation, before, strict=True)
        if min(outs) > 0 and (op == "depthwise" or not any(starmap(sees_nothing, along))):
            return made


def lrn(draw: Draw) -> Call:
    dtype, rank = draw.dtype(), int(draw.one((1, 2, 2, 3)))
    layout, mode = (
        str(draw.one(("NCHW", "NHWC"))),
        str(draw.one(("across_channels", "across_channels", "within_channel"))),
    )
    size = [int(draw.rng.integers(1, 30 if draw.chance(3) else 6)) for _ in range(rank)]
    size[-1], c = draw.size(dtype, 1), draw.size(dtype, 1)
    shape = (int(draw.one((1, 2))), *((*size, c) if layout == "NHWC" else (c, *size)))
    words = {"alpha": 0.5, "beta": float(draw.one((0.5, 0.75, 0.6))), "k": 1.0, "mode": mode, "layout": layout}
    function, taps = str(draw.one(("lrn", "lrn_backward"))), int(draw.one((1, 3, 5, 5, 9)))
    arrays = [_real(draw, shape, dtype) for _ in range(2 if function == "lrn_backward" else 1)]
    return _call(draw, "lrn", function, (*arrays, taps), words, 256 + 16 * taps**rank)


def tensor(draw: Draw) -> Call:
    """Two arrays that broadcast, axes in another order, arrays behind one another, another type."""
    dtype, ndim = draw.dtype(), int(draw.one((1, 2, 2, 3, 4)))
    shape = [draw.size(dtype, 1) if draw.chance(2) else int(draw.one((1, 2, 3, 5))) for _ in range(ndim)]
    function = str(draw.one(("binary", "binary", "where", "transform", "transform", "concat", "scale")))
    if function in ("binary", "where"):
        other = tuple(1 if draw.chance(3) else n for n in shape)[int(draw.one((0, 0, 1))) :]
        a, b = _real(draw, tuple(shape), dtype), _real(draw, other, dtype)
        if function == "where":
            return _call(draw, "tensor", "where", (b, a, a), {}, 1)
        op = str(draw.one(("add", "sub", "mul", "min", "max")))
        words = {"op": op, "alpha1": float(draw.one((1.0, 0.5))), "alpha2": float(draw.one((1.0, -2.0)))}
        return _call(draw, "tensor", "binary", (a, b), words, 8)
    x = _real(draw, tuple(shape), dtype)
    if function == "scale":
        return _call(draw, "tensor", "scale", (x, 0.75), {}, 2)
    if function == "transform":
        return _call(draw, "tensor", "transform", (x, tuple(map(int, draw.rng.permutation(ndim)))), {}, 1)
    axis = int(draw.rng.integers(ndim))
    lengths = [int(draw.one((1, 2, 3, 17))) for _ in range(int(draw.one((1, 2, 3))))]
    parts = [_real(draw, (*shape[:axis], length, *shape[axis + 1 :]), dtype) for length in lengths]
    return _call(draw, "tensor", "concat", (x, *parts), {"axis": axis}, 1, lambda a, k: ((list(a),), k))
