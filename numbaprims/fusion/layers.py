"""Descriptions of layers: what `numbaprims.fuse` plans.  Names and arguments are those of `torch.nn`.

A list of layers is a sequence of them.  A description holds its arguments, checked, and copies of its arrays; it
computes nothing until it is bound to a type, a library and a layout.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims.fusion.layer import Layer as Layer, check_integers, check_padding, values_of
from numbaprims.fusion.place import Found, Place, Run, Shape, channel_axis, pack, run_operations
from numbaprims.fusion.rearranging import (
    Constant as Constant,
    Flatten as Flatten,
    Gather as Gather,
    Permute as Permute,
    Reshape as Reshape,
    View as View,
)
from numbaprims.fusion.rows import (
    Attention as Attention,
    GroupNorm as GroupNorm,
    LayerNorm as LayerNorm,
    MaskedAttention as MaskedAttention,
    MatMul as MatMul,
    RMSNorm as RMSNorm,
    SelfAttention as SelfAttention,
    Softmax as Softmax,
)
from numbaprims.ops import conv_plan, gemm_plan, pooling
from numbaprims.ops._activation_call import kernel_of
from numbaprims.ops.activation import activation, prelu
from numbaprims.ops.activation_kinds import resolve
from numbaprims.ops.batch_norm import batch_norm
from numbaprims.ops.epilogue import make_activation, resolve_activation
from numbaprims.ops.primitive import scalar
from numbaprims.ops.tensor import binary
from numbaprims.reference.convert import from_float64, to_float64
from numbaprims.shapes import per_dimension, sizes_of
from numbaprims.stacks.operations import Pointwise, Window

# ---------------------------------------------------------------- pooling


class _Pool(Layer):
    """Pooling by a public function of `numbaprims.ops.pooling`."""

    function = ""

    def _arguments(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]

    def bind(self, shape: Shape, place: Place) -> Run:
        return functools.partial(getattr(pooling, self.function), layout=place.layout, **self._arguments())

    def operation(self, shape: Shape, place: Place) -> Found | str:
        if len(shape) != 4:
            return f"pooling joins stacks of images, not of arrays of {len(shape)} dimensions"
        none = np.empty((0, *shape[1:]), np.float32)
        p: Any = pooling.PROBLEMS[self.function](none, layout=place.layout, **self._arguments())
        if p.out == (1, 1) != p.size and place.layout == "NCHW":
            return "one window of a whole plane is a sum along rows, which has kernels of its own"
        if p.adaptive:
            return Window(p.op, p.size, p.size), []
        ceil = bool(self._arguments()["ceil_mode"])
        return Window(p.op, p.kernel, p.stride, p.before, p.after, p.dilation, ceil, p.count_include_pad), []


@dataclasses.dataclass(frozen=True, repr=False)
class MaxPool(_Pool):
    """`numbaprims.max_pool`.

    >>> MaxPool(3, 1, 1)
    MaxPool(kernel_size=3, stride=1, padding=1)
    """

    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    """An integer, one for each dimension, pairs (before, after), "same" or "valid"."""
    dilation: Any = dataclasses.field(default=1, kw_only=True)
    ceil_mode: bool = dataclasses.field(default=False, kw_only=True)
    function = "max_pool"

    def __post_init__(self) -> None:
        check_integers(self, "kernel_size", "stride", "dilation")
        check_padding(self.padding)


@dataclasses.dataclass(frozen=True, repr=False)
class AvgPool(MaxPool):
    """`numbaprims.avg_pool`."""

    count_include_pad: bool = dataclasses.field(default=True, kw_only=True)
    function = "avg_pool"


@dataclasses.dataclass(frozen=True, repr=False)
class GlobalMaxPool(_Pool):
    """`numbaprims.global_max_pool`: a window of a whole plane."""

    function = "global_max_pool"


@dataclasses.dataclass(frozen=True, repr=False)
class GlobalAvgPool(_Pool):
    """`numbaprims.global_avg_pool`: a window of a whole plane."""

    function = "global_avg_pool"


# ---------------------------------------------------------------- element by element


@dataclasses.dataclass(frozen=True, repr=False)
class Activation(Layer):
    """`numbaprims.activation` of any kind but glu, which halves its input.

    >>> Activation("leaky_relu", negative_slope=0.2), Activation("relu")
    (Activation('leaky_relu', negative_slope=0.2), Activation('relu'))
    """

    kind: str
    parameters: dict[str, Any]

    def __init__(self, kind: str, **parameters: Any) -> None:
        name, full = resolve(kind, parameters)
        if name == "glu":
            raise ValueError("kind is 'glu', which is not element-wise; wrap numbaprims.glu in Call")
        if name == "prelu":
            raise ValueError("kind is 'prelu', whose weight is an array; use PReLU(weight)")
        self._set(kind=name, parameters=full)

    def __repr__(self) -> str:
        return f"Activation({', '.join([repr(self.kind), *(f'{k}={v!r}' for k, v in self.parameters.items())])})"

    @property
    def passes(self) -> bool:  # type: ignore[override]
        return self.kind == "identity"

    def bind(self, shape: Shape, place: Place) -> Run:
        return functools.partial(activation, kind=self.kind, **self.parameters)

    def operation(self, shape: Shape, place: Place) -> Found:
        kind, numbers = kernel_of(make_activation(self.kind, self.parameters))
        return Pointwise(kind, len(numbers)), [np.float64(each) for each in numbers]  # type: ignore[misc]


class _OfChannels(Layer):
    """An operation of a stack with one array of parameters, for a channel or for all."""

    name = ""
    own = False

    @property
    def values(self) -> np.ndarray:
        found: np.ndarray = getattr(self, dataclasses.fields(self)[0].name)  # type: ignore[arg-type]
        return found

    def __post_init__(self) -> None:
        name = dataclasses.fields(self)[0].name  # type: ignore[arg-type]
        self._set(**{name: values_of(self.values, name, 0, 1).reshape(-1)})

    def operation(self, shape: Shape, place: Place) -> Found:
        return Pointwise(self.name, 1), [self.values]

    def bind(self, shape: Shape, place: Place) -> Run:
        operation, columns = self.operation(shape, place)
        return run_operations((operation,), pack(columns, shape, place), shape, place)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Bias(_OfChannels):
    """``x + bias``, (C,) or one number."""

    bias: Any
    name = "bias"

    def affine(self) -> tuple[Any, Any] | None:
        return 1.0, self.values


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Scale(_OfChannels):
    """``x * scale``, (C,) or one number."""

    scale: Any
    name = "scale"

    def affine(self) -> tuple[Any, Any] | None:
        return self.values, 0.0


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PReLU(_OfChannels):
    """`numbaprims.prelu` with a slope a channel, or one for all."""

    weight: Any
    name = "prelu"
    own = True

    def operation(self, shape: Shape, place: Place) -> Found:
        # prelu takes its weight in x's type
        weight = to_float64(from_float64(self.weight, place.dtype), place.dtype)
        return Pointwise("prelu", 1), [weight]

    def bind(self, shape: Shape, place: Place) -> Run:
        if self.weight.size == 1 or channel_axis(shape, place.layout) == 1:
            return functools.partial(prelu, weight=place.array(self.weight))
        return super().bind(shape, place)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class BatchNorm(Layer):
    """`numbaprims.batch_norm` with given statistics.  Without scale and shift they are 1 and 0."""

    scale: Any
    shift: Any
    mean: Any
    var: Any
    eps: float = 1e-5

    def __post_init__(self) -> None:
        self._set(mean=values_of(self.mean, "mean", 1), eps=scalar(self.eps, "eps"))
        for name, default in (("scale", np.ones_like), ("shift", np.zeros_like), ("var", None)):
            value = getattr(self, name)
            values = default(self.mean) if value is None and default else values_of(value, name, 1)
            if values.shape != self.mean.shape:
                raise ValueError(
                    f"{name} has shape {values.shape} and mean {self.mean.shape}; they must have one shape"
                )
            self._set(**{name: values})

    def __repr__(self) -> str:
        return f"BatchNorm({len(self.mean)})"

    def numbers(self, dtype: str) -> list[np.ndarray]:
        """What is subtracted, multiplied by and added, with the roundings of `numbaprims.batch_norm`."""
        scale, shift, mean, var = (from_float64(each, dtype) for each in (self.scale, self.shift, self.mean, self.var))
        with np.errstate(all="ignore"):
            inverse = var.dtype.type(1) / np.sqrt(var + var.dtype.type(self.eps))
            return [mean, inverse * scale, shift]

    def affine(self) -> tuple[Any, Any] | None:
        mean, factor, shift = self.numbers("f64")
        with np.errstate(all="ignore"):
            return factor, shift - mean * factor

    def operation(self, shape: Shape, place: Place) -> Found:
        return Pointwise("batch_norm", 3), self.numbers(place.accumulate)

    def bind(self, shape: Shape, place: Place) -> Run:
        given = {n: place.array(getattr(self, n), place.accumulate) for n in ("scale", "shift", "mean", "var")}
        return functools.partial(batch_norm, **given, eps=self.eps, layout=place.layout)


@dataclasses.dataclass(frozen=True, repr=False)
class Dropout(Layer):
    """Nothing: at inference every element stays."""

    p: float = 0.5
    passes = True


@dataclasses.dataclass(frozen=True, repr=False)
class Add(Layer):
    """What a `Residual` becomes, and a step of a `Wired`: the sum of two arrays."""

    own = False
    reads = 2

    def operation(self, shape: Shape, place: Place) -> Found:
        return Pointwise("add"), []

    def bind(self, shape: Shape, place: Place) -> Run:
        return run_operations((Pointwise("add"),), None, shape, place)


@dataclasses.dataclass(frozen=True, repr=False)
class Multiply(Layer):
    """A step of a `Wired`: the product of two arrays, with NumPy's broadcasting, as gates of channels are."""

    stays = "a product of arrays is a launch of its own"
    reads = 2

    def bind(self, shape: Shape, place: Place) -> Run:
        return lambda a, b, *, out=None: binary(a, b, "mul", out=out)


