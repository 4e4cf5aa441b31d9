"""What every wrapper does: whether a gradient is recorded, autocast, sums over broadcast dimensions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.autograd import Function, forward_ad

import numbaprims
from numbaprims.ops.activation_kinds import ALIASES, KINDS
from numbaprims.ops.epilogue import resolve_activation

_Tensor = torch.Tensor
_modules = sys.modules
# whether torch.func is at work (an older or newer torch without this name: take the long way)
_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_tracked = getattr(getattr(torch._C, "_functorch", None), "is_gradtrackingtensor", lambda x: False)
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Recorded(Function):
    """A function with gradients, called with positional arguments only.

    torch's `apply` binds its arguments to the signature of `forward`, which it inspects anew: 36 of 52 us.
    """

    @classmethod
    def apply(cls, *args: Any) -> Any:
        own: Any = super()
        plain: Any = super(Function, cls)
        return own.apply(*args) if _transformed() else plain.apply(*args)


def recorded(*given: Any) -> bool:
    """Whether autograd records a call with these arguments, or torch.func does, or they have tangents.

    These are no tensors that a kernel could read, or only a part of what they are: torch says what it cannot do.
    """
    if torch.is_grad_enabled():
        for x in given:
            if isinstance(x, _Tensor) and x.requires_grad:
                return True
    if _transformed() or forward_ad._current_level >= 0:
        return any(isinstance(x, _Tensor) and (_tracked(x) or forward_ad.unpack_dual(x)[1] is not None) for x in given)
    return False


def refuse_out(out: Any) -> None:
    """Raise the TypeError for a result that is recorded and would go to an array of the caller's."""
    if out is not None:
        raise TypeError("out is given and an input requires grad; leave out away, or call under torch.no_grad()")


def written(result: Any, out: Any) -> Any:
    """A call's result; autograd is told if it was written to a tensor that a gradient may have saved."""
    if isinstance(out, _Tensor) and not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return result


