"""The road of primitives that are formulas: a descriptor poses a call, and everything else is the same for all.

A `Primitive` is made once for each public function.  What is its own is `pose`: from the storage of its arrays and its
options to the shapes of its results and the problem.  Checks, keys, launchers, results, `out`, the float64 reference,
`explain`, `find` and `tune` follow from it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from numbaprims import arrays, settings
from numbaprims.dispatch import call, joining, registry
from numbaprims.dispatch.choose import Posed, Trial
from numbaprims.dispatch.known import KnownCalls, launched
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import FLOATS, LONG_NAMES

_current = settings.current
_enter = arrays.enter
_ndarray = ndarray

#: Floats of a launch, and the arrays that stand before them.
_FLOATS, _FEW = ("f0", "f1", "f2", "f3", "f4", "f5"), 7


class Result(NamedTuple):
    """A result of a call."""

    shape: tuple[int, ...]
    dtype: str
    like: int | None = None
    """The input whose order in memory it takes; None for C order."""
    channels_behind: bool = False
    """Whether its second dimension lies innermost in memory."""


class Pose(NamedTuple):
    """A checked call."""

    results: tuple[Result, ...]
    problem: Callable[[Sequence[Any]], Problem]
    """From the storage of the results, which are not written."""
    slots: tuple[int, ...] | None = None
    """Which array of a launch each result and each given input is, -1 for none; None: they follow one another."""
    algorithm: str = "auto"
    """The solver that the call itself asks for."""
    order: tuple[int, ...] = ()
    """Which of the results, the inputs and None each array of a launch is; set where a call is bound."""


class Given(NamedTuple):
    """The arrays of a call, as checks see them; None for those that are not given."""

    arrays: tuple[Any, ...]
    storages: tuple[Any, ...]
    dtypes: tuple[str | None, ...]
    names: tuple[str, ...]
    numbers: tuple[float, ...] = ()

    def words(self, at: int) -> str:
        """An argument in an error message: "x is a float32 array (3, 4)"."""
        return f"{self.names[at]} is a {arrays.describe(self.arrays[at])}"


class Primitive:
    """A public function: ``primitive.run(arrays, options, numbers, out)``, `out` being where its first result goes.

    Args:
        name: of the public function.
        inputs: names of its arrays; in `others` those whose dtype need not be that of the first.
        pose: checks a call and says what it gives; raises for what is wrong.
        reference: the definition over float64 arrays: (arrays, options, numbers) -> array, or tuple of arrays.
        dtypes: what the first array may be.
        exact: the inputs that `out` may be, element for element.
        required: how many of the arrays every call has.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[str, ...],
        pose: Callable[[Given, tuple[Any, ...]], Pose],
        reference: Callable[..., Any],
        *,
        dtypes: tuple[str, ...] = FLOATS,
        others: tuple[str, ...] = (),
        exact: tuple[str, ...] = (),
        required: int = 1,
    ) -> None:
        self.name, self.inputs, self.dtypes, self._required = name, inputs, dtypes, required
        self._pose, self._reference = pose, reference
        self._others = tuple(inputs.index(other) for other in others)
        self._exact = tuple(name in exact for name in inputs)
        self._launchers = call.Launchers()
        self._known_calls = KnownCalls()
        self.run = self._fast()

    def __call__(self, *call: Any) -> Any:
        """The same as `run`, which is 0.1 us less."""
        return self.run(*call)

    def _fast(self) -> Callable[..., Any]:
        """`run(arrays, options, numbers, out)`; names of a function around it take half as long as attributes."""
        known_of, unknown, override = self._known_calls.get, self._unknown, settings._lookup

        def run(given, options=(), numbers=(), out=None):  # type: ignore[no-untyped-def]
            state = settings._default if override() is None else _current()
            try:
                known = known_of((options, state.calls))
            except TypeError:  # a list or an array, which no option is
                return unknown(given, tuple(map(_hashable, options)), numbers, out)
            if known is not None:
                call_of, words, table = known
                found = call_of(words, out, given, numbers)
                if found is not None:
                    return found if type(found) is not tuple else launched(table, found, given, numbers)
            return unknown(given, options, numbers, out)

        return run

    def _unknown(self, given: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...], out: Any) -> Any:
        """A call whose arrays are not those of an earlier one."""
        state = _current()
        storages: list[Any] = []
        kinds: list[Any] = []
        for x, name in zip(given, self.inputs, strict=True):
            if x is None:
                storages.append(None)
                kinds.append(None)
            else:
                storage, dtype, library = _enter(x, name)
                storages.append(storage)
                kinds.append((dtype, storage.shape, storage.strides, library))
        target = None if out is None else _enter(out, "out")
        key = (options, state.key, *kinds, None if target is None else self._lies(target, storages))
        bound = self._launchers.get(key)
        if bound is None:
            bound = self._bind(given, storages, kinds, options, out, key)
        if bound.extra is None:
            return self._apart(given, options, out)
        pose, library = bound.extra, kinds[0][3]
        results: list[Any] = []
        made: list[Any] = []
        for index, (shape, dtype, like, _) in enumerate(pose.results):
            if index == 0 and target is not None:
                storage = arrays.check_out(out, shape, dtype, library=library)
                self._check_overlap(storage, storages)
                result = out
            elif like is None:
                result, storage = library.empty(shape, dtype)
            else:
                result, storage = library.empty_like(storages[like], dtype)
            results.append(result)
            made.append(storage)
        if bound.launch is None or state.device == "reference":
            self._define(storages, kinds, made, pose, options, numbers)
        else:
            self._launch(bound, made, storages, numbers)
            if state.verbose:
                call.log_call(bound)
            else:
                views = None if library.device == "cpu" else (*made, *storages)
                self._remember((options, state.calls), bound, results, given, out is None, views, numbers)
        return results[0] if len(results) == 1 else tuple(results)

    # ---------------------------------------------------------------- the parts of a call

    def _apart(self, given: Sequence[Any], options: tuple[Any, ...], out: Any) -> Any:
        """By other public calls (`Joined`)."""
        raise AssertionError(self.name)

    def _checked(
        self, given: Any, storages: list[Any], kinds: list[Any], options: Any, numbers: tuple[float, ...] = ()
    ) -> Pose:
        """The pose of a call, its arrays being of one library and of dtypes that go together."""
        for x, kind, name in zip(given[: self._required], kinds, self.inputs, strict=False):
            if kind is None:
                _enter(x, name)  # says that None is no array
        first, library = kinds[0][0], kinds[0][3]
        if first not in self.dtypes:
            words = ", ".join(LONG_NAMES[dtype] for dtype in self.dtypes)
            raise TypeError(f"{self.inputs[0]} is a {arrays.describe(given[0])}; {self.name} takes {words}")
        for at, kind in enumerate(kinds):
            if kind is not None and (kind[3] is not library or (kind[0] != first and at not in self._others)):
                arrays.require_same(given[0], self.inputs[0], given[at], self.inputs[at])
        dtypes = tuple(None if kind is None else kind[0] for kind in kinds)
        return self._pose(Given(given, tuple(storages), dtypes, self.inputs, numbers), options)

    def _posed(
        self, given: Any, storages: list[Any], kinds: list[Any], options: tuple[Any, ...], out: Any
    ) -> tuple[Pose, Problem]:
        pose = self._checked(given, storages, kinds, options)
        library = kinds[0][3]
        made = []
        for index, (shape, dtype, like, _) in enumerate(pose.results):
            if index == 0 and out is not None:
                storage = arrays.check_out(out, shape, dtype, library=library)
                self._check_overlap(storage, storages)
            elif like is None:
                storage = library.empty(shape, dtype)[1]
            else:
                storage = library.empty_like(storages[like], dtype)[1]
            made.append(storage)
        return pose, pose.problem(made)

    def _bind(
        self, given: Any, storages: list[Any], kinds: list[Any], options: tuple[Any, ...], out: Any, key: Any
    ) -> call.Bound:
        pose, problem = self._posed(given, storages, kinds, options, out)
        shape, dtype, *_ = pose.results[0]
        # without what holds the arrays of this call
        kept = pose._replace(problem=None, order=_order(pose, storages))  # type: ignore[arg-type]
        trial = _current().trial
        if trial is not None and (problem.empty or _current().device == "reference"):
            trial.choice(problem)  # these are never bound
        if problem.empty or _current().device == "reference":
            bound = call.Bound(None, problem, None, {}, "", shape, dtype, kept)  # type: ignore[arg-type]
        else:
            outputs = tuple(range(len(pose.results))) if pose.slots is None else pose.slots[: len(pose.results)]
            bound = call.bind(problem, shape, dtype, library=kinds[0][3], extra=kept, outputs=outputs)
        return self._launchers.put(key, bound)

    def _check_overlap(self, out: Any, storages: list[Any]) -> None:
        arrays.check_overlap(
            out,
            [
                (x, name, exact)
                for x, name, exact in zip(storages, self.inputs, self._exact, strict=True)
                if x is not None
            ],
        )  # fmt: skip

    def _lies(self, target: Any, storages: list[Any]) -> tuple[Any, ...]:
        """What a launcher depends on of `out`: how it lies, and whether it lies where an input does."""
        storage, dtype, library = target
        shared = (x is not None and np.may_share_memory(storage, x) for x in storages)
        return (dtype, storage.shape, storage.strides, library, *shared)

    def _launch(self, bound: call.Bound, made: list[Any], given: Sequence[Any], numbers: tuple[float, ...]) -> None:
        every = (*made, *given, None)
        operands = [every[at] for at in bound.extra.order]
        floats: dict[str, Any] = dict(zip(_FLOATS, numbers, strict=False)) if numbers else {}
        if len(operands) > _FEW:
            floats["more"] = operands[_FEW:]
        bound.launch(*operands[:_FEW], **floats)

    def _remember(
        self,
        key: Any,
        bound: call.Bound,
        results: list[Any],
        given: tuple[Any, ...],
        made: bool,
        views: tuple[Any, ...] | None,
        numbers: tuple[float, ...],
    ) -> None:
        """Let native code know the next call like this one; `views` are those of the arrays on a GPU."""
        slots = bound.extra.slots
        places = iter(range(len(results) + len(given)) if slots is None else slots)
        operands = [(-1 if x is None else next(places), x) for x in (*results, *given)]
        if views is None:
            self._known_calls.add(key, bound, operands, len(results), made, numbers)
        else:
            seen = [(slot, x, view) for (slot, x), view in zip(operands, views, strict=True)]
            dtypes = [result.dtype for result in bound.extra.results]
            self._known_calls.add_on_device(key, bound, seen, dtypes, made, numbers)

    def _define(
        self, storages: list[Any], kinds: list[Any], made: list[Any], pose: Pose, options: Any, numbers: Any
    ) -> None:
        """By the definition in float64: ``config(device="reference")``, and calls with nothing to compute."""
        from numbaprims.reference.convert import from_float64, to_float64

        # nothing to write: `fuse` asks layers for the shape of what they give for no images, 27 ms a pool of 28 x 28
        if not any(storage.size for storage in made):
            return
        # on a GPU only calls with nothing to compute come here, whose results do not depend on elements
        values = [
            None if x is None else to_float64(x if isinstance(x, ndarray) else np.zeros(x.shape, x.dtype), kind[0])
            for x, kind in zip(storages, kinds, strict=True)
        ]
        with np.errstate(all="ignore"):
            found = self._reference(values, options, numbers)
        for result, storage, value in zip(
            pose.results, made, found if isinstance(found, tuple) else (found,), strict=True
        ):
            if storage.size:
                _write(storage, from_float64(value, result.dtype))