# ---------------------------------------------------------------- layers of their own


class Product(Layer):
    """A product with weights (outputs, ...), which takes what follows it into its weights, its bias, its epilogue."""

    weight: Any
    bias: Any
    activation: Any
    takes_activation = True

    def _check(self, *ndims: int) -> None:
        weight = values_of(self.weight, "weight", *ndims)
        bias = None if self.bias is None else values_of(self.bias, "bias", 1)
        if bias is not None and len(bias) != len(weight):
            raise ValueError(f"bias has shape {bias.shape}; weight {weight.shape} takes {weight.shape[:1]}")
        resolve_activation(self.activation)
        self._set(weight=weight, bias=bias)

    def _arrays(self, place: Place) -> dict[str, Any]:
        return {"bias": None if self.bias is None else place.array(self.bias), "activation": self.activation}

    def with_affine(self, factor: Any, shift: Any) -> Any:
        """The layer whose result is ``factor * y + shift``, of its outputs; None where that is not finite."""
        with np.errstate(all="ignore"):
            factor = np.broadcast_to(np.asarray(factor, np.float64), len(self.weight))
            weight = self.weight * factor.reshape(-1, *(1,) * (self.weight.ndim - 1))
            bias = shift if self.bias is None else self.bias * factor + shift
        bias = np.array(np.broadcast_to(bias, len(weight)), np.float64)
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            return None
        return dataclasses.replace(self, weight=weight, bias=bias)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Conv(Product):
    """`numbaprims.conv` by a plan."""

    weight: Any
    bias: Any = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    activation: Any = None
    stays = "a convolution is a launch of its own"

    def __post_init__(self) -> None:
        self._check(3, 4, 5)
        check_integers(self, "stride", "dilation", "groups")
        check_padding(self.padding)

    def bind(self, shape: Shape, place: Place) -> Run:
        words = {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}
        return conv_plan.plan(shape, place.array(self.weight), layout=place.layout, **words, **self._arrays(place))


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Linear(Product):
    """`numbaprims.linear` by a plan, over the last dimension."""

    weight: Any
    bias: Any = None
    activation: Any = None
    stays = "a product is a launch of its own"

    def __post_init__(self) -> None:
        self._check(2)

    def bind(self, shape: Shape, place: Place) -> Run:
        return gemm_plan.plan(place.array(self.weight), trans_b=True, **self._arrays(place))


