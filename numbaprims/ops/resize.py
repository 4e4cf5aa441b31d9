"""Resizing images, volumes and sequences: `resize` and its gradient."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from numbaprims.dtypes import FLOATS
from numbaprims.ops import examples
from numbaprims.ops._resize_problem import MODES, Five, ResizeProblem, Three
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems, scalar, truth
from numbaprims.reference import resize as reference
from numbaprims.shapes import channels_last, element_strides, per_dimension

FINE = 1 << 20
"""A scale is the nearest fraction whose denominator is not larger: places are exact, and 1 / 0.1 is 10."""


class Sampling(NamedTuple):
    """Along the spatial dimensions."""

    sizes: tuple[int, ...]
    to: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]


def sampling_of(sizes: tuple[int, ...], to: tuple[int, ...] | None, options: tuple[Any, ...]) -> Sampling:
    """The result's sizes, and the source's pixels from one of its pixels to the next."""
    _, scale, mode, align_corners, antialias, *_ = options
    rank = len(sizes)
    # dimensions whose size stays are left as they are, whatever the scale, where torch does so
    stays = antialias or mode == "linear" or (mode == "nearest" and rank < 3)
    scales: list[float | None] = [None] * rank
    if scale is not None:
        given = scale if isinstance(scale, tuple) else (scale,) * rank
        if len(given) != rank:
            raise ValueError(f"scale is {scale!r}; it must be one number, or {rank} of them")
        if not all(0 < each < math.inf and 1 / each < math.inf for each in given):
            raise ValueError(f"scale is {scale!r}; it must be positive, neither it nor 1 / scale infinite")
        scales = list(given)
    if to is None:
        if any(size * (each or 1) > 2**63 for size, each in zip(sizes, scales, strict=True)):
            raise ValueError(f"scale is {scale!r}, of {sizes} pixels; no memory holds the result")
        to = tuple(int(size * (each or 1)) for size, each in zip(sizes, scales, strict=True))
    steps = []
    for n, m, each in zip(sizes, to, scales, strict=True):
        if not n or not m:
            raise ValueError(f"{sizes} pixels become {to}; every spatial dimension must keep one at least")
        if align_corners:
            step = Fraction(n - 1, m - 1) if m > 1 else Fraction(0)
        elif each is None or (stays and n == m):
            step = Fraction(n, m)
        else:
            step = Fraction(1 / each).limit_denominator(FINE)
        steps.append((step.numerator, step.denominator))
    return Sampling(sizes, to, tuple(steps))


def _five(values: tuple[int, ...], last: bool, fill: Any) -> tuple[Any, ...]:
    """Numbers of an array's dimensions over (n, c, d, h, w)."""
    if last:
        values = (values[0], values[-1], *values[1:-1])
    return (*values[:2], *(fill,) * (5 - len(values)), *values[2:])


def _checked(given: Given, options: tuple[Any, ...]) -> tuple[int, bool]:
    """(spatial dimensions, whether channels are last), the words of a call being right."""
    _, _, mode, align_corners, antialias, layout, coeff = options
    x = given.storages[0]
    if not 3 <= x.ndim <= 5:
        raise ValueError(f"{given.words(0)}; resize takes one to three dimensions beside N and C")
    last = channels_last(layout, x.ndim - 2)
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; allowed are {', '.join(MODES)}")
    if mode.startswith("nearest") and (align_corners or antialias):
        raise ValueError(f"align_corners and antialias are of the modes linear and cubic, not of {mode}")
    if not math.isfinite(coeff):
        raise ValueError(f"cubic_coeff is {coeff!r}; it must be finite")
    if mode == "cubic" and given.dtypes[0] == "u8":
        raise TypeError(f"{given.words(0)}; of uint8 the modes are nearest, nearest_exact and linear")
    return x.ndim - 2, last


def _problem(direction: str, dtype: str, shape: Any, sampling: Sampling, options: tuple[Any, ...], arrays: Any) -> Any:
    _, _, mode, align_corners, antialias, layout, coeff = options
    last = channels_last(layout, len(shape) - 2)
    size: Five = _five(shape, last, 1)
    front = (1,) * (3 - len(sampling.to))
    to: Three = (*front, *sampling.to)  # type: ignore[assignment]
    steps = (*((1, 1),) * len(front), *sampling.steps)
    strides = tuple(_five(element_strides(each), last, 0) for each in arrays)
    grids = (to, size[2:]) if direction == "forward" else (size[2:], to)
    sizes = tuple((*size[:2], *grid) for grid in grids)
    return ResizeProblem(
        direction, dtype, mode, size, to, steps, align_corners, antialias, coeff if mode == "cubic" else 0.0,
        _layout(sizes, strides), strides,
    )  # fmt: skip


