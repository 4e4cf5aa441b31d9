"""The operators of a fusion plan: what each makes of a tensor, and the arguments that it takes.

An operator is its own handle: `FusionPlan.set_args` takes it, and two that look alike are still two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.dtypes import DTYPES, LONG_NAMES
from numbaprims.ops._conv_pose import Window as ConvWindow, geometry, hashable
from numbaprims.ops.activation_kinds import KINDS, resolve
from numbaprims.ops.epilogue import Activation as Fused, make_activation
from numbaprims.ops.primitive import integer, scalar
from numbaprims.reference.convert import to_float64
from numbaprims.shapes import channels_last, per_dimension, resolve_padding, sizes_of
from numbaprims.stacks.operations import Window


class Tensor(NamedTuple):
    """What goes into an operator, or comes out of it."""

    shape: tuple[int, ...]
    dtype: str
    layout: str

    @property
    def channel(self) -> int:
        """The axis of the channels."""
        return len(self.shape) - 1 if channels_last(self.layout, max(len(self.shape) - 2, 1)) else 1

    @property
    def channels(self) -> int:
        return self.shape[self.channel]

    @property
    def parameters(self) -> tuple[str, ...]:
        """What one value a channel may be: of this dtype, or of that in which sums are kept."""
        return tuple(dict.fromkeys((self.dtype, DTYPES[self.dtype].accumulate)))

    def __str__(self) -> str:
        return f"{LONG_NAMES[self.dtype]} {self.shape} {self.layout}"


def tensor_of(shape: Sequence[int], dtype: Any, layout: str) -> Tensor:
    """What goes into a plan."""
    sizes = sizes_of(shape, "x_shape")
    if not 2 <= len(sizes) <= 5:
        raise ValueError(f"x_shape is {sizes}; it must be (N, C) and up to three dimensions more")
    channels_last(layout, max(len(sizes) - 2, 1))
    return Tensor(sizes, arrays.dtype_name(dtype, "dtype"), layout)


class Argument(NamedTuple):
    """What `set_args` takes by one name: an array, or a number where `dtypes` is empty."""

    shape: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    needed: bool = True
    live: bool = False
    """Whether it is read at each run, and not copied when it is set."""

    def check(self, name: str, value: Any) -> tuple[Any, arrays.Library | None]:
        """The plan's own copy of a value, and its library; TypeError or ValueError for what cannot be one."""
        if not self.dtypes:
            if isinstance(value, bool) or np.ndim(value):
                raise TypeError(f"{name} is {value!r}; it must be a number")
            if value is not None or self.needed:  # None is the default of one that need not be set
                scalar(value, name)
            return value, None
        storage, dtype, library = arrays.enter(value, name)
        if dtype not in self.dtypes:
            allowed = " or ".join(LONG_NAMES[each] for each in self.dtypes)
            raise TypeError(f"{name} is a {arrays.describe(value)}; it must be {allowed}")
        if tuple(storage.shape) != self.shape:
            raise ValueError(f"{name} is a {arrays.describe(value)}; it must have shape {self.shape}")
        if self.live:
            return value, library
        if isinstance(storage, np.ndarray):
            return library.wrap(np.array(storage, copy=True, order="C"), dtype), library
        own, view = library.empty(storage.shape, dtype)
        registry.memory().write(view, registry.memory().read(storage))
        return own, library


