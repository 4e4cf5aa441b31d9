"""Problems of the normalisations: which axes a launch reduces, what shapes its arrays have, its definition.

Of one launch arrays are elements (of kind "row"), parameters (by their names) or statistics.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbaprims.dtypes import DTYPES, LONG_NAMES
from numbaprims.formulas import norms
from numbaprims.formulas.reductions import named
from numbaprims.formulas.stacks import ENDING
from numbaprims.ops import examples, reduction
from numbaprims.ops._ending import define_ending, define_gradient
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer
from numbaprims.reference import norm as reference
from numbaprims.shapes import channels_last

Shape = tuple[int, ...]
PARAMETERS = ("weight", "bias", "dweight", "dbias")
_ELEMENTS = ("x", "y", "dy", "dx")
_STATISTICS = ("mean", "inv_std", "inv_rms")


@dataclasses.dataclass(frozen=True)
class NormProblem(reduction.Reduction):
    """A formula of `numbaprims.formulas.norms`."""

    stem: ClassVar[str] = "norm"

    def bench_command(self) -> str:
        base = self.formula.partition(ENDING)[0].partition("/")[0]
        kind = next((kind for kind in ("layer", "rms", "instance") if base.startswith(kind)), "group")
        rows, n, words = self.rows, self.n, ""
        if kind in ("layer", "rms"):
            shape = f"{n}x{rows}" if base.endswith("sums") else f"{rows}x{n}"
        elif base.startswith("whole"):
            size, positions = self.reduced if len(self.reduced) == 2 else (2, max(2, n // 2))
            shape, words = f"1x{rows * size}x{positions}x1", f" --groups {rows}"
        elif base.startswith("pixel"):
            shape, words = f"1x{n}x{rows}x1", " --layout NHWC"
        elif base in ("group_factors", "group_spread", "group_gradients"):  # of the values of channels
            shape = f"1x{rows * n}x1x1"
        else:
            shape, words = f"1x{rows}x{n}x1", " --layout NHWC" * (self.layout == "across" and n > 1)
        words += " --backward" * base.endswith(("backward", "gradient", "gradients", "spread", "sums"))
        return f"numbaprims bench norm --kind {kind} --shapes {shape} --dtype {self.dtype}{words}"


class Shapes(NamedTuple):
    """What a launch makes of the shape of x."""

    shape: Shape
    """Elements, as they are reduced."""
    axes: Shape
    own: tuple[Shape, Shape, Shape]
    """The shapes that callers see of elements, parameters and statistics."""
    views: tuple[Shape, Shape, Shape]
    """Those that broadcast to `shape`."""


def last(x: Shape, dims: int) -> Shapes:
    """A row is the last dimensions, each of whose elements has parameters."""
    dims = integer(dims, "normalized_dims")
    if not 1 <= dims <= len(x):
        raise ValueError(f"normalized_dims is {dims}; of {len(x)} dimensions it must be between 1 and {len(x)}")
    rows = (*x[: len(x) - dims], *(1,) * dims)
    parameter = x[len(x) - dims :]
    view = (*(1,) * (len(x) - dims), *parameter)
    return Shapes(x, tuple(range(len(x) - dims, len(x))), (x, parameter, rows), (x, view, rows))


def columns(x: Shape, dims: int) -> Shapes:
    """The same arrays, summed up for parameters."""
    shapes = last(x, dims)
    return shapes._replace(axes=tuple(range(len(x) - dims)))


def pixels(x: Shape, layout: str) -> Shapes:
    """A row is the channels of a pixel; what belongs to a channel of a sample is a row for all of its pixels."""
    shapes = channels(x, layout)
    (axis,) = (at for at in range(1, len(x)) if at not in shapes.axes)
    return shapes._replace(axes=(axis,))


def divided(channels: int, groups: int) -> int:
    """Channels of a group."""
    if groups < 1 or channels % groups:
        raise ValueError(f"groups is {groups}; it must divide the {channels} channels")
    return channels // groups


def last_of(x: Shape, layout: str) -> bool:
    """Whether channels are last in the shape of x."""
    if not 2 <= len(x) <= 5:
        raise ValueError(f"x has {len(x)} dimensions; it must be (N, C) with up to three behind C")
    return channels_last(layout, max(len(x) - 2, 1))


def channels(x: Shape, layout: str, groups: int = 1) -> Shapes:
    """A row is a channel of a sample."""
    axis = len(x) - 1 if last_of(x, layout) else 1
    divided(x[axis], groups)
    view = tuple(n if at in (0, axis) else 1 for at, n in enumerate(x))
    axes = tuple(at for at in range(1, len(x)) if at != axis)
    return Shapes(x, axes, (x, (x[axis],), (x[0], x[axis])), (x, (1, *view[1:]), view))


def whole_groups(x: Shape, count: int) -> Shapes:
    """A row is a group of channels of a sample, channels in front of positions."""
    size, ones = divided(x[1], count), (1,) * (len(x) - 2)
    shape = (x[0], count, size, *x[2:])
    views = shape, (1, count, size, *ones), (x[0], count, 1, *ones)
    return Shapes(shape, tuple(range(2, len(shape))), (x, x[1:2], (x[0], count)), views)


def groups(x: Shape, count: int, channels: int) -> Shapes:
    """Of values of the channels of each sample: a row is a group."""
    n, size = x[0], divided(channels, count)
    shape = (n, count, size)
    return Shapes(shape, (2,), ((n, channels), (channels,), (n, count)), (shape, (1, count, size), (n, count, 1)))


def samples(x: Shape) -> Shapes:
    """Of the same: over the samples."""
    return Shapes(x, (0,), (x, x[1:], x[1:]), (x, (1, *x[1:]), (1, *x[1:])))


def _blocks(shape: Shape) -> Shape:
    """Of sums over the rows of a block."""
    return -(-shape[0] // reduction.block_rows(shape[0])), math.prod(shape[1:])


class Step:
    """One launch: a formula and what it makes of shapes."""

    def __init__(
        self, name: str, shapes: Callable[..., Shapes], formula: str, definition: Callable[..., Any],
        looked_at: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.formula, self.shapes, self._definition = formula, shapes, definition
        operands = [word.strip("[]").split(":") for word in norms.DEFINITIONS[formula].operands]
        #: Arrays -> kinds; those of later steps are checked by the first.
        self.kinds = {operand: kind for operand, kind in operands if kind != "number"} | dict.fromkeys(looked_at, "one")
        self.names = tuple(self.kinds)
        self.gradient = norms.behind(formula)
        #: Its arrays are the caller's.
        self.public = shapes not in (groups, samples)
        elements = tuple(name for name in self.names if self._which(name, self.kinds[name]) == 0)
        # callers of a gradient know the statistics as those that were saved
        saved = _STATISTICS if name.endswith("backward") else ()
        inputs = tuple(f"saved_{each}" if each in saved else each for each in self.names)
        others = tuple(each for each, own in zip(inputs, self.names, strict=True) if own not in elements)
        free = (*norms.optional(formula), *looked_at)
        self.primitive = Primitive(
            name, inputs, self._pose, self._define, others=others, exact=elements,
            required=next((at for at, each in enumerate(self.names) if each in free), len(self.names)),
        )  # fmt: skip

    def _which(self, name: str, kind: str) -> int:
        """Elements, parameters or statistics: 0, 1, 2."""
        if name in PARAMETERS:
            return 1
        return 0 if kind == "row" and (self.shapes is not pixels or name in _ELEMENTS) else 2

    def __call__(
        self, arrays: tuple[Any, ...], *options: Any, ending: str = "", numbers: tuple[float, ...] = (), out: Any = None
    ) -> Any:
        """By the order of the formula's operands; `options` are those of its shapes."""
        return self.primitive.run(arrays, (*options, ending), numbers, out)

    def _pose(self, given: Given, options: tuple[Any, ...]) -> Pose:
        *how, ending = options
        first = given.storages[0]
        shapes = self.shapes(first.shape, *how)
        dtype: str = given.dtypes[0]  # type: ignore[assignment]
        statistics = DTYPES[dtype].accumulate
        for at, (name, x) in enumerate(zip(self.names, given.storages, strict=True)):
            which = self._which(name, self.kinds[name])
            if x is None:
                continue
            if x.shape != shapes.own[which]:
                words = f"takes {given.names[at]} of shape {shapes.own[which]}"
                raise ValueError(f"{given.words(at)}; {given.words(0)} {words}")
            if self.public and which and given.dtypes[at] not in (dtype, statistics):
                allowed = " or ".join(dict.fromkeys((LONG_NAMES[dtype], LONG_NAMES[statistics])))
                raise TypeError(f"{given.words(at)}; with {given.words(0)} it must be {allowed}")
        if not math.prod(shapes.shape[axis] for axis in shapes.axes) and self.shapes not in (columns, samples):
            raise ValueError(f"{given.words(0)}; statistics need one value at least")
        formula = self._formula_of(given.storages) + (f"{ENDING}{ending}" if ending else "")
        known = named(formula)
        of_parameters = next(
            (d for name, d in zip(self.names, given.dtypes, strict=True) if name == "weight" and d), statistics
        )
        # steps between take and give numbers that are not rounded
        dtypes = (statistics if self.shapes is groups else dtype, of_parameters, statistics)
        results = []
        for name, kind in known.results:
            which = self._which(name, kind)
            if kind == "column":
                results.append(Result(_blocks(shapes.shape), statistics))
                continue
            results.append(
                Result(
                    shapes.own[which], dtypes[which], like=None if which or not self.public else self.names.index("x")
                )  # fmt: skip
            )
        views = {name: shapes.views[self._which(name, kind)] for name, kind in (*known.operands, *known.results)}
        given = given._replace(names=self.names)
        return reduction.pose(NormProblem, given, formula, shapes.shape, shapes.axes, results, views)

    def _formula_of(self, arrays: Any) -> str:
        """The formula of the operands that are given."""
        there = (name for name in norms.optional(self.formula) if arrays[self.names.index(name)] is not None)
        return "/".join([self.formula, *there])

    def _define(self, values: Any, options: Any, numbers: Any) -> Any:
        *how, ending = options
        shapes = self.shapes(values[0].shape, *how)
        arrays = {
            name: None if x is None else x.reshape(shapes.views[self._which(name, self.kinds[name])])
            for name, x in zip(self.names, values, strict=True)
        }
        bent = (functools.partial(define_gradient, ending=ending),) if self.gradient else ()
        found = self._definition(arrays, shapes.axes, *numbers, *bent)
        made = []
        there = {result for result, _ in named(self._formula_of(values)).results}
        results = (word.strip("[]").split(":") for word in norms.DEFINITIONS[self.formula].results)
        for name, kind in results:
            if name not in there:
                continue
            which, value = self._which(name, kind), found[name]
            if name == "y":
                value = define_ending(value, ending)
            if kind == "column":
                made.append(value)
                continue
            wide = np.broadcast_to(value, shapes.views[which] if which else shapes.shape)
            made.append(wide.reshape(shapes.own[which]))
        return made[0] if len(made) == 1 else tuple(made)


