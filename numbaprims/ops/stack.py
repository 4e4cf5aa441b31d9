"""Stacks of element-wise layers and pooling, which run depth first: a part of an image through all of them before the
next."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims.dtypes import DTYPES, LONG_NAMES
from numbaprims.ops import examples
from numbaprims.ops._stack_problem import StackProblem as StackProblem
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems
from numbaprims.reference import stack as reference
from numbaprims.shapes import channels_last, element_strides
from numbaprims.stacks.operations import Operation, Step, Window, parse, steps_of

#: Arrays that a stack may add.
MOST_ADDED = 4
_INPUTS = ("x", "parameters", *(f"added[{k}]" for k in range(MOST_ADDED)))


def _canonical(values: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Sizes or strides over (n, c, height, width)."""
    return (values[0], values[3], values[1], values[2]) if channels_last(layout, 2) else values


def _shape(n: int, c: int, size: tuple[int, int], layout: str) -> tuple[int, ...]:
    return (n, *size, c) if channels_last(layout, 2) else (n, c, *size)


def _lies(shape: tuple[int, ...], strides: tuple[int, ...]) -> set[str]:
    """The layout words of an array, its shape and strides over (n, c, height, width)."""
    _, c, h, w = shape
    words = set()
    if (w == 1 or strides[3] == 1) and (h == 1 or strides[2] == w):
        words.add("channels_first")
    if (c == 1 or strides[1] == 1) and (w == 1 or strides[3] == c) and (h == 1 or strides[2] == w * c):
        words.add("channels_last")
    return words