class Operator:
    """One of the operations of a plan, made by a method of `FusionPlan`; the handle of its arguments."""

    kind: ClassVar[str]
    letter: ClassVar[str] = ""
    """Its letter in the names of MIOpen's combinations."""

    def __init__(self, place: int, x: Tensor) -> None:
        self.place = place
        self.x = self.y = x
        self.arguments: dict[str, Argument] = {}

    numbers: ClassVar[int] = 0
    """Parameters of a channel that a stack's operation of this kind has."""

    @property
    def label(self) -> str:
        return f"{self.kind} (operator {self.place})"

    def __repr__(self) -> str:
        return f"<{self.label} of {self.x}>"

    def arrays(self) -> list[tuple[tuple[int, ...], str]]:
        """(shape, dtype) of the arrays that are always given."""
        return [(each.shape, each.dtypes[0]) for each in self.arguments.values() if each.dtypes and each.needed]

    def check(self, values: dict[str, Any]) -> None:
        """TypeError or ValueError for arguments that do not go together; each alone is of its `Argument`."""

    def affine(self, values: dict[str, np.ndarray]) -> tuple[Any, Any]:
        """(factor, shift) of ``y = x * factor + shift``, from its arguments in float64."""
        raise TypeError(f"{self.label} is not affine")

    def columns(self, values: dict[str, np.ndarray]) -> list[Any]:
        """The parameters that a stack's operation of this kind reads, from its arguments in float64."""
        return []


class Convolution(Operator):
    """``numbaprims.conv``."""

    kind, letter = "conv", "C"

    def __init__(
        self, place: int, x: Tensor, weight_shape: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
        algorithm: str,
    ) -> None:  # fmt: skip
        super().__init__(place, x)
        self.weight_shape = sizes_of(weight_shape, "weight_shape")
        self.window = ConvWindow(*hashable((stride, padding, dilation, groups, x.layout)))
        self.algorithm = algorithm
        self.geometry = geometry(x.shape, self.weight_shape, self.window)
        integer = x.dtype in ("i8", "u8")
        self.y = Tensor(self.geometry.shape("y"), "i32" if integer else x.dtype, x.layout)
        self.arguments = {"weight": Argument(self.weight_shape, ("i8",) if integer else (x.dtype,))}
        if integer:
            self.arguments.update(dict.fromkeys(("x_zero_point", "weight_zero_point"), Argument(needed=False)))

    def words(self) -> dict[str, Any]:
        """What `numbaprims.conv` is told beside arrays."""
        return {**self.window._asdict(), "algorithm": self.algorithm}

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        rank = self.geometry.rank
        of = (part[3 - rank :] for part in (self.geometry.x_size, self.geometry.kernel))
        steps = (part[3 - rank :] for part in (self.geometry.stride, self.geometry.dilation))
        return resolve_padding(self.window.padding, *of, *steps)


class Product(Operator):
    """``numbaprims.linear``: x (M, K) times the transpose of a weight (N, K)."""

    kind = "gemm"

    def __init__(self, place: int, x: Tensor, weight_shape: Any) -> None:
        super().__init__(place, x)
        self.weight_shape = sizes_of(weight_shape, "weight_shape")
        if len(x.shape) != 2 or len(self.weight_shape) != 2 or self.weight_shape[1] != x.shape[1]:
            raise ValueError(f"x has shape {x.shape} and weight {self.weight_shape}; they must be (M, K) and (N, K)")
        integer = x.dtype in ("i8", "u8")
        self.y = Tensor((x.shape[0], self.weight_shape[0]), "i32" if integer else x.dtype, x.layout)
        self.arguments = {"weight": Argument(self.weight_shape, ("i8",) if integer else (x.dtype,))}


class Softmax(Operator):
    """``numbaprims.softmax``."""

    kind = "softmax"

    def __init__(self, place: int, x: Tensor, axis: int) -> None:
        super().__init__(place, x)
        self.axis = integer(axis, "axis")
        if not -len(x.shape) <= self.axis < len(x.shape):
            raise ValueError(f"axis is {axis!r}; x {x.shape} has {-len(x.shape)} to {len(x.shape) - 1}")


class Bias(Operator):
    """x + bias, a value a channel."""

    kind, letter, numbers = "bias", "B", 1

    def __init__(self, place: int, x: Tensor) -> None:
        super().__init__(place, x)
        self.arguments = {"bias": Argument((x.channels,), x.parameters)}

    def affine(self, values: dict[str, np.ndarray]) -> tuple[Any, Any]:
        return 1.0, values["bias"]

    def columns(self, values: dict[str, np.ndarray]) -> list[Any]:
        return [values["bias"]]