def _layout(sizes: Any, strides: Any) -> str:
    """What lies innermost in every array."""

    def innermost(axis: int) -> bool:
        return all(size[axis] == 1 or step[axis] == 1 for size, step in zip(sizes, strides, strict=True))

    # of one channel, or one pixel, rows are longer in the other order
    ways = [(sizes[0][4], 4, "channels_first"), *[(size[1], 1, "channels_last") for size in sizes[:1] if size[1] > 1]]
    return next((name for size, axis, name in sorted(ways, reverse=True) if innermost(axis)), "strided")


def _spatial(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    return shape[1:-1] if last else shape[2:]


def _shape(like: tuple[int, ...], spatial: tuple[int, ...], last: bool) -> tuple[int, ...]:
    return (like[0], *spatial, like[-1]) if last else (*like[:2], *spatial)


def _forward(given: Given, options: tuple[Any, ...]) -> Pose:
    rank, last = _checked(given, options)
    size, scale = options[:2]
    x = given.storages[0]
    if (size is None) == (scale is None):
        raise ValueError("either size or scale must be given")
    to = None if size is None else per_dimension(size, rank, "size", 1)
    sampling = sampling_of(_spatial(x.shape, last), to, options)
    dtype: Any = given.dtypes[0]

    def problem(made: Any) -> Any:
        return _problem("forward", dtype, x.shape, sampling, options, (made[0], x))

    return Pose((Result(_shape(x.shape, sampling.to, last), dtype),), problem)


def _backward(given: Given, options: tuple[Any, ...]) -> Pose:
    rank, last = _checked(given, options)
    shape, scale = options[:2]
    dy = given.storages[0]
    shape = per_dimension(shape, rank + 2, "shape", 0)
    sampling = sampling_of(_spatial(shape, last), _spatial(dy.shape, last), options)
    scaled = sampling if scale is None else sampling_of(sampling.sizes, None, options)
    wanted = _shape(shape, scaled.to, last)
    if dy.shape != wanted:
        raise ValueError(f"{given.words(0)}; for x of shape {shape} it must have shape {wanted}")
    dtype: Any = given.dtypes[0]

    def problem(made: Any) -> Any:
        return _problem("backward", dtype, shape, sampling, options, (made[0], dy))

    return Pose((Result(shape, dtype),), problem)


def _tables(sampling: Sampling, options: tuple[Any, ...]) -> list[reference.Taps]:
    _, _, mode, align_corners, antialias, _, coeff = options
    along = zip(sampling.sizes, sampling.to, sampling.steps, strict=True)
    return [reference.taps(n, m, Fraction(*step), mode, align_corners, antialias, coeff) for n, m, step in along]


def _define(direction: str, values: Any, options: Any, numbers: Any) -> Any:
    (x,), (size, *_, layout, _) = values, options
    last = channels_last(layout, x.ndim - 2)
    spatial = _spatial(x.shape, last)
    given = np.moveaxis(x, -1, 1) if last else x
    if direction == "forward":
        to = None if size is None else per_dimension(size, len(spatial), "size", 1)
        sampling = sampling_of(spatial, to, options)
        found = reference.forward(given, _tables(sampling, options))
    else:
        sampling = sampling_of(_spatial(size, last), spatial, options)
        found = reference.backward(given, _tables(sampling, options), sampling.sizes)
    return np.moveaxis(found, 1, -1) if last else found


_resize = Primitive("resize", ("x",), _forward, functools.partial(_define, "forward"), dtypes=(*FLOATS, "u8"))
_resize_backward = Primitive("resize_backward", ("dy",), _backward, functools.partial(_define, "backward"))


def _sizes(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _said(
    size: Any, scale: Any, mode: Any, align_corners: Any, antialias: Any, layout: Any, coeff: Any
) -> tuple[Any, ...]:  # fmt: skip
    """The options of a call."""
    if scale is not None:
        many = isinstance(scale, (list, tuple))
        scale = tuple(scalar(each, "scale") for each in scale) if many else scalar(scale, "scale")
    corners, antialias = truth(align_corners, "align_corners"), truth(antialias, "antialias")
    return _sizes(size), scale, mode, corners, antialias, layout, scalar(coeff, "cubic_coeff")


def resize(
    x: Any,
    size: Any = None,
    *,
    scale: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
    layout: str = "NCHW",
    cubic_coeff: float = -0.75,
    out: Any = None,
) -> Any:
    """Sample x on another grid of pixels: ``y[o] = sum_k w_k(t) x[i + k]`` with ``i + t = (o + 1/2) n / m - 1/2``.

    n pixels of x along a dimension become m; the dimensions are taken one by one, and what would lie outside is the
    pixel at the border.

    Args:
        x: (N, C, ...) of one to three dimensions beside N and C, or (N, ..., C) with `layout` "NHWC"; any strides;
            float64, float32, float16 or bfloat16, the last two computed in float32; uint8 where `mode` is not "cubic",
            computed in float32 and rounded to nearest.
        size: pixels of y: one integer, or one a dimension.
        scale: instead of `size`: m is floor(n scale), and 1 / scale stands for n / m, as in torch: a number, or one a
            dimension. Where m is n, "nearest" (but for volumes), "linear" and `antialias` leave a dimension as it is,
            as there.
        mode: "nearest" takes x[floor(o n / m)], "nearest_exact" x[floor((o + 1/2) n / m)], "linear" two pixels a
            dimension, "cubic" four.
        align_corners: linear and cubic: ``i + t = o (n - 1) / (m - 1)``, so that the outermost pixels stay.
        antialias: linear and cubic: where m is below n the filter is n / m times as wide.
        layout: "NCHW" or "NHWC", at any rank.
        cubic_coeff: a of the cubic's weights; torch takes -0.75, and -0.5 with `antialias`.
        out: where y goes; it shares no memory with x.

    Returns:
        y, of x's dtype and library, in C order.

    Raises:
        TypeError: other dtypes, a size that is no integer, a scale that is no number.
        ValueError: both of `size` and `scale` or none, sizes below 1, a scale that is not positive, a dimension
            without pixels, an unknown mode or layout, `align_corners` or `antialias` of nearest pixels; an `out` of
            another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.resize(np.float32([[[0, 4]]]), 4, mode="linear")
        array([[[0., 1., 3., 4.]]], dtype=float32)

    References:
        torch.nn.functional.interpolate; ONNX Resize; Keys, Cubic convolution interpolation for digital image
        processing, IEEE Transactions on Acoustics, Speech and Signal Processing 29, 1981.
    """
    return _resize.run((x,), _said(size, scale, mode, align_corners, antialias, layout, cubic_coeff), (), out)


def resize_backward(
    dy: Any,
    shape: Any,
    *,
    scale: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
    layout: str = "NCHW",
    cubic_coeff: float = -0.75,
    out: Any = None,
) -> Any:
    """Gradient of `resize`: ``dx[i] = sum over the pixels o of y that read i of w_o dy[o]``, in one order.

    Args:
        dy: the gradient of y, of its shape; float64, float32, float16 or bfloat16.
        shape: of x.
        scale, mode, align_corners, antialias, layout, cubic_coeff: those of `resize`.
        out: where dx goes; it shares no memory with dy.

    Returns:
        dx, of the shape `shape` and dy's dtype and library, in C order.

    Raises:
        TypeError: as of `resize`.
        ValueError: as of `resize`; a dy that is not of the shape of y.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.resize_backward(np.ones((1, 1, 4), np.float32), (1, 1, 2))
        array([[[2., 2.]]], dtype=float32)

    References:
        The chain rule; torch.nn.functional.interpolate's gradient is the same, in another order of sums on a GPU.
    """
    options = _said(shape, scale, mode, align_corners, antialias, layout, cubic_coeff)
    return _resize_backward.run((dy,), options, (), out)


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem
    # dimensions of one pixel in front are not there
    lead = next((d for d in (0, 1) if p.size[2 + d] > 1 or p.to[d] > 1), 2)
    last = p.layout == "channels_last"
    pixels, to = p.size[2 + lead :], p.to[lead:]
    shape, wanted = (_shape((p.size[0], *pixels, p.size[1]) if last else p.size, grid, last) for grid in (pixels, to))
    words: dict[str, Any] = {
        "mode": p.mode, "align_corners": p.align_corners, "antialias": p.antialias,
        "layout": "NHWC" if last else "NCHW",
    }  # fmt: skip
    if p.mode == "cubic":
        words["cubic_coeff"] = p.cubic_coeff
    exact = [(n - 1, m - 1) if p.align_corners else (n, m) for n, m in zip(pixels, to, strict=True)]
    steps = [Fraction(*step) for step in p.steps[lead:]]
    if any(q and step != Fraction(n, q) for step, (n, q) in zip(steps, exact, strict=True)):
        words["scale"] = tuple(float(1 / step) for step in steps)

    def make(shape: tuple[int, ...]) -> Any:
        if p.layout == "strided":
            return examples.array((*shape[:-1], 2 * shape[-1] + 2), p.dtype)[..., :-2:2]
        return examples.array(shape, p.dtype)

    if p.direction == "backward":
        return "resize_backward", (make(wanted), shape), words
    return "resize", (make(shape), *(() if "scale" in words else (to,))), words


PROBLEMS = problems(resize, resize_backward)
EXAMPLES = {"resize": _example_call}
