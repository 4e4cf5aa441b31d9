"""The road of products: gemv, ger, gemm, convolutions.

They differ from primitives that are formulas in what kernels expect: one result, each array at a place of its own,
None where a call does not have it, and up to six numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from numbaprims import arrays, settings
from numbaprims.dispatch import call
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import FLOATS, LONG_NAMES
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, scalar as scalar

_current = settings.current
_enter = arrays.enter
_ndarray = ndarray
_INTEGERS = ("i8", "u8", "i32")
# the arrays of a launch beside the result
_PLACES = 6
_FLOATS = ("f0", "f1", "f2", "f3", "f4", "f5")
_INTEGER_PAIRS = (("i8", "i8"), ("u8", "i8"))


def factors(alpha: Any, beta: Any, added: Any, name: str) -> tuple[float, float, Any]:
    """alpha, beta and what beta multiplies, which as in BLAS is not read where beta is 0: NaN in it does not spread."""
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = scalar(alpha, "alpha"), scalar(beta, "beta")
    if beta == 0.0:
        return alpha, beta, None
    if added is None:
        raise ValueError(f"beta is {beta} and {name} is not given; pass {name}, or leave beta 0")
    return alpha, beta, added


def operand_dtype(given: Given, integers: bool, takes: str) -> tuple[str, bool]:
    """The dtype of a product's first two arrays, and whether they are a pair of integers.

    Raises:
        TypeError: they don't go together; `takes` says what would.
    """
    first, second = given.dtypes[:2]
    pair = integers and (first, second) in _INTEGER_PAIRS
    if first != second and not pair:
        arrays.require_same(given.arrays[0], given.names[0], given.arrays[1], given.names[1])
    if not pair and first not in FLOATS:
        raise TypeError(f"{given.words(0)} and {given.words(1).replace(' is', '', 1)}; {takes}")
    return first, pair  # type: ignore[return-value]


def result_dtype(dtype: str, out_dtype: Any) -> str:
    """Of a product: that of its operands, int32 for 8 bits, or the type in which products are summed."""
    accumulate = arrays.DTYPES[dtype].accumulate
    natural = "i32" if accumulate == "i32" else dtype
    wanted = natural if out_dtype is None else arrays.dtype_name(out_dtype)
    if wanted not in (natural, accumulate):
        names = " or ".join(sorted({LONG_NAMES[name] for name in (natural, accumulate)}))
        raise TypeError(f"out_dtype is {out_dtype!r}; for {LONG_NAMES[dtype]} it may be {names}")
    return wanted


def check_integers(numbers: tuple[float, ...], kind: str) -> None:
    """Integers are summed exactly: what would round is refused."""
    alpha, beta = numbers[:2]
    if alpha != 1.0 or beta not in (0.0, 1.0):
        raise ValueError(f"alpha={alpha} and beta={beta}; integer products take alpha 1 and beta 0 or 1")
    if kind not in ("identity", "relu"):
        raise ValueError(f"activation {kind!r}; integer products take None or 'relu'")


def of_dtype(given: Given, at: int, dtype: str) -> Any:
    """The storage of an array; TypeError, naming it, if it is of another dtype."""
    if given.dtypes[at] != dtype:
        raise TypeError(f"{given.words(at)}; it must be a {LONG_NAMES[dtype]} array")
    return given.storages[at]


def broadcast(given: Given, at: int, shape: tuple[int, ...], dtype: str) -> Any:
    """What beta multiplies, in the shape of the result; None where it is not given."""
    if given.storages[at] is None:
        return None
    view = of_dtype(given, at, dtype)
    if view.shape == shape:
        return view  # broadcast_to would change the strides of dimensions of one element
    try:
        return np.broadcast_to(view, shape)
    except ValueError:
        raise ValueError(f"{given.words(at)}; it must broadcast to the result's {shape}") from None


class Product(Primitive):
    """A public function: ``product.run(arrays, options, numbers, out)``.

    What changes the problem is in `options`.

    Args:
        dtypes: what the first array may be, all others being of its dtype; None where `pose` looks at dtypes.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[str, ...],
        pose: Callable[[Given, Any], Pose],
        reference: Any = None,
        *,
        dtypes: tuple[str, ...] | None = FLOATS,
        exact: tuple[str, ...] = (),
        required: int = 2,
    ) -> None:
        super().__init__(
            name, inputs, pose, reference, dtypes=dtypes or tuple(LONG_NAMES), exact=exact,
            others=() if dtypes else inputs, required=required,
        )  # fmt: skip
        self._absent = (None,) * (_PLACES - len(inputs))

    def _unknown(self, given: tuple[Any, ...], options: Any, numbers: Any, out: Any) -> Any:
        """A call whose arrays are not those of an earlier one that native code was told of."""
        state = _current()
        seen: Any = options, state.key
        storages: list[Any] = []
        library: Any = None
        target: Any = None
        for x, name in zip(given, self.inputs):  # noqa: B905 (0.1 us)
            if x is None:
                storages.append(None)
                seen = (seen,)
            else:
                storage, dtype, of = _enter(x, name)
                library = library or of
                storages.append(storage)
                seen = seen, dtype, storage.shape, storage.strides, of, x is out
        if out is not None:
            target, dtype, of = _enter(out, "out")
            seen = seen, dtype, target.shape, target.strides, of
        bound = self._launchers.get(seen)
        again = bound is not None
        if bound is None:
            bound = self._launchers.put(seen, self._bound(*self.pose(given, options, numbers, out), options))
            if library.device == "cpu" and bound.launch is not None:
                self._known_calls.prepare()
        elif target is not None:
            # arrays of these kinds were checked before: left is what differs between arrays of one kind
            arrays.check_writable(out, target)
            self._check_overlap(target, storages)
        form, by_place = bound.extra
        result = out
        if target is None:
            result, target = new_result(library, form)
        if not target.size:
            return result
        if bound.launch is None:
            self._define_product(given, target, form, options, numbers)
            return result
        if by_place:
            bound.launch(target, *storages, *self._absent, *numbers)
        else:
            bound.launch(target, *storages, *self._absent, **by_name(numbers))
        if state.verbose:
            call.log_call(bound)
        elif again and library.device == "cpu":
            operands = [(0, result), *((1 + at, x) for at, x in enumerate(given))]
            self._known_calls.add((options, state.calls), bound, operands, 1, out is None, numbers)
        elif again:
            if form.channels_behind and out is None:
                target = _enter(result, "out")[0]
            seen_by = [(0, result, target), *((1 + at, x, storages[at]) for at, x in enumerate(given))]
            self._known_calls.add_on_device((options, state.calls), bound, seen_by, (form.dtype,), out is None, numbers)
        return result

    # ---------------------------------------------------------------- a call of a new kind

    def pose(
        self, given: tuple[Any, ...], options: Any = (), numbers: tuple[float, ...] = (), out: Any = None
    ) -> tuple[Pose, Problem, arrays.Library]:
        """All checks of a call: its pose, its problem, the library of its arrays."""
        storages, kinds = self._entered(given)
        pose = self._checked(given, storages, kinds, options, numbers)
        library, target = kinds[0][3], None
        if out is not None:
            target = arrays.check_out(out, pose.results[0].shape, pose.results[0].dtype, library=library)
            self._check_overlap(target, storages)
        return pose, pose.problem([target]), library

    def _entered(self, given: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        """The storage of each array, and its (dtype, shape, strides, library)."""
        storages: list[Any] = []
        kinds: list[Any] = []
        for at, (x, name) in enumerate(zip(given, self.inputs, strict=True)):
            if x is None and at >= self._required:
                storages.append(None)
                kinds.append(None)
            else:
                storage, dtype, library = _enter(x, name)
                storages.append(storage)
                kinds.append((dtype, storage.shape, storage.strides, library))
        return storages, kinds

    def _define_product(self, given: Any, target: Any, form: Result, options: Any, numbers: Any) -> None:
        """``config(device="reference")``: the float64 definition, integers exactly."""
        from numbaprims.reference.convert import from_float64, to_float64

        values = [
            x if x is None or kind[0] in _INTEGERS else to_float64(x, kind[0])
            for x, kind in zip(*self._entered(given), strict=True)
        ]
        target[...] = from_float64(self._reference(values, options, numbers), form.dtype)

    def _bound(self, pose: Pose, problem: Any, library: arrays.Library, options: Any) -> call.Bound:
        """With a launcher, which calls share that pose one problem; without one where nothing is to be launched."""
        state, form = _current(), pose.results[0]
        if 0 in form.shape or state.device == "reference":
            if state.trial is not None:
                state.trial.choice(problem)
            return call.Bound(None, problem, None, {}, "", form.shape, form.dtype, (form, True))  # type: ignore[arg-type]
        key = (problem.key(), problem.strides, form, options, state.key, library.place)
        known = self._launchers.get(key)
        if known is None:
            with asked_for(problem.stem, pose.algorithm):
                known = self._launchers.put(key, call.bind(problem, form.shape, form.dtype, library=library))
        # launchers of programs take numbers by place, which is 0.3 us less
        extra = form, hasattr(getattr(known.launch, "program", None), "address")  # of the CPU
        return call.Bound(known.launch, problem, known.solver, known.config, known.rule, form.shape, form.dtype, extra)


def by_name(numbers: tuple[float, ...]) -> dict[str, float]:
    """The numbers of a launch; those of some GPU solvers take them by name only."""
    return dict(zip(_FLOATS, numbers, strict=False))


def asked_for(stem: str, algorithm: str) -> Any:
    """The settings under which one solver is forced, on top of those that are in force."""
    if algorithm == "auto":
        return contextlib.nullcontext()
    return settings.config(algorithm={**dict(settings.current().algorithm or {}), stem: algorithm})


def new_result(library: arrays.Library, result: Result) -> tuple[Any, Any]:
    """A result and its storage."""
    shape = result.shape
    if not result.channels_behind:
        return library.empty(shape, result.dtype)
    made, storage = library.empty((shape[0], *shape[2:], shape[1]), result.dtype)
    axes = (0, len(shape) - 1, *range(1, len(shape) - 1))
    made = made.permute(axes) if hasattr(made, "permute") else made.transpose(axes)
    # kernels read the pointer alone; the definition writes by shape and strides
    return made, storage.transpose(axes) if isinstance(storage, ndarray) else storage
