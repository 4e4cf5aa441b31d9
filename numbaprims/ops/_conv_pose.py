"""What is checked of a convolution's arguments, how they become a `ConvProblem`, and what runs each function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims import arrays, shapes
from numbaprims.ops._conv_problem import ConvProblem, ConvStrides, Triple, five, order_of, three
from numbaprims.ops.epilogue import IDENTITY, Activation
from numbaprims.ops.primitive import Given, Pose, Result
from numbaprims.ops.product import Product, broadcast, check_integers, of_dtype, operand_dtype, result_dtype

_TAKES = "this convolution takes float64, float32, float16 and bfloat16, the forward one int8 and uint8 x int8 too"


class Window(NamedTuple):
    """How a window walks over its input, as the caller says it."""

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: Any = 1
    layout: Any = "NCHW"


class Options(NamedTuple):
    """What a call says beside its arrays and numbers; a plain tuple where it has to be made fast."""

    window: tuple[Any, ...]
    """The fields of `Window`."""
    target: Any = None
    """The shape of the result of a gradient; of a transposed convolution, its output_padding."""
    unscaled: bool = True
    exact_beta: bool = True
    """Whether beta is 0 or 1."""
    activation: str = "identity"
    out_dtype: Any = None
    algorithm: str = "auto"
    zeros: str = "none"
    requantized: str = ""
    prepared: bool = False


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


#: The largest step and padding; elements that an address of 47 bits counts.
MOST, ADDRESSED = 2**31 - 1, 2**47


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


def geometry(
    x_shape: Sequence[int], w_shape: Sequence[int], window: Window, x_name: str = "x", w_name: str = "weight"
) -> Geometry:
    """The geometry of y = conv(x, w), from the shapes of x and w.

    Raises:
        ValueError: shapes that do not fit, naming them.
    """
    rank = len(x_shape) - 2
    if rank not in (1, 2, 3) or len(w_shape) != rank + 2:
        raise ValueError(
            f"{x_name} has shape {tuple(x_shape)} and {w_name} {tuple(w_shape)}; both take one to three spatial "
            "dimensions after two others, as many in one as in the other"
        )
    last = shapes.channels_last(window.layout, rank)
    n, c, size = split_shape(x_shape, last)
    k, group_c, kernel = int(w_shape[0]), int(w_shape[1]), tuple(int(taps) for taps in w_shape[2:])
    groups = _groups(window.groups)
    if group_c * groups != c or k % groups or 0 in kernel:
        raise ValueError(
            f"{x_name} has {c} channels, {w_name} has shape {tuple(w_shape)} and groups is {groups}; {w_name} must be "
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


def pose(direction: str, shape_of: Callable[[Given, Options], Geometry]) -> Callable[[Given, Any], Pose]:
    """How calls in a direction are checked."""

    def posed(given: Given, options: Any) -> Pose:
        options = Options(*options)
        dtype, integer = operand_dtype(given, direction == "forward", _TAKES)
        return _pose(direction, shape_of(given, options), given, options, dtype, integer)

    return posed


def forward_shape(given: Given, options: Options) -> Geometry:
    """Of y = conv(x, w)."""
    return geometry(given.storages[0].shape, given.storages[1].shape, Window(*options.window))


def transposed_shape(given: Given, options: Options) -> Geometry:
    """Of the convolution whose data gradient a transposed one is."""
    x, w = given.storages[:2]
    return transposed_geometry(x.shape, w.shape, Window(*options.window), options.target)


def data_shape(given: Given, options: Options) -> Geometry:
    """Of the convolution whose data gradient is asked for."""
    shape = shapes.sizes_of(options.target, "input_shape")
    return _of_gradient(given, shape, given.storages[1].shape, options, "input_shape")


def weight_shape(given: Given, options: Options) -> Geometry:
    """Of the convolution whose weight gradient is asked for."""
    shape = shapes.sizes_of(options.target, "kernel_shape")
    return _of_gradient(given, given.storages[1].shape, shape, options, "x", "kernel_shape")


def _of_gradient(
    given: Given, x_shape: Any, w_shape: Any, options: Options, x_name: str, w_name: str = "weight"
) -> Geometry:
    shape = geometry(x_shape, w_shape, Window(*options.window), x_name, w_name)
    if given.storages[0].shape != shape.shape("y"):
        raise ValueError(
            f"{given.words(0)}; the convolution of {tuple(x_shape)} with {tuple(w_shape)} gives {shape.shape('y')}"
        )
    return shape


def _pose(direction: str, shape: Geometry, given: Given, options: Options, dtype: str, integer: bool) -> Pose:
    first, second, *_ = given.storages
    result = {"forward": "y", "data": "x", "weight": "w"}[direction]
    for name in ("stride", "dilation", "padding"):
        if max(getattr(shape, name)) > MOST:
            raise ValueError(f"{name} is {getattr(shape, name)[3 - shape.rank :]}; {MOST} is the most")
    if math.prod(shape.shape(result)) > ADDRESSED:  # estimates would walk it for minutes
        raise ValueError(f"the result would have shape {shape.shape(result)}, which no memory holds")
    out_dtype = options.requantized or result_dtype(dtype, options.out_dtype)
    out_shape = shape.shape(result)
    if integer:
        check_integers(given.numbers, options.activation)
    c = broadcast(given, 2, out_shape, out_dtype)
    bias = None
    if given.storages[3] is not None:
        bias = of_dtype(given, 3, "i32" if integer else dtype)
        channels = shape.k if direction == "forward" else shape.c
        if bias.shape != (channels,):
            raise ValueError(f"{given.words(3)}; it must be ({channels},), one value a channel")

    def canonical(x: Any, of: str) -> tuple[Any, Any]:
        return five(x.shape, x.strides, x.itemsize, shape.last and of != "w")

    views = {
        "forward": {"x": first, "w": second},
        "data": {"y": first, "w": second},
        "weight": {"y": first, "x": second},
    }
    read = {of: canonical(x, of) for of, x in views[direction].items()}
    behind = False
    # a result lies as its operand does: torch's channels_last tensors then just work
    if result != "w" and not shape.last:
        sizes, steps = read["x" if result == "y" else "y"]
        behind = order_of(steps, sizes) == "channels_last"

    def problem(made: Sequence[Any]) -> ConvProblem:
        if made[0] is None:
            itemsize = arrays.DTYPES[out_dtype].itemsize
            written = _fresh(out_shape, itemsize, shape.last and result != "w", behind)
        else:
            written = canonical(made[0], result)
        every = {**read, result: written}
        orders = {of: order_of(steps, sizes) for of, (sizes, steps) in every.items()}
        types: Any = given.dtypes[:2]
        # of x, w and y
        dtypes = {"forward": (*types, out_dtype), "data": (out_dtype, types[1], types[0]),
                  "weight": (types[1], out_dtype, types[0])}[direction]  # fmt: skip
        return ConvProblem(
            direction=direction, n=shape.n, c=shape.c, k=shape.k, groups=shape.groups, x_size=shape.x_size,
            kernel=shape.kernel, y_size=shape.y_size, stride=shape.stride, dilation=shape.dilation,
            padding=shape.padding, x_dtype=dtypes[0], w_dtype=dtypes[1], y_dtype=dtypes[2], x_order=orders["x"],
            w_order=orders["w"], y_order=orders["y"], has_c=c is not None, bias=bias is not None,
            activation=Activation(options.activation, given.numbers[2:5]), scaled=not options.unscaled,
            zeros=options.zeros, requantized=bool(options.requantized), prepared=options.prepared,
            strides=ConvStrides(
                every["x"][1], every["w"][1], every["y"][1], (0,) * 5 if c is None else canonical(c, result)[1],
                0 if bias is None else bias.strides[0] // bias.itemsize,
            ),
        )  # fmt: skip

    return Pose((Result(out_shape, out_dtype, channels_behind=behind),), problem, algorithm=options.algorithm)


def _fresh(shape: tuple[int, ...], itemsize: int, last: bool, new_last: bool) -> tuple[Any, Any]:
    """Canonical sizes and strides of a result that is yet to be made."""
    lying = (shape[0], *shape[2:], shape[1]) if new_last else shape
    strides = tuple(itemsize * int(np.prod(lying[i + 1 :], dtype=np.int64)) for i in range(len(lying)))
    return five(lying, strides, itemsize, last or new_last)


def pose_bias(given: Given, options: tuple[Any, ...]) -> Pose:
    """The gradient of a bias: the sums of dy over everything but its channels."""
    dy, dtype = given.storages[0], given.dtypes[0]
    assert dtype is not None
    rank = spatial_rank(dy, given.arrays[0], "dy")
    last = shapes.channels_last(options[0], rank)
    n, k, size = split_shape(dy.shape, last)
    sizes, steps = five(dy.shape, dy.strides, dy.itemsize, last)
    one: Triple = (1, 1, 1)

    def problem(made: Sequence[Any]) -> ConvProblem:
        step = 1 if made[0] is None else made[0].strides[0] // made[0].itemsize
        return ConvProblem(
            direction="bias", n=n, c=1, k=k, groups=1, x_size=one, kernel=one, y_size=three(size, 1), stride=one,
            dilation=one, padding=(0, 0, 0), x_dtype=dtype, w_dtype=dtype, y_dtype=dtype, x_order="planes",
            w_order="planes", y_order=order_of(steps, sizes), has_c=False, bias=False, activation=IDENTITY,
            scaled=False, strides=ConvStrides((0,) * 5, (step, 0, 0, 0, 0), steps, (0,) * 5, 0),
        )  # fmt: skip

    return Pose((Result((k,), dtype),), problem)


class Convolution(Product):
    """A public function: two operands, what is added, a bias."""

    def _define_product(self, given: Any, target: Any, form: Result, options: Any, numbers: Any) -> None:
        from numbaprims.reference import conv as reference

        storages, kinds = self._entered(given)
        problem = self._checked(given, storages, kinds, options, numbers).problem([target])
        reference.into(problem, target, storages, numbers)


def _convolution(name: str, first: str, second: str, direction: str, shape_of: Any) -> Convolution:
    inputs = (first, second, "c", "bias")
    return Convolution(name, inputs, pose(direction, shape_of), dtypes=None, exact=("c",))


FORWARD = _convolution("conv", "x", "weight", "forward", forward_shape)
DATA = _convolution("conv_backward_data", "dy", "weight", "data", data_shape)
WEIGHT = _convolution("conv_backward_weight", "dy", "x", "weight", weight_shape)
TRANSPOSED = _convolution("conv_transpose", "x", "weight", "data", transposed_shape)
BIAS = Convolution("conv_backward_bias", ("dy",), pose_bias, required=1)


def hashable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments as calls are looked up by: lists as tuples, and what else cannot be hashed in words, to be refused."""
    try:
        hash(values)
    except TypeError:
        return tuple(
            hashable(tuple(value)) if isinstance(value, (list, tuple)) else value if _hashes(value) else repr(value)
            for value in values
        )
    return values


def _hashes(value: Any) -> bool:
    return getattr(value, "__hash__", None) is not None
