"""Stacks of element-wise layers and pooling, which run depth first: a part of an image through all of them before the
next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.ops import _stack_pose as pose_, examples
from numbaprims.ops._stack_backward import stack_backward as stack_backward
from numbaprims.ops._stack_pose import MOST_ADDED as MOST_ADDED, added_sizes as added_sizes
from numbaprims.ops._stack_problem import StackProblem as StackProblem
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems
from numbaprims.reference import stack as reference
from numbaprims.shapes import element_strides
from numbaprims.stacks.operations import Operation, Size, Step, parse, sizes_of, steps_of, texts_of


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    texts, layout, most, limit = options
    if most < 0:
        raise ValueError(f"most is {most}; it must be at least 0")
    x, parameters, *added = given.storages
    seen = pose_.Images(given, tuple(parse(text) for text in texts), layout)
    adds = [added[at] for at in seen.added]
    result = Result(seen.shape, seen.dtype, like=0 if seen.out == seen.size else None)

    def problem(made: Any) -> StackProblem:
        images = [made[0], x, *adds]
        strides = [seen.strides(each) for each in images]
        strides[2:2] = [(0, 0) if parameters is None else element_strides(parameters)]
        in_place = pose_.lies_over(made, (x,))
        return seen.problem(images, tuple(strides), most=most, limit=limit, in_place=in_place)

    # the parameters have their place in a launch even where there are none
    slots = (0, 1, *([2] if parameters is not None else []), *(3 + k for k in range(len(adds))))
    return Pose((result,), problem, slots)


def _define(values: Any, options: Any, numbers: Any) -> Any:
    x, parameters, *added = values
    texts, layout, *_ = options
    images = [pose_.channels_second(each, layout) for each in (x, *added) if each is not None]
    return pose_.back(reference.stack([parse(text) for text in texts], images[0], parameters, images[1:]), layout)


# a window reads elements that another has already replaced
_elements, _windows = (
    Primitive("stack", pose_.INPUTS, _pose, _define, others=("parameters",), exact=exact) for exact in (("x",), ())
)


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
        parameters: (C, numbers), the parameters of all operations in their order, those of a window "depthwise" being
            its weights, row after row; in the type that is computed in, float32 beside halves.
        added: an array for each operation "add", of the shape that it is added to; at most four.
        layout: "NCHW", or "NHWC" for channels behind the other dimensions.
        most: steps of a sequence, at most; 0 for any number. A sequence ends where its results go to memory.
        limit: bytes of cache that a sequence may take; 0 for what the CPU or GPU has, -1 for any number.
        out: where y goes; it may be x itself where no operation is a window.

    Returns:
        y, of x's dtype and library.

    Raises:
        TypeError: integers, parameters of another dtype, mixed libraries.
        ValueError: arrays of another shape, no operations or more than one kernel takes, a window whose kernel, stride
            or dilation is below 1 or that leaves nothing, other numbers than an operation has.

    Example:
        >>> import numpy as np, numbaprims
        >>> from numbaprims.stacks.operations import Pointwise, Window
        >>> x = np.float32([[[[1, -2, 3], [4, 5, -6]]]])
        >>> numbaprims.stack(x, [Window("max", (2, 2), (1, 1)), Pointwise("scale", 1)], np.float32([[2]]))
        array([[[[10., 10.]]]], dtype=float32)

    References:
        Weber et al., BrainSlug: Transparent Acceleration of Deep Learning Through Depth-First Parallelism, 2018.
    """
    pose_.check_added(added)
    texts = texts_of(operations)
    primitive = _windows if pose_.has_windows(texts) else _elements
    options = texts, layout, integer(most, "most"), integer(limit, "limit")
    try:
        return primitive.run((x, parameters, *added, *pose_.NONE[len(added) :]), options, (), out)
    except RecursionError:
        raise pose_.too_deep(texts) from None


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    layout = "NCHW" if problem.layout == "channels_first" else "NHWC"
    operations = [each for text in problem.steps for each in Step.parse(text).operations]

    def make(size: Size) -> Any:
        shape = pose_.shape_of(problem.n, problem.c, size, layout)
        if problem.layout == "strided":
            return examples.array((*shape[:-1], 2 * shape[-1] + 2), problem.dtype)[..., :-2:2]
        return examples.array(shape, problem.dtype)

    size = tuple(problem.size)
    words: dict[str, Any] = {"layout": layout}
    words["added"] = [make(each) for each in added_sizes(operations, size)]
    numbers = sum(each.numbers for each in operations)
    accumulate = DTYPES[problem.dtype].accumulate
    parameters = [examples.array((problem.c, numbers), accumulate, low=0.5)] if numbers else []
    if problem.direction == "forward":
        words |= {"most": problem.most, "limit": problem.limit}
        return "stack", (make(size), operations, *parameters), words
    words |= {"of_parameters": tuple(problem.of_parameters), "of_added": tuple(problem.of_added)}
    dy = make(sizes_of(steps_of(operations), size)[-1])
    return "stack_backward", (dy, make(size), operations, *parameters), words


PROBLEMS = problems(stack, stack_backward)
EXAMPLES = {"stack": _example_call}
