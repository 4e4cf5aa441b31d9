"""What a row of the table of calls inside `@njit` says, and the expressions that rows have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

ARRAYS = (
    "a", "b", "c", "x", "y", "dy", "bias", "weight", "out", "target", "scale", "shift", "mean", "var", "running_mean",
    "running_var", "condition", "saved_mean", "saved_inv_std", "saved_inv_rms", "residual", "dsum", "indices",
    "weights", "h0", "c0", "lengths", "cos", "sin", "positions", "parts",
)  # fmt: skip
FLAGS = (
    "trans", "trans_a", "trans_b", "ceil_mode", "count_include_pad", "batch_first", "reverse", "interleaved", "causal",
    "exclusive", "largest", "sorted", "scale_grad_by_freq", "zero_infinity", "logits",
)  # fmt: skip
INTS = (
    "axis", "ignore_index", "normalized_dims", "groups", "rotary_dims", "padding_idx", "blank", "beam_width", "paths",
)  # fmt: skip
#: Integers of 64 bits whose bits a float of the call carries.
WORDS = ("seed", "offset")
#: Words that must be literals: they choose code.
LITERALS = (
    "activation", "out_dtype", "approximate", "kind", "mode", "layout", "reduction", "return_indices", "merge", "op",
    "keepdims", "nan", "dtype", "align_corners", "antialias", "algorithm", "symmetric",
)  # fmt: skip
#: Those that are bools.
TRUTHS = ("return_indices", "keepdims", "align_corners", "antialias", "symmetric")
#: What must be left out.
ABSENT = ("batch_sizes",)
#: One integer, or a tuple of them, which may hold pairs; None and words as literals.
WINDOWS = ("kernel_size", "stride", "padding", "dilation", "output_size", "size", "before")


class Made(NamedTuple):
    """An array that compiled code makes of arguments, as Python does outside: the call is then
    `calls.<function>_with_<name>`."""

    name: str
    dtype: str
    ndim: int
    word: str
    """An int of that call, unless it begins with "="; below 0 the public function refuses the arguments, and does."""
    taken: tuple[str, ...]
    """The arguments that the call does without."""
    expression: Callable[[dict[str, Any]], str]
    """That makes both, from the types of the arrays, the literals and the expressions of numbers; "" where the public
    function is called."""


class Row(NamedTuple):
    """One function."""

    results: dict[str, Callable[[dict[str, Any]], str]] | Callable[[dict[str, Any]], dict[str, Callable[..., str]]]
    """Each result -> the expression that allocates it, from the types of the arrays and the literals; "" where a call
    does not have it.  Names of numbers, flags and ints end in "_" in an expression.  "out" may be given instead, and
    what begins with "=" the function has no argument for.  A function of the types where these say how many there are:
    they are then a tuple."""
    special: dict[str, tuple[float, ...]] = {}  # noqa: RUF012
    """Numbers -> the values that make another call of it."""
    conditions: tuple[str, ...] = ()
    """Other expressions, of ints, that do; one that names an optional argument is left out where that is None."""
    keyed: tuple[str, ...] = ()
    """Numbers of which each value is another call of it: kernels have them from Python, and not as run-time scalars."""
    defaults: dict[str, Any] = {}  # noqa: RUF012
    """What None stands for: a value, or an expression as text."""
    read: tuple[str, ...] = ()
    """Arrays whose only element, if they have no other, is a number of the kernel; they stand before the others."""
    numbers: Callable[[dict[str, Any]], tuple[str, ...]] | None = None
    """The numbers that kernels take, in their order, from the types of the arrays; None for all."""
    optional: tuple[str, ...] = ()
    """Arguments that may be None and stay so in the public call, where None is no default of an array."""
    arrays: tuple[str, ...] = ()
    """Its arguments that are arrays, where the names of some are those of numbers in others; () for `ARRAYS`."""
    windows: tuple[str, ...] = ()
    """Arguments that are those of windows in this function."""
    absent: tuple[str, ...] = ()
    """Arguments that must be left out of this function."""
    counted: tuple[str, ...] = ()
    """Arguments of windows of which an int must be a literal."""
    whole: tuple[str, ...] = ()
    """Arrays that kernels take in C order: others are copied, and an `out` that is none is refused."""
    own: tuple[str, ...] = ()
    """Results that the function does not give."""
    refused: str = ""
    """Of results, whether they say that the call must be refused: then Python makes it, which raises."""
    constants: bool = False
    """Whether what Python fills depends on keyed numbers alone: a record then keeps it."""
    left: tuple[str, ...] = ()
    """Arguments that the public call is not given where they are None."""
    either: tuple[str, ...] = ()
    """Numbers that may be arrays of one dimension; if `made` takes none, Python makes the call each time."""
    made: Made | None = None
    """What compiled code makes of some of the arguments."""
    checks: Callable[[dict[str, Any]], list[str]] = lambda types: []
    """Lines that look at elements of the arrays before the call."""


def like(name: str, dtype: str = "") -> Callable[[dict[str, Any]], str]:
    return lambda types: f"np.empty_like({name}{dtype})"


def lying_like(name: str) -> Callable[[dict[str, Any]], str]:
    """As the public call's: which elements lie side by side decides in which order they are summed up."""
    return lambda types: f"np.empty_like({name})" if types[name].layout in "CF" else f"lying_like({name})"


