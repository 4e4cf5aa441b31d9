"""The gradient of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numbaprims.dtypes import DTYPES
from numbaprims.ops import _stack_pose as pose_
from numbaprims.ops._stack_problem import StackProblem
from numbaprims.ops.primitive import Given, Pose, Primitive, Result
from numbaprims.reference import stack as reference
from numbaprims.shapes import element_strides
from numbaprims.stacks.operations import DIFFERENTIABLE, Operation, Window, parse, texts_of

_INPUTS = ("dy", *pose_.INPUTS)
#: Places of arrays in a launch.
_ADDED, _DADDED = 5, 5 + pose_.MOST_ADDED


def differentiable(operations: Iterable[Operation]) -> tuple[int, ...]:
    """The parameters that have a gradient: those of sums and products, weights of windows, and slopes below 0."""
    found, at = list[int](), 0
    for each in operations:
        if isinstance(each, Window) or each.kind in DIFFERENTIABLE:
            found += range(at, at + each.numbers)
        at += each.numbers
    return tuple(found)


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    texts, layout, of_parameters, of_added = options
    dy, x, parameters, *added = given.storages
    operations = tuple(parse(text) for text in texts)
    seen = pose_.Images(given, operations, layout, 1)
    if dy.shape != seen.shape:
        raise ValueError(f"{given.words(0)}; y has shape {seen.shape}")
    have = differentiable(operations)
    numbers = have if of_parameters is None else tuple(of_parameters)
    if not set(numbers) <= set(have) or list(numbers) != sorted(set(numbers)):
        raise ValueError(f"of_parameters is {numbers}; of these, in their order, gradients can be asked for: {have}")
    at = 0
    for each in operations:
        weights = set(range(at, at + each.numbers)) if isinstance(each, Window) else set()
        if not weights.isdisjoint(numbers) and not weights <= set(numbers):
            raise ValueError(
                f"of_parameters is {numbers}; of a window's weights {min(weights)} to {max(weights)} it must have all"
            )
        at += each.numbers
    every = tuple(range(len(seen.added)))
    arrays = every if of_added is None else tuple(of_added)
    if not set(arrays) <= set(every) or list(arrays) != sorted(set(arrays)):
        raise ValueError(f"of_added is {arrays}; arrays that are added are {every}")
    dtype: Any = given.dtypes[1]
    results = [Result(x.shape, dtype, like=1)]
    slots = [0]
    if numbers:
        results.append(Result((x.shape[-1 if seen.last else 1], len(numbers)), DTYPES[dtype].accumulate))
        slots.append(4)
    for k in arrays:
        results.append(Result(added[seen.added[k]].shape, dtype, like=3 + seen.added[k]))
        slots.append(_DADDED + k)
    slots += [1, 2, *([3] if parameters is not None else []), *(_ADDED + k for k in every)]
    inputs = [each for each in given.storages if each is not None]

    def problem(made: Any) -> StackProblem:
        strides: list[Any] = [None] * (_DADDED + len(every))
        images = list[Any]()
        for slot, array in zip(slots, (*made, *inputs), strict=True):
            image = slot not in (3, 4)
            strides[slot] = seen.strides(array) if image else element_strides(array)
            images += [array] if image else []
        return seen.problem(
            images, tuple(strides), direction="backward", of_parameters=numbers, of_added=arrays,
            in_place=pose_.lies_over(made, inputs),
        )  # fmt: skip

    return Pose(tuple(results), problem, tuple(slots))


def _define(values: Any, options: Any, numbers: Any) -> Any:
    texts, layout, of_parameters, of_added = options
    dy, x, parameters, *added = values
    operations = [parse(text) for text in texts]
    images = [pose_.channels_second(each, layout) for each in (dy, x, *added) if each is not None]
    dx, found, arrived = reference.stack_backward(operations, images[0], images[1], parameters, images[2:])
    wanted = differentiable(operations) if of_parameters is None else of_parameters
    results = [pose_.back(dx, layout), *([np.stack([found[k] for k in wanted], 1)] if wanted else [])]
    results += [pose_.back(arrived[k], layout) for k in (range(len(arrived)) if of_added is None else of_added)]
    return tuple(results) if len(results) > 1 else results[0]


_elements, _windows = (
    Primitive("stack_backward", _INPUTS, _pose, _define, others=("parameters",), exact=exact, required=2)
    for exact in (("dy", "x"), ())
)


def stack_backward(
    dy: Any, x: Any, operations: Sequence[Operation | str], parameters: Any = None, *, added: Sequence[Any] = (),
    layout: str = "NCHW", of_parameters: Sequence[int] | None = None, of_added: Sequence[int] | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Gradient of `stack`: ``dx = dy dy/dx``, of parameters p ``dp = sum of dy dy/dp`` over images and places, and of
    what is added dy as it arrives there.

    What lies between the operations is computed again, not stored by the forward call.

    Args:
        dy: the gradient of y, of its shape.
        x, operations, parameters, added, layout: those of the stack.
        of_parameters: which parameters' gradients are wanted, by their places in a row of `parameters`; None for all
            that have one: those of batch_norm, affine, bias and scale, the slopes of prelu and leaky_relu, and the
            weights of depthwise windows, all of a window or none.
        of_added: the same of the arrays that are added; None for all.
        out: where dx goes; it may be dy or x itself where no operation is a window.

    Returns:
        dx, of x's shape, dtype and library; where other gradients are wanted a tuple: dx, then dparameters
        (C, wanted) in the type that is computed in, then that of each array that is added.

    Raises:
        TypeError: integers, parameters of another dtype, mixed libraries.
        ValueError: arrays of another shape, windows that leave nothing, parameters that have no gradient.

    Example:
        >>> import numpy as np, numbaprims
        >>> from numbaprims.stacks.operations import Pointwise, Window
        >>> x, dy = np.float32([[[[1, -2], [4, 5]]]]), np.float32([[[[3]]]])
        >>> numbaprims.stack_backward(dy, x, [Window("max", (2, 2), (1, 1)), Pointwise("scale", 1)], np.float32([[2]]))
        (array([[[[0., 0.],
                 [0., 6.]]]], dtype=float32), array([[15.]], dtype=float32))

    References:
        Weber et al., BrainSlug, 2018, for the stacks; the chain rule over them is our own.
    """
    pose_.check_added(added)
    texts = texts_of(operations)
    wanted = (None if each is None else tuple(map(int, each)) for each in (of_parameters, of_added))
    primitive = _windows if pose_.has_windows(texts) else _elements
    given = dy, x, parameters, *added, *pose_.NONE[len(added) :]
    try:
        return primitive.run(given, (texts, layout, *wanted), (), out)
    except RecursionError:
        raise pose_.too_deep(texts) from None