class Joined(Primitive):
    """A public function of several launches: ``joined(arrays, options, (), out)`` gives what
    ``apart(arrays, options, out)`` gives, by one program for each kind of arrays on the host.

    `apart` gives an array or a tuple of them, the first of which is `out` where that is given.
    """

    def __init__(self, name: str, inputs: tuple[str, ...], apart: Callable[..., Any]) -> None:
        super().__init__(name, inputs, _unposed, _unposed)
        self._steps = apart

    def _apart(self, given: Sequence[Any], options: tuple[Any, ...], out: Any) -> Any:
        return self._steps(given, options, out)

    def _unknown(self, given: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...], out: Any) -> Any:
        state = _current()
        if state.verbose or state.trial is not None or state.device not in (None, "cpu") or given[0] is None:
            return self._apart(given, options, out)
        return super()._unknown(given, options, numbers, out)

    def _bind(
        self, given: Any, storages: list[Any], kinds: list[Any], options: tuple[Any, ...], out: Any, key: Any
    ) -> call.Bound:
        """Without `extra` for arrays that launches are not joined for."""
        library, there = kinds[0][3], [x for x in storages if x is not None]
        target = None if out is None else _enter(out, "out")
        pose, launch = None, None
        apart = target is not None and (
            target[2] is not library or any(np.may_share_memory(target[0], x) for x in there)
        )
        if not apart and all(kind is None or kind[3] is library for kind in kinds):
            if _current().find_mode != "fast":
                self._apart(given, options, out)  # which measures
            entered = [None if x is None else (x, kind[0], library) for x, kind in zip(storages, kinds, strict=True)]
            found = joining.whole(lambda each, out: self._apart(each, options, out), entered, target)
            results = [_result_like(x, dtype, storages) for x, dtype in found.results]
            if target is not None and results:
                results[0] = Result(target[0].shape, found.results[0][1])
            if found.launch is not None and not found.constants and None not in results:
                pose, launch = Pose(tuple(results), None), found.launch  # type: ignore[arg-type]
                pose = pose._replace(order=_order(pose, storages))
        return self._launchers.put(key, call.Bound(launch, None, None, {}, "", (), "", pose))  # type: ignore[arg-type]


