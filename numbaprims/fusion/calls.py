"""The calls that a fusion plan is made of: what each is given, which memory it touches, and how it is bound."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.explain import Explanation
from numbaprims.dtypes import DTYPES
from numbaprims.fusion.operators import Bias, Operator, in_float64, nbytes
from numbaprims.fusion.place import Place, dense, is_dense
from numbaprims.ops import (
    batch_norm as norms,
    conv as convs,
    conv_quantized,
    gemm as products,
    softmax as softmaxes,
    stack as stacks,
)
from numbaprims.ops.activation import activation
from numbaprims.ops.gemm_plan import packed_solver
from numbaprims.ops.primitive import problems
from numbaprims.stacks.operations import Operation, Pointwise

Arguments = dict[Operator, dict[str, Any]]
Run = Callable[[Any, Any, Arguments], Any]
"""Of x, `out` and the arguments of the moment, of which it reads the live ones."""


class Part(NamedTuple):
    """An operator in a call, and what it is there."""

    operator: Any
    role: str


def rounded(values: Any, dtype: str, library: arrays.Library) -> Any:
    """An array of a library, where that has its arrays."""
    return Place(dtype, library, "").array(values)


def filled(operators: Sequence[Operator], given: Arguments, library: arrays.Library) -> Arguments:
    """Arguments, of those that are not set ones."""
    return {
        operator: {
            name: rounded(np.ones(it.shape), it.dtypes[0], library) if it.dtypes else 1
            for name, it in operator.arguments.items() if it.needed
        } | given.get(operator, {})
        for operator in operators
    }  # fmt: skip


class Call:
    """Consecutive operators that run as one call of a public function."""

    function: ClassVar[str]
    """The public function that is called."""
    in_place = False
    """Whether the result may lie where x does."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.first = self.product = parts[0].operator
        self.x, self.y = self.first.x, parts[-1].operator.y

    def of(self, *roles: str) -> list[Any]:
        """The operators that have one of some roles."""
        return [part.operator for part in self.parts if part.role in roles]

    def operands(self) -> list[tuple[tuple[int, ...], str]]:
        """(shape, dtype) of what the call reads beside x."""
        return [pair for part in self.parts for pair in part.operator.arrays()]

    def bytes_moved(self) -> int:
        """Of x, of the operands, and of the result."""
        return sum(nbytes(*pair) for pair in (self.x[:2], *self.operands(), self.y[:2]))

    def bind(self, given: Arguments, library: arrays.Library) -> Run:
        """What runs the call with arguments that are set; all work on parameters is done here."""
        raise TypeError(f"{type(self).__name__} binds nothing")

    def problem(self, given: Arguments, library: arrays.Library) -> Any:
        """The problem that a run poses to the dispatcher, None where a result of no elements poses none; arguments that
        are not set are ones."""
        full = filled([operator for operator, _ in self.parts], given, library)

        def run(x: Any) -> Any:
            return self.bind(full, library)(x, None, full)

        try:
            return problems(run)["run"](library.empty(*self.x[:2])[0])
        except ValueError:
            if 0 not in self.y.shape:
                raise
            return None

    def solver(self, explained: Explanation) -> str:
        """The solver that a run takes, of those that its problem may take."""
        return explained.chosen.solver