@dataclasses.dataclass(frozen=True, repr=False)
class Call(Layer):
    """Any function of one array (of several in a `Wired`), computed as it is; nothing is fused across it."""

    function: Callable[..., Any]
    shape: Any = None
    """The shape of one image's result; without it the function is called once on zeros, when the plan is made."""
    stays = "what a function does is not known"
    reads = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function is {self.function!r}; it must be callable")
        if self.shape is not None:
            self._set(shape=per_dimension(tuple(self.shape), len(self.shape), "shape", 0))

    def bind(self, shape: Shape, place: Place) -> Run:
        def run(*given: Any, out: Any = None) -> Any:
            y = self.function(*given)
            return y if out is None else activation(y, "identity", out=out)

        return run


# ---------------------------------------------------------------- structure


@dataclasses.dataclass(frozen=True, repr=False)
class Residual(Layer):
    """``body(x) + shortcut(x)``, each a layer or a list of them; an empty shortcut is x itself."""

    body: Any
    shortcut: Any = ()


@dataclasses.dataclass(frozen=True, repr=False)
class Given(Layer):
    """An array that a network is called with beside x, a step of a `Wired` that reads nothing: of a shape, with any
    number of images, and of any dtype that its readers take.
    """

    shape: Any
    reads = 0

    def __post_init__(self) -> None:
        self._set(shape=sizes_of(self.shape, "shape"))