def added_sizes(operations: Sequence[Operation], size: tuple[int, int]) -> list[tuple[int, int]]:
    """Height and width of each array that is added."""
    found = []
    for each in operations:
        if isinstance(each, Window):
            size = each.out_size(size)
        elif each.kind == "add":
            found.append(size)
    return found


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    texts, layout, most, limit = options
    x, parameters, *added = given.storages
    if x.ndim != 4:
        raise ValueError(f"{given.words(0)}; a stack takes images (N, C, H, W), or (N, H, W, C) with layout='NHWC'")
    n, c, h, w = _canonical(x.shape, layout)
    operations = tuple(parse(text) for text in texts)
    size = (h, w)
    for each in operations:
        if isinstance(each, Window):
            before, size = size, each.out_size(size)
            pads = zip((*each.before, *each.after), (*each.extents, *each.extents), strict=True)
            if any(not 0 <= pad <= extent // 2 for pad, extent in pads):
                raise ValueError(
                    f"a window {each.kernel} is padded by {each.before}, {each.after}; at most by its half"
                )
            if min(size) < 1 and min(h, w) > 0:
                raise ValueError(f"a window of {each.kernel} slides over {before}; nothing is left")
    dtype: Any = given.dtypes[0]
    numbers = sum(each.numbers for each in operations if not isinstance(each, Window))
    if numbers:
        accumulate = DTYPES[dtype].accumulate
        if parameters is None:
            raise ValueError(f"parameters is None; these operations take {numbers} for each of {c} channels")
        if parameters.shape != (c, numbers):
            raise ValueError(f"{given.words(1)}; these operations take shape {(c, numbers)}")
        if given.dtypes[1] != accumulate:
            raise TypeError(f"{given.words(1)}; with x of {LONG_NAMES[dtype]} it must be {LONG_NAMES[accumulate]}")
    elif parameters is not None:
        raise ValueError(f"{given.words(1)}; these operations take none")
    wanted = added_sizes(operations, (h, w))
    have = [at for at, each in enumerate(added) if each is not None]
    if len(have) != len(wanted):
        raise ValueError(f"{len(have)} arrays are given to be added; these operations add {len(wanted)}")
    for at, place in zip(have, wanted, strict=True):
        if added[at].shape != _shape(n, c, place, layout):
            raise ValueError(f"{given.words(2 + at)}; it is added where the shape is {_shape(n, c, place, layout)}")
    steps = tuple(step.text for step in steps_of(operations))
    result = Result(_shape(n, c, size, layout), dtype, like=0 if size == (h, w) else None)

    def problem(made: Any) -> StackProblem:
        lie, strides = {"channels_first", "channels_last"}, []
        for array in (made[0], x, *(each for each in added if each is not None)):
            steps_ = _canonical(element_strides(array), layout)
            lie &= _lies(_canonical(array.shape, layout), steps_)
            strides.append(steps_)
        strides[2:2] = [(0, 0) if parameters is None else element_strides(parameters)]
        return StackProblem(
            dtype, n, c, (h, w), steps, min(lie, default="strided"), most, limit, tuple(strides),
            bool(np.may_share_memory(made[0], x)) if isinstance(x, np.ndarray) else made[0] is x,
        )  # fmt: skip

    # the parameters have their place in a launch even where there are none
    slots = (0, 1, *([2] if parameters is not None else []), *(3 + k for k in range(len(have))))
    return Pose((result,), problem, slots)


def _define(values: Any, options: Any, numbers: Any) -> Any:
    x, parameters, *added = values
    texts, layout, *_ = options
    last = channels_last(layout, 2)
    images = [np.moveaxis(each, -1, 1) if last else each for each in (x, *added) if each is not None]
    y = reference.stack([parse(text) for text in texts], images[0], parameters, images[1:])
    return np.moveaxis(y, 1, -1) if last else y


# a window reads elements that another has already replaced
_elements, _windows = (
    Primitive("stack", _INPUTS, _pose, _define, others=("parameters",), exact=exact) for exact in (("x",), ())
)

_NONE = (None,) * MOST_ADDED


@functools.cache
def primitive_of(texts: tuple[str, ...]) -> Primitive:
    """What runs operations of these texts."""
    return _windows if any(isinstance(parse(text), Window) for text in texts) else _elements


def stack(
    x: Any, operations: Sequence[Operation | str], parameters: Any = None, *, added: Sequence[Any] = (),
    layout: str = "NCHW", most: int = 0, limit: int = 0, out: Any = None,
) -> Any:  # fmt: skip
    """Run operations one after another, depth first: ``y = operation_k(... operation_1(x))``.

    A part of an image goes through all operations of a sequence before the next part begins, so that what lies between
    them stays in a cache. What `numbaprims.fuse` makes of layers is such a call.

    Args:
        x: (N, C, H, W); float64, float32, float16 or bfloat16, the last two computed in float32 from the first
            operation to the last.
        operations: of `numbaprims.stacks.operations`: `Pointwise`, `Window`, or their texts.
        parameters: (C, numbers), the parameters of all operations in their order; in the type that is computed in,
            float32 beside halves.
        added: an array for each operation "add", of the shape that it is added to; at most four.
        layout: "NCHW", or "NHWC" for channels behind the other dimensions.
        most: steps of a sequence, at most; 0 for any number. A sequence ends where its results go to memory.
        limit: bytes of cache that a sequence may take; 0 for what the CPU or GPU has.
        out: where y goes; it may be x itself where no operation is a window.

    Returns:
        y, of x's dtype and library.

    Raises:
        TypeError: integers, parameters of another dtype, mixed libraries.
        ValueError: arrays of another shape, windows that leave nothing.

    Example:
        >>> import numpy as np, numbaprims
        >>> from numbaprims.stacks.operations import Pointwise, Window
        >>> x = np.float32([[[[1, -2, 3], [4, 5, -6]]]])
        >>> numbaprims.stack(x, [Window("max", (2, 2), (1, 1)), Pointwise("scale", 1)], np.float32([[2]]))
        array([[[[10., 10.]]]], dtype=float32)

    References:
        Weber et al., BrainSlug: Transparent Acceleration of Deep Learning Through Depth-First Parallelism, 2018.
    """
    if len(added) > MOST_ADDED:
        raise ValueError(f"{len(added)} arrays to be added; a stack takes at most {MOST_ADDED}")
    texts = tuple(each if isinstance(each, str) else each.text for each in operations)
    return primitive_of(texts)(
        (x, parameters, *added, *_NONE[len(added) :]), (texts, layout, int(most), int(limit)), (), out
    )


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    layout = "NCHW" if problem.layout == "channels_first" else "NHWC"
    operations = [each for text in problem.steps for each in Step.parse(text).operations]

    def make(size: tuple[int, int]) -> Any:
        shape = _shape(problem.n, problem.c, size, layout)
        if problem.layout == "strided":
            return examples.array((*shape[:-1], 2 * shape[-1] + 2), problem.dtype)[..., :-2:2]
        return examples.array(shape, problem.dtype)

    words: dict[str, Any] = {"layout": layout, "most": problem.most, "limit": problem.limit}
    words["added"] = [make(size) for size in added_sizes(operations, problem.size)]
    numbers = sum(each.numbers for each in operations if not isinstance(each, Window))
    accumulate = DTYPES[problem.dtype].accumulate
    parameters = [examples.array((problem.c, numbers), accumulate, low=0.5)] if numbers else []
    return "stack", (make(problem.size), operations, *parameters), words


PROBLEMS = problems(stack)
EXAMPLES = {"stack": _example_call}
