"""From the types of a call to the code that writes its block and calls its site (cpu/simd/call_sites.py).

The code is written as text, once for each combination of types: Numba knows no `None` that turns into an array, so an
argument that is not given is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.errors import TypingError

from numbaprims import arrays
from numbaprims.cpu.call_sites import ArrayKind
from numbaprims.cpu.simd.call_sites import call_site
from numbaprims.jitted import sites
from numbaprims.jitted.compiled import FUNCTIONS, IN_PYTHON
from numbaprims.jitted.networks import Network
from numbaprims.jitted.overloads import define
from numbaprims.jitted.rows import ABSENT, ARRAYS, FLAGS, INTS, LITERALS, TRUTHS, WINDOWS, WORDS, Row
from numbaprims.jitted.table import BY_KIND, ROWS
from numbaprims.ops.activation_kinds import ALIASES, KINDS, resolve


def build(name: str, parameters: dict[str, Any], given: dict[str, Any]) -> Callable[..., Any]:
    """The implementation of a public function for arguments of given types; TypingError where it has none.

    What the caller leaves out comes as the default itself, not as a type.
    """
    typed = {key: typ if isinstance(typ, types.Type) else types.Omitted(typ) for key, typ in given.items()}
    return _Builder(name, parameters).build(typed)


def _plain(typ: Any) -> Any:
    """A type without what Numba wraps around defaults and literals."""
    if isinstance(typ, types.Omitted):
        return numba.typeof(typ.value)
    return types.unliteral(typ)


def _value(typ: Any) -> Any:
    """The value of a literal or of a default; None where there is none."""
    if isinstance(typ, types.Omitted):
        return typ.value
    return getattr(typ, "literal_value", None)


def _is_none(typ: Any) -> bool:
    return isinstance(typ, types.NoneType) or (isinstance(typ, types.Omitted) and typ.value is None)


class _Builder:
    """Makes the implementation of one function for given types."""

    def __init__(self, name: str, parameters: dict[str, Any]) -> None:
        self._name, self._parameters = name, parameters

    def _refuse(self, argument: str, typ: Any, allowed: str) -> TypingError:
        shown = repr(typ.value) if isinstance(typ, types.Omitted) else str(typ)
        return TypingError(f"numbaprims.{self._name} inside @njit: {argument} is {shown}; {allowed}")

    def build(self, given: dict[str, Any]) -> Callable[..., Any]:
        name = self._name
        if name in BY_KIND:
            name = self._by_kind(given)
        row = ROWS[name]
        given = {argument: typ for argument, typ in given.items() if argument not in row.left or not _is_none(typ)}
        found: dict[str, Any] = {}
        scalars: dict[str, str] = {}
        fixed: dict[str, Any] = {"=constants": True} if row.constants else {}
        windows: dict[str, Any] = {}
        body: list[str] = []
        for argument, typ in given.items():
            if argument in row.optional and _is_none(typ):
                fixed[argument] = None
            elif argument in (*ABSENT, *row.absent):
                if not _is_none(typ):
                    raise self._refuse(argument, typ, "it must be None; call it in a block of numba.objmode")
            elif argument == "weights":
                if not isinstance(typ, Network):
                    raise self._refuse(argument, typ, "it must be RnnWeights of NumPy arrays")
                fixed[argument] = typ.settings
                found |= dict(typ.named)
                body += [f"{name} = weights.arrays[{i}]" for i, (name, _) in enumerate(typ.named)]
            elif argument == "parts":
                if not isinstance(typ, types.BaseTuple) or not typ:
                    raise self._refuse(argument, typ, "it must be a tuple of arrays")
                parts: Any = typ
                for i, part in enumerate(parts):
                    if self._is_array(f"part_{i}", part):
                        found[f"part_{i}"] = part
                        body.append(f"part_{i} = parts[{i}]")
            elif argument in (row.arrays or ARRAYS):
                if self._is_array(argument, typ):
                    found[argument] = typ
            elif argument in row.either and isinstance(typ, types.Array):
                if typ.ndim != 1 or not isinstance(typ.dtype, types.Number):
                    raise self._refuse(argument, typ, "it must be a number or an array of one dimension")
                found[argument] = typ
            elif argument == "y_zero_point":
                fixed["=dtype"] = str(_plain(typ))
                if fixed["=dtype"] not in ("int8", "uint8"):
                    raise self._refuse(argument, typ, "it must be an int8 or uint8, whose type the result takes")
                scalars[argument] = "np.int64(y_zero_point)"
            elif argument in (*WINDOWS, *row.windows):
                if isinstance(_value(typ), str) or (argument in row.counted and isinstance(_value(typ), int)):
                    fixed[argument] = _value(typ)
                elif not _is_none(typ):
                    windows[argument] = self._window(argument, argument, typ)
                    if windows[argument] == []:
                        fixed[argument] = windows.pop(argument)
            elif argument in LITERALS:
                value = self._literal(argument, typ)
                if value is not None:
                    fixed[argument] = value
            else:
                scalars[argument] = self._scalar(argument, typ, row)
        return self._implementation(name, row, body, found, scalars, fixed, windows)

    def _window(self, argument: str, expression: str, typ: Any) -> Any:
        """The expression of an int, or a list of those of a tuple."""
        plain = _plain(typ)
        if isinstance(plain, types.Integer):
            return f"np.int64({expression})"
        if isinstance(plain, types.BaseTuple):
            parts: Any = plain
            return [self._window(argument, f"{expression}[{i}]", part) for i, part in enumerate(parts)]
        raise self._refuse(argument, typ, "it must be an int or a tuple of ints")

    def _scalar(self, argument: str, typ: Any, row: Row) -> str:
        """The expression of a flag, an int or a number as a kernel takes it."""
        plain = _plain(typ)
        if argument in FLAGS:
            if not isinstance(plain, (types.Boolean, types.Integer)):
                raise self._refuse(argument, typ, "it must be a bool")
            return f"1 if {argument} else 0"
        if _is_none(typ) and argument in row.defaults:
            value = row.defaults[argument]
            return value if isinstance(value, str) else repr(value).replace("inf", "np.inf")
        if argument in INTS:
            if not isinstance(plain, types.Integer):
                raise self._refuse(argument, typ, "it must be an int")
            return f"np.int64({argument})"
        if argument in WORDS:
            if not isinstance(plain, types.Integer):
                raise self._refuse(argument, typ, "it must be an int")
            return f"word_as_float({argument})"
        if argument.endswith("_zero_point") and isinstance(plain, types.Boolean):  # 1 to what follows
            raise self._refuse(argument, typ, "a zero point is an integer")
        if argument in row.keyed and isinstance(plain, (types.Integer, types.Boolean)):
            return f"np.int64({argument})"
        if not isinstance(plain, (types.Float, types.Integer, types.Boolean)):
            raise self._refuse(argument, typ, "it must be a real number")
        return f"1.0 * {argument}"  # float() of a float32 is none of 64 bits

    def _by_kind(self, given: dict[str, Any]) -> str:
        """The function that stands behind a kind; its parameters are left in `given`, the others taken away."""
        kind = _value(given.pop("kind"))
        backward = self._name == "activation_backward"
        parameters = {key: given.pop(key) for key in list(given) if key not in ("x", "y", "dy", "out")}
        wanted = {key: typ for key, typ in parameters.items() if not _is_none(typ)}
        if not isinstance(kind, str):
            raise TypingError(f"numbaprims.{self._name} inside @njit: kind must be a literal string")
        try:
            own = KINDS[ALIASES.get(kind, (kind, {}))[0]] if kind in KINDS or kind in ALIASES else None
            stand_ins = {key: "none" if key == "approximate" else 1 for key in wanted}
            resolve(kind, stand_ins)  # refuses what the public call refuses, but for the values of parameters
        except (TypeError, ValueError) as error:  # no TypingError: Numba tries again without literals
            raise TypeError(f"numbaprims.{self._name} inside @njit: {error}") from None
        assert own is not None
        if backward:
            for array in ("x", "y"):
                if array == own.reads and _is_none(given[array]):
                    raise TypingError(f"{array} is None; the gradient of {kind} is computed from it")
                if array != own.reads:
                    del given[array]
        given |= {key: parameters[key] for key in own.parameters if key not in ALIASES.get(kind, (kind, {}))[1]}
        return f"{kind}_backward" if backward else kind

    def _is_array(self, argument: str, typ: Any) -> bool:
        if isinstance(typ, types.Array):
            if not isinstance(typ.dtype, (types.Number, types.Boolean)):
                raise self._refuse(argument, typ, "its elements must be numbers")
            return True
        if _is_none(typ) and self._parameters.get(argument, None) is None:
            return False
        if isinstance(typ, types.Optional):
            raise self._refuse(argument, typ, "it must be an array or None where the function is compiled")
        raise self._refuse(argument, typ, "it must be an array")

    def _literal(self, argument: str, typ: Any) -> str | bool | None:
        if _is_none(typ):
            return None
        value = _value(typ)
        if argument in ("out_dtype", "dtype"):
            value = str(typ.dtype) if isinstance(typ, (types.DType, types.NumberClass)) else value
            if _is_half(value):  # no TypingError: Numba tries again without literals, and shows what it has then
                raise TypeError(
                    f"numbaprims.{self._name} inside @njit: {argument} is {value!r}, and Numba has no such arrays on "
                    "the CPU; call it outside, or in a block of numba.objmode"
                )
        if isinstance(value, bool if argument in TRUTHS else str):
            return value
        if argument == "activation":
            allowed = (
                "it must be None or the name of a kind as a literal; call the activation itself for its parameters"
            )
        else:
            allowed = f"it must be a literal {'bool' if argument in TRUTHS else 'string'}"
        raise self._refuse(argument, typ, allowed)

    def _implementation(
        self,
        name: str,
        row: Row,
        body: list[str],
        found: dict[str, Any],
        scalars: dict[str, str],
        fixed: dict[str, Any],
        windows: dict[str, Any],
    ) -> Callable[..., Any]:
        # the names that end in "_" are those of the body: what the caller left out has another type than its value
        body += [f"{argument}_ = {expression}" for argument, expression in scalars.items()]
        if row.numbers is not None:
            scalars = {key: scalars[key] for key in (*row.numbers(found), *INTS, *row.keyed) if key in scalars}
        operands: list[str] = []
        kinds: list[ArrayKind] = []
        every = row.results({**found, **fixed, **windows}) if callable(row.results) else row.results
        for result, allocate in every.items():
            name_of_result = f"result_{len(operands)}"
            if result in found:
                if result in row.whole and found[result].layout != "C":
                    raise self._refuse(result, found[result], "it must lie in C order")
                body.append(f"{name_of_result} = {result}")
                kinds.append(_kind(result, found[result]))
            else:
                expression = allocate({**found, **fixed, **windows})
                if not expression:  # not of this call
                    continue
                body.append(f"{name_of_result} = {expression}")
                kinds.append(self._made(result, expression, found, fixed, windows))
            operands.append(name_of_result)
        results = len(operands)
        body += row.checks(found)
        made = row.made and row.made.expression({**found, **fixed, **windows, **scalars})
        taken = row.made.taken if row.made and made else ()
        for argument, typ in found.items():
            if argument not in (*every, *taken):
                operands.append(argument)
                kinds.append(_kind(argument, typ))
                if argument in row.whole and typ.layout != "C":
                    operands[-1] = f"whole_{argument}"
                    body.append(f"{operands[-1]} = np.ascontiguousarray({argument})")
        floats = {f"={array}": _element(array, found[array]) for array in row.read}
        ints: dict[str, str] = {}
        for argument, expression in scalars.items():
            if argument in row.keyed and not expression.startswith("np.int64"):
                ints[f"~{argument}"] = f"np.float64({argument}_).view(np.int64)"
            elif argument == "y_zero_point":
                ints[f"{argument}:{fixed['=dtype']}"] = f"{argument}_"
            else:
                (ints if argument in (*FLAGS, *INTS, *row.keyed) else floats)[argument] = f"{argument}_"
        ints |= dict(_parts(windows))
        ints |= {f"={argument}": _which(f"{argument}_", values) for argument, values in row.special.items()}
        missing = [f"{argument}_" for argument in row.optional if argument not in scalars]
        conditions = (each for each in row.conditions if not any(name in each for name in missing))
        ints |= {f"={i}": condition for i, condition in enumerate(conditions)}
        numbers = f"{_tuple(floats.values())}, {_tuple(ints.values())}"
        more = (list(floats), list(ints), fixed)
        refusal = sites.describe(sites.IN_PYTHON + name, [_kind(*each) for each in found.items()], 0, *more)
        refuse = f"    call_site(refusal, {_tuple(found)}, {numbers})"
        if row.made and made:
            name, word = f"{name}_with_{row.made.name}", row.made.word
            operands.append(row.made.name)
            kinds.append(ArrayKind(row.made.name, row.made.dtype, row.made.ndim, True, True))
            words = f"numbaprims.{self._name} inside @njit: only Python takes these arguments"
            body += [f"{row.made.name}, word_ = {made}", "if word_ < 0:", refuse, f"    raise ValueError({words!r})"]
            ints = {key: value for key, value in ints.items() if key.removeprefix("~") not in taken}
            ints[word] = "np.int64(word_)"
            numbers = f"{_tuple(floats.values())}, {_tuple(ints.values())}"
        elif any(argument in row.either for argument in found):
            name = sites.IN_PYTHON + name
        description = sites.describe(name, kinds, results, list(floats), list(ints), fixed)
        body.append(f"call_site(description, {_tuple(operands)}, {numbers})")
        if row.refused:
            body += [f"if {row.refused}:", refuse]
        returned = operands[: results - len(row.own)]
        body.append(f"return {_tuple(returned) if callable(row.results) else ', '.join(returned)}")
        names = {
            "np": np,
            **FUNCTIONS,
            "call_site": call_site,
            "description": description,
            "refusal": refusal,
        }
        return define(self._name, self._parameters, body, {**names, "result_dtype": _result_dtype(found, fixed)})

    def _made(
        self, result: str, expression: str, found: dict[str, Any], fixed: dict[str, Any], windows: dict[str, Any]
    ) -> ArrayKind:
        """The kind of array that an expression allocates."""
        names: dict[str, Any] = {key: np.empty((1,) * typ.ndim, str(typ.dtype)) for key, typ in found.items()}
        names |= {f"{word}_": 0 for word in (*FLAGS, *INTS)}
        names |= {"np": np, **IN_PYTHON}
        names |= {argument: _ones(value) for argument, value in windows.items()}
        made = eval(expression, {**names, "result_dtype": _result_dtype(found, fixed)})
        return ArrayKind(result, str(made.dtype), made.ndim, True, True)


def _parts(windows: dict[str, Any]) -> list[tuple[str, str]]:
    """Each int of the arguments of windows: "padding.0.1" -> its expression."""
    found = []
    for name, value in windows.items():
        if isinstance(value, list):
            found += _parts({f"{name}.{i}": each for i, each in enumerate(value)})
        else:
            found.append((name, value))
    return found


def _ones(value: Any) -> Any:
    """A value in the place of an argument of windows."""
    return tuple(map(_ones, value)) if isinstance(value, list) else 1


def _result_dtype(found: dict[str, Any], fixed: dict[str, Any]) -> Any:
    """The dtype of the result of functions that have a choice."""
    if "=dtype" in fixed:
        return np.dtype(fixed["=dtype"])
    if "out_dtype" in fixed:
        return np.dtype(arrays.LONG_NAMES[arrays.dtype_name(fixed["out_dtype"], "out_dtype")])
    own = str(next(iter(found.values())).dtype) if found else "float32"
    return np.dtype({"int8": "int32", "uint8": "int32"}.get(own, own))


def _is_half(word: Any) -> bool:
    try:
        return arrays.dtype_name(word) in ("f16", "bf16")
    except TypeError:
        return False


def _kind(name: str, typ: Any) -> ArrayKind:
    return ArrayKind(name, str(typ.dtype), typ.ndim, typ.mutable, typ.aligned)


def _tuple(words: Iterable[str]) -> str:
    """
    >>> _tuple(["a", "b"])
    '(a, b, )'
    """
    return f"({''.join(f'{word}, ' for word in words)})"


def _which(value: str, specials: tuple[float, ...]) -> str:
    """The int that tells the special values of a number apart.

    >>> _which("beta_", (0.0, 1.0))
    '(1 if beta_ == 0.0 else 2 if beta_ == 1.0 else 0)'
    """
    words = [f"{i + 1} if {value} == {special!r} else" for i, special in enumerate(specials)]
    return f"({' '.join(words)} 0)"


def _element(array: str, typ: Any) -> str:
    """The one element of an array that has no other, else 0.

    >>> _element("weight", types.float32[:, :])
    '(float(weight[0, 0]) if weight.size == 1 else 0.0)'
    """
    index = ", ".join(["0"] * typ.ndim) or "()"
    return f"(float({array}[{index}]) if {array}.size == 1 else 0.0)"