class Scale(Operator):
    """x * scale, a value a channel; of int32 sums, what makes real numbers of them."""

    kind, numbers = "scale", 1

    def __init__(self, place: int, x: Tensor) -> None:
        super().__init__(place, x)
        dtypes = ("f32",) if x.dtype == "i32" else x.parameters
        self.y = x._replace(dtype="f32") if x.dtype == "i32" else x
        self.arguments = {"scale": Argument((x.channels,), dtypes)}

    def affine(self, values: dict[str, np.ndarray]) -> tuple[Any, Any]:
        return values["scale"], 0.0

    def columns(self, values: dict[str, np.ndarray]) -> list[Any]:
        return [values["scale"]]


class Normalisation(Operator):
    """``numbaprims.batch_norm``, or with training ``numbaprims.batch_norm_train``."""

    kind, letter, numbers = "batch_norm", "N", 3

    def __init__(
        self, place: int, x: Tensor, mode: str, training: bool, eps: float, momentum: float, fold: bool
    ) -> None:
        super().__init__(place, x)
        shape = _statistics(x, mode)
        self.mode, self.training, self.fold = mode, bool(training), bool(fold)
        self.eps, self.momentum = scalar(eps, "eps"), scalar(momentum, "momentum")
        given = Argument(shape, x.parameters)
        names = ("scale", "shift") if training else ("scale", "shift", "mean", "var")
        self.arguments = dict.fromkeys(names, given)
        if training:
            self.arguments.update(dict.fromkeys(("running_mean", "running_var"), given._replace(needed=False)))

    def affine(self, values: dict[str, np.ndarray]) -> tuple[Any, Any]:
        mean, factor, shift = self.columns(values)
        return factor, shift - mean * factor

    def columns(self, values: dict[str, np.ndarray]) -> list[Any]:
        return [values["mean"], values["scale"] / np.sqrt(values["var"] + self.eps), values["shift"]]


class NormalisationBackward(Operator):
    """``numbaprims.batch_norm_backward``: x is dy."""

    kind = "batch_norm_backward"

    def __init__(self, place: int, x: Tensor, mode: str) -> None:
        super().__init__(place, x)
        self.mode = mode
        shape = _statistics(x, mode)
        given = Argument(shape, x.parameters)
        self.arguments = {
            "x": Argument(x.shape, (x.dtype,), live=True), "scale": given,
            **dict.fromkeys(("saved_mean", "saved_inv_std"), given._replace(live=True)),
            "shift": given._replace(needed=False),
        }  # fmt: skip


def _statistics(x: Tensor, mode: str) -> tuple[int, ...]:
    """The shape of the parameters of a batch norm."""
    if mode not in ("spatial", "per_activation"):
        raise ValueError(f"mode is {mode!r}; it must be spatial or per_activation")
    return (x.channels,) if mode == "spatial" else (1, *x.shape[1:])


class ActivationBackward(Operator):
    """The gradient of an activation behind a batch norm."""

    kind = "activation_backward"

    def __init__(self, place: int, x: Tensor, name: str, parameters: dict[str, Any]) -> None:
        super().__init__(place, x)
        self.name, self.parameters = resolve(name, parameters)