def _gradient(arrays: Any, axes: Shape, bent: Any) -> Any:
    return reference.norm_gradient(arrays, axes, bent, reduction.block_rows(len(arrays["x"])))


def _normal(base: str, shapes: Callable[..., Shapes], definition: Callable[..., Any]) -> dict[str, Step]:
    return {name: Step(name, shapes, name, definition) for name in (base, f"{base}_train")}


_BACKWARD, _LATER = reference.norm_backward, ("weight", "bias")
STEPS: dict[str, Step] = {
    **_normal("layer_norm", last, reference.norm),
    **_normal("rms_norm", last, reference.rms_norm),
    **_normal("instance_norm", channels, reference.norm),
    "whole_group_norm": Step("group_norm", whole_groups, "whole_group_norm", reference.norm),
    "whole_group_norm_train": Step("group_norm_train", whole_groups, "whole_group_norm_train", reference.norm),
    "layer_norm_backward": Step("layer_norm_backward", last, "layer_norm_backward", _BACKWARD),
    "rms_norm_backward": Step("rms_norm_backward", last, "rms_norm_backward", _BACKWARD),
    "instance_norm_backward": Step("instance_norm_backward", channels, "instance_norm_backward", _BACKWARD),
    "layer_norm_gradient": Step("layer_norm_backward", last, "layer_norm_gradient", _gradient),
    "rms_norm_gradient": Step("rms_norm_backward", last, "rms_norm_gradient", _gradient),
    "layer_norm_sums": Step("layer_norm_backward", columns, "layer_norm_sums", reference.norm_sums),
    "rms_norm_sums": Step("rms_norm_backward", columns, "rms_norm_sums", reference.norm_sums),
    "channel_moments": Step("group_norm", channels, "channel_moments", reference.channel_moments, _LATER),
    "group_factors": Step("group_norm", groups, "group_factors", reference.group_factors),
    "group_apply": Step("group_norm", channels, "group_apply", reference.group_apply),
    "pixel_apply": Step("group_norm", pixels, "pixel_apply", reference.group_apply),
    "pixel_backward": Step("group_norm_backward", pixels, "pixel_backward", reference.group_backward),
    "group_spread": Step("group_norm_backward", groups, "group_spread", reference.group_spread),
    "group_sums": Step("group_norm_backward", channels, "group_sums", reference.group_sums, _LATER[:1]),
    "group_gradients": Step("group_norm_backward", groups, "group_gradients", reference.group_gradients),
    "group_backward": Step("group_norm_backward", channels, "group_backward", reference.group_backward),
    "sample_sums": Step("group_norm_backward", samples, "sample_sums", reference.sample_sums),
}  # fmt: skip


