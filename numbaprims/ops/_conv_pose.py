"""What is checked of a convolution's arguments, and how they become a `ConvProblem`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from numbaprims import arrays, shapes
from numbaprims.ops._conv_problem import ConvProblem, ConvStrides, Posed, Triple, five, order_of, three
from numbaprims.ops.epilogue import IDENTITY, resolve_activation

FLOATS = ("f64", "f32", "f16", "bf16")
INTEGER_PAIRS = {("i8", "i8"), ("u8", "i8")}


class Window(NamedTuple):
    """How a window walks over its input, as the caller says it."""

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: Any = 1
    layout: Any = "NCHW"


class Ending(NamedTuple):
    """What happens to the sums: activation(alpha sums + beta c + bias), and where the result goes."""

    bias: Any = None
    activation: Any = None
    alpha: float = 1.0
    beta: float = 0.0
    c: Any = None
    out: Any = None
    out_dtype: Any = None


class Geometry(NamedTuple):
    """Sizes in canonical form, and the shapes in the caller's layout."""

    rank: int
    last: bool
    n: int
    c: int
    k: int
    groups: int
    x_size: Triple
    kernel: Triple
    y_size: Triple
    stride: Triple
    dilation: Triple
    padding: Triple

    def shape(self, of: str) -> tuple[int, ...]:
        """The shape of x, w or y in the caller's layout."""
        if of == "w":
            return (self.k, self.c // self.groups, *self.kernel[3 - self.rank :])
        channels, size = (self.c, self.x_size) if of == "x" else (self.k, self.y_size)
        spatial = size[3 - self.rank :]
        return (self.n, *spatial, channels) if self.last else (self.n, channels, *spatial)


def spatial_rank(x: Any, given: Any, name: str) -> int:
    """How many spatial dimensions an array has: those beside batch and channels."""
    rank = int(x.ndim) - 2
    if rank not in (1, 2, 3):
        raise ValueError(
            f"{name} is a {arrays.describe(given)}; a convolution takes a batch, channels and one to three spatial "
            "dimensions"
        )
    return rank


def split_shape(shape: Sequence[int], last: bool) -> tuple[int, int, tuple[int, ...]]:
    """Batch, channels and spatial sizes of a shape."""
    shape = tuple(int(size) for size in shape)
    return (shape[0], shape[-1], shape[1:-1]) if last else (shape[0], shape[1], shape[2:])


def _groups(groups: Any) -> int:
    return shapes.per_dimension(groups, 1, "groups", 1)[0]


def geometry(x_shape: Sequence[int], w_shape: Sequence[int], window: Window, x_name: str = "x") -> Geometry:
    """The geometry of y = conv(x, w), from the shapes of x and w.

    Raises:
        ValueError: shapes that do not fit, naming them.
    """
    rank = len(x_shape) - 2
    if rank not in (1, 2, 3) or len(w_shape) != rank + 2:
        raise ValueError(
            f"{x_name} has shape {tuple(x_shape)} and weight {tuple(w_shape)}; both take one to three spatial "
            "dimensions after two others, as many in one as in the other"
        )
    last = shapes.channels_last(window.layout, rank)
    n, c, size = split_shape(x_shape, last)
    k, group_c, kernel = int(w_shape[0]), int(w_shape[1]), tuple(int(taps) for taps in w_shape[2:])
    groups = _groups(window.groups)
    if group_c * groups != c or k % groups or 0 in kernel:
        raise ValueError(
            f"{x_name} has {c} channels, weight has shape {tuple(w_shape)} and groups is {groups}; weight must be "
            f"(K, C / groups, kernel...) with C = {c}, K a multiple of groups and no empty kernel"
        )
    stride = shapes.per_dimension(window.stride, rank, "stride", 1)
    dilation = shapes.per_dimension(window.dilation, rank, "dilation", 1)
    padding = shapes.resolve_padding(window.padding, size, kernel, stride, dilation)
    outputs = tuple(map(shapes.output_size, size, kernel, stride, dilation, padding))
    if min(outputs) < 1:
        extent = tuple(map(shapes.window_extent, kernel, dilation))
        raise ValueError(
            f"{x_name} is {size} large with padding {padding}, the dilated kernel spans {extent}: it does not fit"
        )
    return Geometry(
        rank, last, n, c, k, groups, three(size, 1), three(kernel, 1), three(outputs, 1), three(stride, 1),
        three(dilation, 1), three(tuple(before for before, _ in padding), 0),
    )  # fmt: skip


def transposed_geometry(
    x_shape: Sequence[int], w_shape: Sequence[int], window: Window, output_padding: Any
) -> Geometry:
    """The geometry whose data gradient is conv_transpose(x, w): its y is the caller's x, its x the result.

    Raises:
        ValueError: shapes that do not fit, naming them.
    """
    rank = len(x_shape) - 2
    if rank not in (1, 2, 3) or len(w_shape) != rank + 2:
        raise ValueError(
            f"x has shape {tuple(x_shape)} and weight {tuple(w_shape)}; both take one to three spatial dimensions "
            "after two others, as many in one as in the other"
        )
    last = shapes.channels_last(window.layout, rank)
    n, k, size = split_shape(x_shape, last)
    groups = _groups(window.groups)
    group_c, kernel = int(w_shape[1]), tuple(int(taps) for taps in w_shape[2:])
    if w_shape[0] != k or k % groups or 0 in kernel:
        raise ValueError(
            f"x has {k} channels, weight has shape {tuple(w_shape)} and groups is {groups}; weight of a transposed "
            f"convolution must be ({k}, K / groups, kernel...), with {k} a multiple of groups and no empty kernel"
        )
    stride = shapes.per_dimension(window.stride, rank, "stride", 1)
    dilation = shapes.per_dimension(window.dilation, rank, "dilation", 1)
    if isinstance(window.padding, str):
        raise ValueError(f"padding is {window.padding!r}; a transposed convolution takes numbers")
    padding = shapes.resolve_padding(window.padding, size, kernel, stride, dilation)
    more = shapes.per_dimension(output_padding, rank, "output_padding", 0)
    for extra, step, gap in zip(more, stride, dilation, strict=True):
        if extra >= max(step, gap):
            raise ValueError(
                f"output_padding is {output_padding!r}; it must be smaller than stride {stride} or dilation {dilation}"
            )
    outputs = tuple(map(shapes.transposed_size, size, kernel, stride, dilation, padding, more))
    if min(outputs) < 1:
        raise ValueError(f"padding {padding} leaves nothing of the result: its size would be {outputs}")
    return Geometry(
        rank, last, n, group_c * groups, k, groups, three(outputs, 1), three(kernel, 1), three(size, 1),
        three(stride, 1), three(dilation, 1), three(tuple(before for before, _ in padding), 0),
    )  # fmt: skip


def enter_two(first: Any, first_name: str, second: Any, second_name: str) -> tuple[Any, ...]:
    """Both operands' storage and dtype, and their library.

    Raises:
        TypeError: mixed libraries or dtypes, or dtypes that convolution does not take.
    """
    a, a_dtype, library = arrays.enter(first, first_name)
    b, b_dtype, b_library = arrays.enter(second, second_name)
    integer = (a_dtype, b_dtype) in INTEGER_PAIRS and second_name == "weight" and first_name == "x"
    if library is not b_library or (a_dtype != b_dtype and not integer):
        arrays.require_same(first, first_name, second, second_name)
    if not integer and a_dtype not in FLOATS:
        raise TypeError(
            f"{first_name} is a {arrays.describe(first)} and {second_name} a {arrays.describe(second)}; this "
            "convolution takes float64, float32, float16 and bfloat16, the forward one int8 and uint8 x int8 too"
        )
    return a, a_dtype, b, b_dtype, library


def _result_dtype(dtype: str, out_dtype: Any) -> str:
    accumulate = arrays.DTYPES[dtype].accumulate
    natural = "i32" if accumulate == "i32" else dtype
    if out_dtype is None:
        return natural
    wanted = arrays.dtype_name(out_dtype)
    if wanted not in (natural, accumulate):
        names = " or ".join(sorted({arrays.LONG_NAMES[name] for name in (natural, accumulate)}))
        raise TypeError(f"out_dtype is {out_dtype!r}; for {arrays.LONG_NAMES[dtype]} it may be {names}")
    return wanted


def enter_c(c: Any, beta: float, shape: tuple[int, ...], dtype: str, library: arrays.Library) -> ndarray | None:
    """What beta multiplies, in the shape of the result; None where beta is 0."""
    if beta == 0.0:
        return None  # as in BLAS: with beta 0, c is not read, and NaN in it does not spread
    if c is None:
        raise ValueError(f"beta is {beta} and c is not given; pass c, or leave beta 0")
    view, c_dtype, c_library = arrays.enter(c, "c")
    if c_library is not library or c_dtype != dtype:
        raise TypeError(f"c is a {arrays.describe(c)}; it must be a {arrays.LONG_NAMES[dtype]} {library.name} array")
    if view.shape == shape:
        return view  # broadcast_to would change the strides of dimensions of one element, and c=out must be known again
    try:
        return np.broadcast_to(view, shape)
    except ValueError:
        raise ValueError(f"c is a {arrays.describe(c)}; it must broadcast to the result's {shape}") from None


def _enter_bias(bias: Any, length: int, dtype: str, library: arrays.Library) -> Any:
    view, have, of = arrays.enter(bias, "bias")
    if of is not library or have != dtype:
        raise TypeError(
            f"bias is a {arrays.describe(bias)}; it must be a {arrays.LONG_NAMES[dtype]} {library.name} array"
        )
    if view.shape != (length,):
        raise ValueError(f"bias is a {arrays.describe(bias)}; it must be ({length},), one value a channel")
    return view


def pose(
    direction: str, shape: Geometry, operands: tuple[Any, ...], ending: Ending, *, zeros: str = "none",
    requantized: str = "", extra: ndarray | None = None,
) -> Posed:  # fmt: skip
    """Check what is left to check, and describe the call.  `operands` are those of `enter_two`, whose shapes fit."""
    first, first_dtype, second, second_dtype, library = operands
    result = {"forward": "y", "data": "x", "weight": "w"}[direction]
    out_dtype = requantized or _result_dtype(first_dtype, ending.out_dtype)
    out_shape = shape.shape(result)
    act = resolve_activation(ending.activation)
    integer = arrays.DTYPES[first_dtype].accumulate == "i32"
    if integer and (ending.alpha != 1.0 or ending.beta not in (0.0, 1.0)):
        raise ValueError(f"alpha={ending.alpha} and beta={ending.beta}; integers take alpha 1 and beta 0 or 1")
    if integer and act.kind not in ("identity", "relu"):
        raise ValueError(f"activation {act.kind!r}; integers take None or 'relu'")
    c = enter_c(ending.c, ending.beta, out_shape, out_dtype, library)
    bias = None
    if ending.bias is not None:
        channels = shape.k if direction == "forward" else shape.c
        bias = _enter_bias(ending.bias, channels, "i32" if integer else first_dtype, library)
    out = None
    if ending.out is not None:
        out = arrays.check_out(ending.out, out_shape, out_dtype, library=library)

    def canonical(x: Any, of: str) -> tuple[Any, Any]:
        return five(x.shape, x.strides, x.itemsize, shape.last and of != "w")

    views = {
        "forward": {"x": first, "w": second},
        "data": {"y": first, "w": second},
        "weight": {"y": first, "x": second},
    }
    sizes_and_steps = {of: canonical(x, of) for of, x in views[direction].items()}
    new_last = False
    if out is not None:
        sizes_and_steps[result] = canonical(out, result)
    else:
        # a result lies as its operand does: torch's channels_last tensors then just work
        if result != "w" and not shape.last:
            source = sizes_and_steps["x" if result == "y" else "y"]
            new_last = order_of(source[1], source[0]) == "last"
        item = arrays.DTYPES[out_dtype].itemsize
        sizes_and_steps[result] = _fresh(out_shape, item, shape.last and result != "w", new_last)
    orders = {of: order_of(steps, sizes) for of, (sizes, steps) in sizes_and_steps.items()}
    steps_of = {of: steps for of, (_, steps) in sizes_and_steps.items()}
    c_steps = (0,) * 5 if c is None else canonical(c, result)[1]
    dtypes = {"forward": (first_dtype, second_dtype, out_dtype), "data": (out_dtype, second_dtype, first_dtype),
              "weight": (second_dtype, out_dtype, first_dtype)}[direction]  # fmt: skip
    problem = ConvProblem(
        direction=direction, n=shape.n, c=shape.c, k=shape.k, groups=shape.groups, x_size=shape.x_size,
        kernel=shape.kernel, y_size=shape.y_size, stride=shape.stride, dilation=shape.dilation, padding=shape.padding,
        x_dtype=dtypes[0], w_dtype=dtypes[1], y_dtype=dtypes[2], x_order=orders["x"], w_order=orders["w"],
        y_order=orders["y"], has_c=c is not None, bias=bias is not None, activation=act, scaled=ending.alpha != 1.0,
        zeros=zeros, requantized=bool(requantized),
        strides=ConvStrides(
            steps_of["x"], steps_of["w"], steps_of["y"], c_steps,
            0 if bias is None else bias.strides[0] // bias.itemsize,
        ),
    )  # fmt: skip
    posed = Posed(problem, out_shape, new_last, first, second, c, bias, out, extra, library)
    if out is not None:
        arrays.check_overlap(out, posed.inputs())
    return posed


def _fresh(shape: tuple[int, ...], itemsize: int, last: bool, new_last: bool) -> tuple[Any, Any]:
    """Canonical sizes and strides of a result that is yet to be made."""
    lying = (shape[0], *shape[2:], shape[1]) if new_last else shape
    strides = tuple(itemsize * int(np.prod(lying[i + 1 :], dtype=np.int64)) for i in range(len(lying)))
    return five(lying, strides, itemsize, last or new_last)


def pose_bias(dy: Any, layout: Any, out: Any) -> Posed:
    """Check and describe the gradient of a bias: the sums of dy over everything but its channels."""
    view, dtype, library = arrays.enter(dy, "dy")
    rank = spatial_rank(view, dy, "dy")
    if dtype not in FLOATS:
        raise TypeError(f"dy is a {arrays.describe(dy)}; it must be float64, float32, float16 or bfloat16")
    last = shapes.channels_last(layout, rank)
    n, k, size = split_shape(view.shape, last)
    target = None if out is None else arrays.check_out(out, (k,), dtype, library=library)
    sizes, steps = five(view.shape, view.strides, view.itemsize, last)
    one: Triple = (1, 1, 1)
    problem = ConvProblem(
        direction="bias", n=n, c=1, k=k, groups=1, x_size=one, kernel=one, y_size=three(size, 1), stride=one,
        dilation=one, padding=(0, 0, 0), x_dtype=dtype, w_dtype=dtype, y_dtype=dtype, x_order="planes",
        w_order="planes", y_order=order_of(steps, sizes), has_c=False, bias=False, activation=IDENTITY, scaled=False,
        strides=ConvStrides(
            (0,) * 5, (1 if target is None else target.strides[0] // target.itemsize, 0, 0, 0, 0), steps, (0,) * 5, 0
        ),
    )  # fmt: skip
    posed = Posed(problem, (k,), False, view, view, None, None, target, None, library)
    if target is not None:
        arrays.check_overlap(target, [(view, "dy", False)])
    return posed


def prepared(posed: Posed) -> Posed:
    """The same call with weights that a plan has prepared."""
    return posed._replace(problem=dataclasses.replace(posed.problem, prepared=True))
