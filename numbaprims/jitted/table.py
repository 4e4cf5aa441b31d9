"""The one table of what compiles inside `@njit`: public function -> how its call is posed from types and shapes.

A function's arguments are told apart by their names. What is left to say of one is how its results are allocated, and
which values of its numbers choose another kernel or are refused (all others are run-time scalars of one record).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.ops.activation_kinds import ALIASES, KINDS

ARRAYS = ("a", "b", "c", "x", "y", "dy", "bias", "weight", "out")
FLAGS = ("trans", "trans_a", "trans_b")
INTS = ("axis",)
#: Words that must be literals: they choose code.
LITERALS = ("activation", "out_dtype", "approximate", "kind")


class Row(NamedTuple):
    """One function."""

    results: dict[str, Callable[[dict[str, Any]], str]]
    """Each result -> the expression that allocates it, from the types of the arrays; "out" may be given instead.  Names
    of numbers, flags and ints end in "_" in an expression."""
    special: dict[str, tuple[float, ...]] = {}  # noqa: RUF012
    """Numbers -> the values that make another call of it."""
    conditions: tuple[str, ...] = ()
    """Other expressions, of ints, that do."""
    defaults: dict[str, Any] = {}  # noqa: RUF012
    """What None stands for."""
    read: tuple[str, ...] = ()
    """Arrays whose only element, if they have no other, is a number of the kernel; they stand before the others."""


def _like(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda types: f"np.empty_like({name})"


def _dim(x: str, y: str) -> str:
    """The length of two that broadcast; where they don't, the public call says so."""
    return f"({y} if {x} == 1 else {x})"


def _gemm(types: dict[str, Any]) -> str:
    a, b = types["a"], types["b"]
    if a.ndim < 2 or b.ndim < 2:
        return "np.empty((0, 0), a.dtype)"  # refused by the public call
    ndim = max(a.ndim, b.ndim)
    lead = []
    for d in range(ndim - 2):
        from_a, from_b = d - (ndim - a.ndim), d - (ndim - b.ndim)
        sizes = [f"{name}.shape[{at}]" for name, at in (("a", from_a), ("b", from_b)) if at >= 0]
        lead.append(_dim(*sizes) if len(sizes) == 2 else sizes[0])
    rows = f"(a.shape[{a.ndim - 1}] if trans_a_ else a.shape[{a.ndim - 2}])"
    columns = f"(b.shape[{b.ndim - 2}] if trans_b_ else b.shape[{b.ndim - 1}])"
    return f"np.empty(({', '.join([*lead, rows, columns])}), result_dtype)"


def _linear(types: dict[str, Any]) -> str:
    x, weight = types["x"], types["weight"]
    if x.ndim < 1 or weight.ndim != 2:
        return f"np.empty(({'0, ' * max(x.ndim, 1)}), x.dtype)"
    lead = [f"x.shape[{d}]" for d in range(x.ndim - 1)]
    return f"np.empty(({', '.join([*lead, 'weight.shape[0]'])},), result_dtype)"


def _gemv(types: dict[str, Any]) -> str:
    if types["a"].ndim != 2:
        return "np.empty((0,), a.dtype)"
    return "np.empty((a.shape[1] if trans_ else a.shape[0],), a.dtype)"


def _ger(types: dict[str, Any]) -> str:
    return "np.empty((x.size, y.size), x.dtype)"


def _glu(types: dict[str, Any]) -> str:
    ndim = types["x"].ndim
    if ndim == 0:
        return "np.empty((), x.dtype)"
    lengths = [f"(x.shape[{d}] // 2 if axis_ == {d} or axis_ == {d - ndim} else x.shape[{d}])" for d in range(ndim)]
    return f"np.empty(({', '.join(lengths)},), x.dtype)"


# gemm and gemv drop what beta multiplies where it is 0; alpha other than 1 costs gemm another pass
_ROWS: dict[str, Row] = {
    "gemm": Row({"out": _gemm}, special={"alpha": (1.0,), "beta": (0.0, 1.0)}),
    "linear": Row({"out": _linear}),
    "gemv": Row({"out": _gemv}, special={"beta": (0.0,)}),
    "ger": Row({"out": _ger}),
}

_SPECIAL = {
    "celu": {"alpha": (0.0,)},
    "softplus": {"beta": (0.0, 1.0), "threshold": (20.0,)},
    "power": {"gamma": (2.0,)},
}
_CONDITIONS = {"hard_tanh": ("1 if min_val_ > max_val_ else 0",)}


def _activations() -> dict[str, Row]:
    rows = {}
    for name in (*KINDS, *ALIASES):
        kind = ALIASES.get(name, (name, {}))[0]
        more: dict[str, Any] = {
            "special": _SPECIAL.get(kind, {}),
            "conditions": _CONDITIONS.get(kind, ()),
            "defaults": {
                key: value for key, value in KINDS[kind].parameters.items() if isinstance(value, (float, int))
            },
            "read": ("weight",) if kind == "prelu" else (),
        }
        results = {"out": _like("dy")}
        if kind == "prelu":
            results["dweight"] = _like("weight")
        rows[name] = Row({"out": _glu if kind == "glu" else _like("x")}, **more)
        rows[f"{name}_backward"] = Row({"out": _like("x")} if kind == "glu" else results, **more)
    return rows


ROWS: dict[str, Row] = {**_ROWS, **_activations()}
#: Functions that stand for one of the others, by a literal kind.
BY_KIND = ("activation", "activation_backward")