def example_call(problem: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    formula, _, ending = problem.formula.partition(ENDING)
    step, made = STEPS[formula.partition("/")[0]], reduction.Example(problem)
    dtypes = {name: dtype for name, _, dtype in (word.split(":") for word in problem.inputs)}
    reduced = list(made.axes)
    kept = [axis for axis in range(len(made.shape)) if axis not in reduced]
    options: tuple[Any, ...] = ()
    shape: Shape
    order = [*kept, *reduced]
    if step.shapes is last:
        options = (len(reduced),)
    elif step.shapes is columns:
        order, options = [*reduced, *kept], (len(kept),)
    elif step.shapes is channels:
        options = ("NCHW",)
    elif step.shapes is pixels:
        order, options = [kept[0], *reduced, *kept[1:]], ("NCHW",)
    rows = [made.shape[axis] for axis in kept]
    if step.shapes is whole_groups:
        *n, count = rows
        space = [made.shape[axis] for axis in reduced]
        x = examples.array((math.prod(n), count * (space[0] if len(space) > 1 else 1), space[-1]), problem.dtype)
        shape, options = tuple(x.shape), (count,)
    elif step.shapes is groups:
        # by the only operand of elements, which all samples share, groups are walked first
        *n, count = rows[::-1] if formula == "group_spread/weight" else rows
        shape = (math.prod(n), count * math.prod(problem.reduced))
        options = count, shape[1]
    elif step.shapes is samples:
        shape = (math.prod(problem.reduced), math.prod(rows))
    else:
        x = made.permuted(order, problem.dtype)
        shape = tuple(x.shape)
        if step.shapes is channels and len(kept) == 1:
            shape = (1, *shape)

    shapes = step.shapes(shape, *options)

    def array(name: str) -> Any:
        which = step._which(name, step.kinds[name])
        if name not in dtypes:
            return None
        if which or not step.public or step.shapes is whole_groups:
            return examples.array(shapes.own[which], dtypes[name], low=0.5, high=2.0)
        return (
            made.permuted(order, dtypes[name])[None] if len(shape) > len(order) else made.permuted(order, dtypes[name])
        )

    numbers = tuple(0.5 for name, kind in named(formula).operands if kind == "number")
    return step, (tuple(map(array, step.names)), *options), {"ending": ending, "numbers": numbers}
