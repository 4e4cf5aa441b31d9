"""Overloads: what Numba knows of a public function before a user's code calls it.

Light, because it is imported where a program has Numba and uses a function, whether inside `@njit` or not: all that
needs kernels is imported when Numba comes with the types of a first call.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from numba.core import compiler_lock
from numba.extending import overload

from numbaprims.jitted.table import BY_KIND, ROWS
from numbaprims.ops.activation_kinds import KINDS

_registered: set[str] = set()


def register(name: str, function: Any) -> None:
    """Let Numba compile calls of a public function, or refuse them in words; once."""
    if name in ("RnnWeights", "lstm", "gru", "rnn"):
        importlib.import_module("numbaprims.jitted.networks")  # Numba meets such weights before the call of them
    if name in _registered or not inspect.isroutine(function):
        return
    _registered.add(name)
    overload(function, prefer_literal=True, target="cpu")(_stub(name, _parameters(name, function)))
    if compiler_lock.global_compiler_lock.is_locked():
        # looked up in the middle of a compilation, which has read the registries already; elsewhere the next one
        # reads them, and to do it here would cost a program that compiles nothing 0.25 s
        from numba.core.registry import cpu_target

        cpu_target.typing_context.refresh()


def _parameters(name: str, function: Any) -> dict[str, Any]:
    """The function's parameters and their defaults, without the `*` between them, which Numba refuses."""
    found: dict[str, Any] = {}
    every = dict(inspect.signature(function).parameters)
    if name == "qlinear_avg_pool":  # its other keywords are those of avg_pool
        from numbaprims.ops.pooling import avg_pool

        every |= {key: each for key, each in inspect.signature(avg_pool).parameters.items() if key not in every}
    for parameter in every.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            # behind a default Python wants defaults: where it must be given by name, None is refused with the others
            needed = parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
            found[parameter.name] = None if needed else parameter.default
    if name in (*BY_KIND, "qlinear_activation"):  # the parameters of all kinds
        for kind in KINDS.values():
            found |= {key: None for key in kind.parameters if key not in found}
    return found


def define(name: str, parameters: dict[str, Any], body: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    """A function of these parameters, from lines of Python."""
    names = dict(names)
    words = []
    for parameter, default in parameters.items():
        if default is inspect.Parameter.empty:
            words.append(parameter)
        else:
            words.append(f"{parameter}=default_{parameter}")
            names[f"default_{parameter}"] = default
    source = "\n    ".join([f"def {name}({', '.join(words)}):", *body])
    exec(compile(source, f"<numbaprims.{name} inside @njit>", "exec"), names)
    made: Callable[..., Any] = names[name]
    return made


def _stub(name: str, parameters: dict[str, Any]) -> Callable[..., Any]:
    """What Numba calls with the types of a call."""

    def build(given: dict[str, Any]) -> Callable[..., Any]:
        tables = name == "rope_frequencies"
        if not tables and name not in ROWS and name not in BY_KIND:
            # no TypingError: that one Numba buries in "No implementation of function ..."
            raise TypeError(
                f"numbaprims.{name} cannot be called inside @njit; call it outside, or in a block of numba.objmode"
            )
        part = importlib.import_module(f"numbaprims.jitted.{'frequencies' if tables else 'build'}")
        made: Callable[..., Any] = part.build(name, parameters, given)
        return made

    pairs = ", ".join(f"{parameter!r}: {parameter}" for parameter in parameters)
    return define(name, parameters, [f"return build({{{pairs}}})"], {"build": build})