def each_of(name: str) -> Callable[[dict[str, Any]], str]:
    """A value for each of an array's, where it is there."""
    return lambda types: f"np.empty({name}.shape, {name}.dtype)" if name in types else ""


def spatial(types: dict[str, Any], ndim: int) -> range:
    last = types["layout"] in ("NHWC", "NWC", "NDHWC")
    return range(1, ndim - 1) if last else range(2, ndim)


def each_dimension(types: dict[str, Any], name: str, rank: int) -> list[Any]:
    """The expressions of an argument; of a wrong number of them any, for the public call to refuse."""
    value = types.get(name)
    return ([*value, *["0"] * rank] if isinstance(value, list) else [value] * rank)[:rank]


def shaped(array: str, lengths: dict[int, str], ndim: int, dtype: str) -> str:
    words = [lengths.get(d, f"{array}.shape[{d}]") for d in range(ndim)]
    return f"np.empty(({', '.join(words)},), {dtype})" if words else f"np.empty((), {dtype})"


def said(name: str, dtype: str) -> Callable[[dict[str, Any]], str]:
    """Of the shape that is given: an int, or one a dimension."""

    def expression(types: dict[str, Any]) -> str:
        shape = types.get(name, [])
        lengths = shape if isinstance(shape, list) else [shape]
        return shaped("", {d: f"max({length}, 0)" for d, length in enumerate(lengths)}, len(lengths), dtype)

    return expression


def dim(x: str, y: str) -> str:
    """The length of two that broadcast; where they don't, the public call says so."""
    return f"({y} if {x} == 1 else {x})"


def matrices(types: dict[str, Any], rows: str, columns: str) -> str:
    """Products of a and b."""
    a, b = types["a"], types["b"]
    if a.ndim < 2 or b.ndim < 2:
        return "np.empty((0, 0), result_dtype)"  # refused by the public call
    ndim = max(a.ndim, b.ndim)
    lead = []
    for d in range(ndim - 2):
        from_a, from_b = d - (ndim - a.ndim), d - (ndim - b.ndim)
        sizes = [f"{name}.shape[{at}]" for name, at in (("a", from_a), ("b", from_b)) if at >= 0]
        lead.append(dim(*sizes) if len(sizes) == 2 else sizes[0])
    return f"np.empty(({', '.join([*lead, rows, columns])}), result_dtype)"


def broadcast(*names: str, dtype: str = "") -> Callable[[dict[str, Any]], str]:
    """Of the shape to which arrays broadcast, and of the second one's type where none is said; of comparisons bool."""

    def expression(types: dict[str, Any]) -> str:
        from numbaprims.ops.tensor import BINARY

        given = [name for name in names if types.get(name) is not None]
        ndim = max(types[name].ndim for name in given)
        sizes = []
        for d in range(ndim):
            size = "1"
            for name in given:
                at = d - ndim + types[name].ndim
                size = dim(f"{name}.shape[{at}]", size) if at >= 0 else size
            sizes.append(size)
        truth = types.get("op") in BINARY and BINARY[types["op"]].gives
        word = "np.bool_" if truth else dtype or f"{names[1]}.dtype"
        return f"np.empty(({''.join(f'{size}, ' for size in sizes)}), {word})"

    return expression