def differentiable(original: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Decorate the wrapper of a public function: its name, signature and docstring are those of the function."""

    def decorate(wrapper: _Function) -> _Function:
        @functools.wraps(original, assigned=("__doc__", "__name__"), updated=())
        def entry(*args: Any, **kwargs: Any) -> Any:
            # torch.compile breaks its graph here instead of tracing the library; torch._dynamo takes a second to
            # import, so it is asked only once somebody else has
            if "torch._dynamo" in _modules:
                return _untraced(wrapper)(*args, **kwargs)
            return wrapper(*args, **kwargs)

        return entry  # type: ignore[return-value]

    return decorate


@functools.cache
def _untraced(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    compiler: Any = torch.compiler
    made: Callable[..., Any] = compiler.disable(wrapper)
    return made


def autocast(*given: Any) -> tuple[Any, ...]:
    """The tensors in the dtype of ``torch.autocast``, if it is on for their device: as it casts those of matmul."""
    kind = next((x.device.type for x in given if isinstance(x, _Tensor)), None)
    if kind is None or not torch.is_autocast_enabled(kind):
        return given
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        x.to(dtype) if isinstance(x, _Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in given
    )


def without_autocast(x: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which autocast is off for the device of x."""
    if isinstance(x, _Tensor) and torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return contextlib.nullcontext()


def reads(kind: str) -> str:
    """What the gradient of a kind reads beside dy: "x", "y", or "" for nothing."""
    return KINDS[ALIASES[kind][0] if kind in ALIASES else kind].reads


def split_activation(activation: Any) -> tuple[str, dict[str, Any]] | None:
    """The kind and the parameters of an `activation=`; None for none.

    Raises:
        TypeError, ValueError: as the primitives that fuse it.
    """
    resolve_activation(activation)
    if activation is None or activation == "identity":
        return None
    return (activation, {}) if isinstance(activation, str) else activation


def of_dtype(x: Any, dtype: torch.dtype) -> Any:
    """A gradient in the dtype of the inputs, where `out_dtype` is another."""
    return x if x.dtype == dtype else x.to(dtype)


# ---------------------------------------------------------------- functions that differentiate into one another


@dataclasses.dataclass(eq=False)
class Multilinear:
    """A function whose gradients are functions with gradients again: any order of them exists."""

    inputs: str
    """The arguments that are tensors, by name; the others are given to all functions here as keywords."""
    forward: Callable[..., Any]
    gradients: dict[str, tuple[str, Callable[..., Any]]]
    """Input -> the names of the inputs that its gradient reads, and (g, *those, shape=its own, **others) -> gradient,
    by functions with gradients."""
    bend: Callable[..., Any] | None = None
    """(dy, y, *activation) -> g, for an activation among the others whose gradient reads the result."""

    def __post_init__(self) -> None:
        self.names = tuple(self.inputs.split())
        self.reads = {name: tuple(read.split()) for name, (read, _) in self.gradients.items()}

    def apply(self, others: dict[str, Any], *inputs: Any) -> Any:
        """Call it, with gradients where they are recorded."""
        if not recorded(*inputs) and not _transformed():
            return self.forward(*inputs, **others)
        return _MultilinearFunction.apply(self, others, *inputs)


class _MultilinearFunction(Recorded):
    """A function by its row; of its inputs those are kept that a gradient which is wanted reads."""

    @staticmethod
    def forward(row: Multilinear, others: dict[str, Any], *inputs: Any) -> Any:
        return row.forward(*inputs, **others)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.row, ctx.others, *given = inputs
        row, needs, act = ctx.row, ctx.needs_input_grad[2:], ctx.others.get("activation")
        ctx.like = [(x.shape, x.dtype) if need else None for x, need in zip(given, needs, strict=True)]
        read = {each for name, need in zip(row.names, needs, strict=True) if need for each in row.reads[name]}
        y = output if act is not None and reads(act[0]) == "y" else None
        ctx.save_for_backward(*[x if name in read else None for name, x in zip(row.names, given, strict=True)], y)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        row, others, (*saved, y) = ctx.row, ctx.others, ctx.saved_tensors
        known, act = dict(zip(row.names, saved, strict=True)), others.get("activation")
        g = dy if act is None else row.bend(dy, y, *act)
        of = {g.dtype: g}  # in the dtype of an input, where `out_dtype` is another
        found: list[Any] = [None, None]
        for name, like in zip(row.names, ctx.like, strict=True):
            if like is None:
                found.append(None)
                continue
            shape, dtype = like
            if dtype not in of:
                of[dtype] = g.to(dtype)
            each = [known[name] for name in row.reads[name]]
            found.append(row.gradients[name][1](of[dtype], *each, shape=shape, **others))
        return tuple(found)


def _sums(x: Any, *, to: tuple[int, ...], factor: float) -> Any:
    lead = x.ndim - len(to)
    gone = [i for i in range(x.ndim) if i < lead or (to[i - lead] == 1 and x.shape[i] != 1)]
    kept = [i for i in range(x.ndim) if i not in gone]
    if not x.numel():
        return x.new_zeros(to)
    ones = x.new_ones(math.prod(x.shape[i] for i in gone))
    first = gone == list(range(len(gone)))
    order = (gone + kept) if first else (kept + gone)
    matrix = x.permute(order).reshape((len(ones), -1) if first else (-1, len(ones)))
    return numbaprims.gemv(matrix, ones, trans=first, alpha=factor).reshape(to)


_SUM_TO = Multilinear("x", _sums, {"x": ("", lambda g, *, shape, to, factor: scaled(g, factor).expand(shape))})
# the elements of one times those of the other: what exp's gradient computes
_PRODUCT = Multilinear("a b", lambda a, b: numbaprims.exp_backward(a, b), {
    "a": ("b", lambda g, b, *, shape: product(g, b)), "b": ("a", lambda g, a, *, shape: product(g, a)),
})  # fmt: skip
# an outer product of one row
_SCALED = Multilinear(
    "x", lambda x, *, factor: numbaprims.ger(x.new_ones(1), x.reshape(-1), alpha=factor).reshape(x.shape),
    {"x": ("", lambda g, *, shape, factor: scaled(g, factor))},
)  # fmt: skip


def sum_to(x: Any, shape: Sequence[int], factor: float = 1.0) -> Any:
    """`factor` times the sums of x over the dimensions along which an array of `shape` was repeated."""
    if tuple(x.shape) == tuple(shape):
        return scaled(x, factor)
    return _SUM_TO.apply({"to": tuple(shape), "factor": factor}, x)


def product(a: Any, b: Any) -> Any:
    """The elements of a times those of b, of one shape."""
    return _PRODUCT.apply({}, a, b)


def scaled(x: Any, factor: float) -> Any:
    """factor * x."""
    return x if factor == 1.0 else _SCALED.apply({"factor": float(factor)}, x)