def _unposed(*given: Any) -> Any:
    raise AssertionError("its steps pose problems")


def _result_like(x: Any, dtype: str, storages: Sequence[Any]) -> Result | None:
    """How a result is made that lies as x does; None where nothing made here does."""
    if x.flags.c_contiguous:
        return Result(x.shape, dtype)
    for at, each in enumerate(storages):
        if each is not None and each.shape == x.shape and np.empty_like(each, x.dtype).strides == x.strides:
            return Result(x.shape, dtype, like=at)
    return None


def _order(pose: Pose, storages: Sequence[Any]) -> tuple[int, ...]:
    count = len(pose.results)
    there = [*range(count), *(count + at for at, x in enumerate(storages) if x is not None)]
    if pose.slots is None:
        return tuple(there)
    order = [-1] * (max(pose.slots) + 1)
    for slot, at in zip(pose.slots, there, strict=True):
        if slot >= 0:
            order[slot] = at
    return tuple(order)


def _write(storage: Any, values: Any) -> None:
    """Into an array of the host or of a GPU."""
    if isinstance(storage, ndarray):
        storage[...] = values
    else:
        registry.memory().write(storage, np.ascontiguousarray(values))


def _hashable(option: Any) -> Any:
    try:
        hash(option)
    except TypeError:
        return Unhashable(option)
    return option