class ProductCall(Call):
    """`conv` or `gemm` with what is affine in front of it and everything that fits into its epilogue, by a plan of
    theirs where nothing is added."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(parts)
        self.product = self.of("product")[0]

    def operands(self) -> list[tuple[tuple[int, ...], str]]:
        y = self.product.y
        bias = [((y.channels,), y.dtype)] if self.of("front", "affine") else []
        return [*self.product.arrays(), *bias, *(each.x[:2] for each in self.of("add"))]

    def folded(self, given: Arguments, library: arrays.Library) -> tuple[Any, Any]:
        """Weight and bias with all that is affine in them: computed in float64, rounded once."""
        weight, front, behind, y = given[self.product]["weight"], self.of("front"), self.of("affine"), self.product.y
        if not front and not behind:
            return weight, None
        only_biases = all(isinstance(each, Bias) for each in behind)
        if not front and len(behind) == 1 and only_biases:
            bias = given[behind[0]]["bias"]
            if arrays.enter(bias, "bias")[1] == y.dtype:
                return weight, bias
        factor, shift = _affine(behind, given, y.channels)
        if front or not only_biases:
            values = in_float64(self.product, given[self.product])["weight"]
            by, plus = _affine(front, given, self.product.x.channels)
            # a group's filters see its channels, (K, C / groups) of all
            k, c = values.shape[:2]
            groups = by.size // c
            by, plus = (
                np.repeat(each.reshape(groups, c), k // groups, axis=0).reshape(k, c, *(1,) * (values.ndim - 2))
                for each in (by, plus)
            )
            shift = shift + factor * (values * plus).reshape(k, -1).sum(axis=1)
            values = values * by * factor.reshape(-1, *(1,) * (values.ndim - 1))
            weight = rounded(values, self.product.x.dtype, library)
        return weight, rounded(shift, y.dtype, library)

    def bind(self, given: Arguments, library: arrays.Library) -> Run:
        weight, bias = self.folded(given, library)
        words = {**self.words(given), "bias": bias}
        for operator in self.of("activation"):
            words["activation"] = operator.make(given[operator])
        for operator in self.of("cast"):
            words["out_dtype"] = operator.y.dtype
        for operator in self.of("add"):
            plain = self.plain(weight, beta=1.0, **words)
            return lambda x, out, live: plain(x, c=live[operator]["added"], out=out)
        plan = self.plan(weight, **words)
        return lambda x, out, live: plan(x, out=out)

    def words(self, given: Arguments) -> dict[str, Any]:
        """What the call says beside its arrays and its epilogue."""
        return {"trans_b": True}

    def plan(self, weight: Any, **words: Any) -> Any:
        """A function of x and `out`, by a weight that is prepared once."""
        return products.gemm.plan(weight, **words)

    def plain(self, weight: Any, **words: Any) -> Any:
        """A function of x, what is added and `out`."""
        return functools.partial(products.gemm, b=weight, **words)


def _affine(operators: Sequence[Operator], given: Arguments, channels: int) -> tuple[Any, Any]:
    """(factor, shift) of operators one after another, a value a channel."""
    factor, shift = np.ones(channels), np.zeros(channels)
    for operator in operators:
        by, plus = operator.affine(in_float64(operator, given[operator]))
        factor, shift = factor * by, shift * by + plus
    return factor, shift


class GemmCall(ProductCall):
    """``numbaprims.gemm`` by the transpose of a weight."""

    function = "gemm"

    def solver(self, explained: Explanation) -> str:
        if self.of("add") or explained.chosen.solver == "reference":
            return explained.chosen.solver
        packed = packed_solver(explained.problem, "cpu")
        return explained.chosen.solver if packed is None else packed.name


class ConvCall(ProductCall):
    """``numbaprims.conv``."""

    function = "conv"

    def words(self, given: Arguments) -> dict[str, Any]:
        if given[self.product].get("x_zero_point") or given[self.product].get("weight_zero_point"):
            raise ValueError(f"{self.product.label}: zero points need a scale and a cast to int8 or uint8 behind it")
        return self.product.words()

    def plan(self, weight: Any, **words: Any) -> Any:
        if "out_dtype" in words:
            return self.plain(weight, **words)
        return convs.conv.plan(self.x.shape, weight, **words)

    def plain(self, weight: Any, **words: Any) -> Any:
        return functools.partial(convs.conv, weight=weight, **words)


class QuantizedCall(Call):
    """``numbaprims.qlinear_conv``: integers in, integers out."""

    function = "qlinear_conv"

    def bind(self, given: Arguments, library: arrays.Library) -> Run:
        cast = self.parts[-1].operator
        factor = self.of("scale")[0]
        scale = in_float64(factor, given[factor])["scale"]  # of float32, which it is rounded to again
        bias = next((given[each]["bias"] for each in self.of("bias")), None)
        first = self.first
        by, to = given[first], given[cast]
        zero = _zero_point(cast, to.get("zero_point") or 0)
        zeros = by.get("x_zero_point") or 0, by.get("weight_zero_point") or 0, zero
        run = conv_quantized.requantized(
            (self.x.dtype, "i8"), library, by["weight"], first.weight_shape[0], (1.0, scale, to["scale"]), zeros, bias,
            first.window, first.algorithm,
        )  # fmt: skip
        return lambda x, out, live: run(x, out)


def _zero_point(cast: Operator, given: Any) -> Any:
    """The zero point of a result, as a scalar of its dtype."""
    dtype, value, own = cast.y.dtype, f"{cast.label}: zero_point is {given!r}", np.asarray(given)
    if own.dtype.kind not in "iu":
        raise TypeError(f"{value}; a zero point is an integer")
    held = np.dtype(DTYPES[dtype].storage)
    low, high = np.iinfo(held).min, np.iinfo(held).max
    if not low <= own <= high:
        raise ValueError(f"{value}; it must lie in {low} ... {high}, the range of {arrays.LONG_NAMES[dtype]}")
    return held.type(own)


class SoftmaxCall(Call):
    """``numbaprims.softmax``."""

    function = "softmax"
    in_place = True

    def bind(self, given: Arguments, library: arrays.Library) -> Run:
        return lambda x, out, live: softmaxes.softmax(x, axis=self.first.axis, out=out)


class TrainCall(Call):
    """``numbaprims.batch_norm_train``, which gives statistics beside y."""

    function = "batch_norm_train"
    in_place = True

    def bind(self, given: Arguments, library: arrays.Library) -> Run:
        norm = self.first
        words = {"mode": norm.mode, "layout": self.x.layout, "eps": norm.eps, "momentum": norm.momentum, **given[norm]}
        for operator in self.of("activation"):
            words["activation"] = operator.make(given[operator])
        return lambda x, out, live: norms.batch_norm_train(x, out=out, **words)


class BackwardCall(Call):
    """``numbaprims.batch_norm_backward``, which gives (dx, dscale, dshift)."""

    function = "batch_norm_backward"
    in_place = True

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(parts)
        self.norm = self.of("norm")[0]
        if self.of("activation"):
            self.norm.arguments["shift"] = self.norm.arguments["shift"]._replace(needed=True)

    def bind(self, given: Arguments, library: arrays.Library) -> Run:
        words, own = {"mode": self.norm.mode, "layout": self.x.layout}, given[self.norm]
        for operator in self.of("activation"):
            words |= {"shift": own["shift"], "activation": (operator.name, operator.parameters)}

        def run(dy: Any, out: Any, live: Arguments) -> Any:
            now = live[self.norm]
            saved = now["x"], own["scale"], now["saved_mean"], now["saved_inv_std"]
            return norms.batch_norm_backward(dy, *saved, **words, out=out)

        return run


class StackCall(Call):
    """``numbaprims.stack``: element-wise operators and pooling in one pass over the memory."""

    function = "stack"

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        return not self.of("window")

    def view(self) -> tuple[tuple[int, ...], str]:
        """The shape and layout in which the stack sees x: four dimensions."""
        n, *_ = shape = self.x.shape
        c, last = self.x.channels, self.x.channel == len(shape) - 1
        if len(shape) == 4:
            return shape, "NHWC" if last else "NCHW"
        rest = math.prod(shape[1:]) // max(c, 1)
        return ((1, 1, n * rest, c), "NHWC") if last else ((n, c, 1, rest), "NCHW")

    def column(self, values: Any) -> Any:
        """A parameter, a value for each channel of the view."""
        return np.broadcast_to(values, (self.x.channels,))

    def operands(self) -> list[tuple[tuple[int, ...], str]]:
        (shape, layout), numbers = self.view(), sum(operator.numbers for operator, _ in self.parts)
        parameters = ((shape[3 if layout == "NHWC" else 1], numbers), DTYPES[self.x.dtype].accumulate)
        return [parameters] * bool(numbers) + [each.x[:2] for each in self.of("add")]

    def bind(self, given: Arguments, library: arrays.Library) -> Run:
        operations: list[Operation] = []
        columns: list[Any] = []
        for operator, role in self.parts:
            if role == "window":
                operations.append(operator.window)
                continue
            kind = operator.make(given[operator]).kind if role == "activation" else operator.kind
            operations.append(Pointwise(kind, operator.numbers))
            columns += [self.column(each) for each in operator.columns(in_float64(operator, given[operator]))]
        dtype, parameters = DTYPES[self.x.dtype].accumulate, None
        if columns:
            parameters = rounded(np.stack(columns), dtype, library).T  # each parameter of all channels in one run
        (view, layout), added = self.view(), self.of("add")

        def run(x: Any, out: Any, live: Arguments) -> Any:
            more = [live[each]["added"] for each in added]
            if view == self.x.shape:
                return stacks.stack(x, operations, parameters, added=more, layout=layout, out=out)
            x, *more = map(dense, (x, *more))
            place = out if out is not None and is_dense(out) else None
            y = stacks.stack(
                x.reshape(view), operations, parameters, added=[each.reshape(view) for each in more], layout=layout,
                out=None if place is None else place.reshape(view),
            ).reshape(self.y.shape)  # fmt: skip
            if out is None or place is not None:
                return y if out is None else out
            return activation(y, "identity", out=out)

        return run


class ElementCall(StackCall):
    """`numbaprims.stack` with parameters for each element of a sample: the elements are the channels of the view."""

    def view(self) -> tuple[tuple[int, ...], str]:
        n, *rest = self.x.shape
        return (1, 1, n, math.prod(rest)), "NHWC"  # samples as pixels, which share what lies along the channels

    def column(self, values: Any) -> Any:
        shape, values = self.x.shape[1:], np.asarray(values)
        if values.ndim == 1:
            values = values.reshape(tuple(n if axis == self.x.channel - 1 else 1 for axis, n in enumerate(shape)))
        return np.broadcast_to(values.reshape(values.shape[-len(shape) :]), shape).reshape(-1)