class Activation(Operator):
    """``numbaprims.activation``; its parameters are arguments with defaults, those of the plan."""

    kind, letter = "activation", "A"

    def __init__(self, place: int, x: Tensor, name: str, parameters: dict[str, Any]) -> None:
        super().__init__(place, x)
        array = "weight" if name == "prelu" else ""
        if array and parameters:
            raise TypeError("prelu takes its weight by set_args")
        self.name, full = resolve(name, {array: x} if array else parameters)  # an array is no option
        self.parameters = {} if array else full
        words = () if array else (each for each in KINDS[self.name].parameters if each not in ("approximate", "axis"))
        self.arguments = dict.fromkeys(words, Argument(needed=False))
        if array:
            self.arguments[array] = Argument((x.channels,), x.parameters)

    def check(self, values: dict[str, Any]) -> None:
        if self.name != "prelu":
            resolve(self.name, {**self.parameters, **values})

    def make(self, values: dict[str, Any]) -> Fused:
        """The activation with the numbers that were set."""
        return make_activation(self.name, {**self.parameters, **values})

    @property
    def numbers(self) -> int:  # type: ignore[override]
        return 1 if self.name == "prelu" else len(self.make({}).parameters)

    def columns(self, values: dict[str, np.ndarray]) -> list[Any]:
        return [values["weight"]] if self.name == "prelu" else list(self.make(values).parameters)


class Add(Operator):
    """x + a further array, such as what a residual block began with."""

    kind = "add"

    def __init__(self, place: int, x: Tensor) -> None:
        super().__init__(place, x)
        self.arguments = {"added": Argument(x.shape, (x.dtype,), live=True)}


class Pool(Operator):
    """``numbaprims.max_pool`` or ``numbaprims.avg_pool``."""

    kind = "pool"

    def __init__(
        self, place: int, x: Tensor, op: str, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: bool, count_include_pad: bool,
    ) -> None:  # fmt: skip
        super().__init__(place, x)
        if op not in ("max", "avg"):
            raise ValueError(f"op is {op!r}; it must be max or avg")
        if len(x.shape) != 4:
            raise ValueError(f"x is {x}; pooling takes (N, C, H, W)")
        size = tuple(n for axis, n in enumerate(x.shape) if axis not in (0, x.channel))
        kernel = per_dimension(kernel_size, 2, "kernel_size", 1)
        steps = kernel if stride is None else per_dimension(stride, 2, "stride", 1)
        gaps = per_dimension(dilation, 2, "dilation", 1)
        pairs = resolve_padding(padding, size, kernel, steps, gaps)
        extents = [gap * (taps - 1) + 1 for gap, taps in zip(gaps, kernel, strict=True)]
        if any(2 * max(pair) > extent for pair, extent in zip(pairs, extents, strict=True)):
            raise ValueError(f"padding is {padding!r}; it may be half a window, here of {extents}, at most")
        before, after = zip(*pairs, strict=True)
        fields: Any = (op, kernel, steps, before, after, gaps, bool(ceil_mode), bool(count_include_pad))
        self.window = Window._make(fields)
        outputs = self.window.out_size(size)  # type: ignore[arg-type]
        if min(outputs) < 1:
            raise ValueError(f"a window of {kernel} slides over {size}; nothing is left")
        last = x.channel == 3
        shape = (x.shape[0], *outputs, x.channels) if last else (x.shape[0], x.channels, *outputs)
        self.y = x._replace(shape=shape)


class Cast(Operator):
    """Another dtype; to int8 and uint8 quantised, ``saturate(round(x / scale) + zero_point)``."""

    kind = "cast"

    def __init__(self, place: int, x: Tensor, dtype: Any) -> None:
        super().__init__(place, x)
        self.y = x._replace(dtype=arrays.dtype_name(dtype, "dtype"))
        if self.y.dtype in ("i8", "u8"):
            self.arguments = {"scale": Argument(), "zero_point": Argument(needed=False)}


def in_float64(operator: Operator, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator, arrays as float64 values, exactly."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if not operator.arguments[name].dtypes:
            found[name] = value
            continue
        storage, dtype, _ = arrays.enter(value, name)
        if not isinstance(storage, np.ndarray):
            storage = registry.memory().read(storage)
        found[name] = to_float64(storage, dtype)
    return found


def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of an array."""
    return math.prod(shape) * DTYPES[dtype].itemsize