def scalar(value: Any, name: str) -> float:
    """The value of a factor as a float; TypeError, naming it, where it is not a real number, ValueError where it is
    one that no float holds."""
    try:
        if not isinstance(value, str):
            return float(value)
    except OverflowError:
        raise ValueError(f"{name} is a number that float64 does not hold") from None
    except (TypeError, ValueError, RuntimeError):  # the last of tensors without memory
        pass
    raise TypeError(f"{name} is {value!r}; it must be a real number")


def integer(value: Any, name: str) -> int:
    """The value of an axis or a count; TypeError, naming it, where it is no integer."""
    try:
        return operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):
        raise TypeError(f"{name} is {value!r}; it must be an integer") from None


def truth(value: Any, name: str) -> bool:
    """The value of a flag; TypeError, naming it, where that is neither true nor false."""
    try:
        return bool(value)
    except (ValueError, RuntimeError):  # of several elements, or without memory
        raise TypeError(f"{name} is {value!r}; it must be True or False") from None


def word(value: Any, name: str, allowed: Iterable[str]) -> str:
    """One of some words; ValueError, naming it, for anything else."""
    if isinstance(value, str) and value in allowed:
        return value
    raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


class Unhashable:
    """In the place of an option that no table can hold, for `_unknown` to say what is wrong with it."""

    def __init__(self, option: Any) -> None:
        self._words = repr(option)

    def __repr__(self) -> str:
        return self._words


def problems(*functions: Callable[..., Any]) -> dict[str, Callable[..., Problem]]:
    """The table ``PROBLEMS`` of a module: what a call of each function poses first; nothing is computed."""

    def of(function: Callable[..., Any]) -> Callable[..., Problem]:
        @functools.wraps(function)
        def problem(*args: Any, **kwargs: Any) -> Problem:
            try:
                with settings.trial(Trial()):
                    function(*args, **kwargs)
            except Posed as posed:
                return posed.problem
            raise ValueError(f"{function.__name__} poses no problem for these arguments")

        return problem

    return {function.__name__: of(function) for function in functions}