@dataclasses.dataclass(frozen=True, repr=False)
class Concat(Layer):
    """The results of branches side by side along the channels, or another dimension."""

    branches: Any
    axis: int | None = None
    stays = "its branches write into their places"

    def __post_init__(self) -> None:
        if not isinstance(self.branches, (tuple, list)) or not self.branches:
            raise TypeError(f"branches is {self.branches!r}; it must be a list of one branch at least")
        if self.axis is not None:
            self._set(axis=per_dimension(self.axis, 1, "axis", 1)[0])

    def along(self, shape: Shape, layout: str) -> int:
        """The dimension along which images of a shape stand side by side."""
        axis = channel_axis(shape, layout) if self.axis is None else self.axis
        if axis >= len(shape):
            raise ValueError(f"axis is {axis} of {len(shape)} dimensions")
        return axis

    def __repr__(self) -> str:
        return f"Concat({len(self.branches)} branches)"


@dataclasses.dataclass(frozen=True, repr=False)
class Wired(Layer):
    """A graph: steps of a layer and the numbers of the values that it reads; 0 is the graph's input, k the result of
    step k, the last one the graph's.  A step reads one value, `Add`, `Multiply` and `MatMul` two, `Attention` three,
    `MaskedAttention` four, a `Concat` one a branch, a `Call` any number, a `Given` none; it may be a list of layers
    too.  The outermost one may give several values: `results` are their numbers.
    """

    steps: Any
    results: Any = None

    def __post_init__(self) -> None:
        for value in self.results or ():
            if not 0 <= value <= len(self.steps):
                raise ValueError(f"results is {self.results}; values are 0 to {len(self.steps)}")
        for number, (layer, reads) in enumerate(self.steps):
            most = len(layer.branches) if isinstance(layer, Concat) else getattr(layer, "reads", 1)
            if most not in (None, len(reads)) or (most is None and not reads):
                raise ValueError(f"steps[{number}] is {layer!r}, which reads {most} values, not {len(reads)}")
            if not all(0 <= value <= number for value in reads):
                raise ValueError(f"steps[{number}] reads {tuple(reads)}; values before it are 0 to {number}")

    def __repr__(self) -> str:
        return f"Wired({len(self.steps)} steps)"
