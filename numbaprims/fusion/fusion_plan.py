"""`FusionPlan`: operators in order, compiled once into as few calls as the metadata graph finds, joined into one."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims import arrays, forks
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import explain
from numbaprims.fusion import metadata, miopen, operators as of
from numbaprims.fusion.calls import Arguments, Call, Run, filled
from numbaprims.fusion.joined import JoinedCalls
from numbaprims.fusion.operators import Operator, Tensor, tensor_of
from numbaprims.ops import examples
from numbaprims.ops.primitive import integer
from numbaprims.ops.product import asked_for


class _Bound(NamedTuple):
    """The calls with the arguments that were set."""

    runs: tuple[Run, ...]
    arguments: Arguments
    live: tuple[Any, ...]
    """Those that are read at each run."""
    joined: JoinedCalls


def _live(given: Arguments) -> tuple[Any, ...]:
    """The arrays that are read at each run."""
    return tuple(
        its[name] for operator, its in given.items() for name, argument in operator.arguments.items() if argument.live
    )


class FusionPlan:
    """A sequence of operators that runs as one native call, or as few as can be; as MIOpen's fusion plans.

    Operators are added in order, each by a method that gives its handle. `compile` finds their way through a graph of
    what may be fused, and says yes, or no and in `reason` which operator could not join. `set_args` gives an operator
    its arguments, by its handle; they may be changed between runs. ``plan(x)`` executes, from any number of threads.
    Where no kernel does everything, the programs of several calls are joined into one native call, whose intermediate
    results lie in scratch memory; on a GPU they are launches of one stream. `launches` counts, `explain` says why.

    Args:
        x_shape: (N, C, H, W), or (N, H, W, C) with layout="NHWC"; (N, C, L), (N, C, D, H, W); (M, K) for `gemm`.
        dtype: of x: float64, float32, float16, bfloat16; int8 or uint8 where a convolution or product is first.
        layout: "NCHW" or "NHWC".

    Raises:
        TypeError, ValueError: an unknown dtype or layout, a shape of another rank.

    Example:
        >>> import numpy as np, numbaprims
        >>> plan = numbaprims.FusionPlan((1, 1, 3, 3))
        >>> conv, bias = plan.conv((1, 1, 2, 2)), plan.bias()
        >>> relu = plan.activation("relu")
        >>> plan.compile(), plan.launches, plan.launches_saved
        (True, 1, 2)
        >>> plan.set_args(conv, weight=np.ones((1, 1, 2, 2), np.float32))
        >>> plan.set_args(bias, bias=np.float32([-20]))
        >>> plan(np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3))
        array([[[[0., 0.],
                 [0., 4.]]]], dtype=float32)

    References:
        Khan et al., MIOpen: An open source library for deep learning primitives, 2019, section V.
    """

    def __init__(self, x_shape: Sequence[int], dtype: Any = "float32", layout: str = "NCHW") -> None:
        self._x = tensor_of(x_shape, dtype, layout)
        self.operators: tuple[Operator, ...] = ()
        """The handles, in order."""
        self.reason = ""
        """Why `compile` said no."""
        self._arguments: dict[Operator, dict[str, Any]] = {}
        self._library: arrays.Library | None = None
        self._most: int | None = None
        self._forget()

    def _forget(self) -> None:
        """What is made by `compile` and by the first run."""
        self._lock = forks.lock()
        self._path: metadata.Path | None = None
        self._calls: tuple[Call, ...] = ()
        self._bound: _Bound | None = None

    # ---------------------------------------------------------------- operators

    @property
    def result(self) -> Tensor:
        """Shape, dtype and layout of what the plan gives."""
        return self.operators[-1].y if self.operators else self._x

    def _append(self, kind: type[Operator], *options: Any) -> Operator:
        place = len(self.operators) + 1
        try:
            operator = kind(place, self.result, *options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{kind.kind} (operator {place}): {error}") from None
        self.operators = (*self.operators, operator)
        self._forget()
        return operator

    def conv(
        self, weight_shape: Sequence[int], *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
        algorithm: str = "auto",
    ) -> Operator:  # fmt: skip
        """Convolve as `numbaprims.conv`. Arguments: weight; beside int8 and uint8 also x_zero_point and
        weight_zero_point, numbers."""
        return self._append(of.Convolution, weight_shape, stride, padding, dilation, groups, algorithm)

    def gemm(self, weight_shape: Sequence[int]) -> Operator:
        """Multiply x (M, K) by the transpose of a weight (N, K), as `numbaprims.linear`. Arguments: weight."""
        return self._append(of.Product, weight_shape)

    def softmax(self, *, axis: int = -1) -> Operator:
        """Turn rows along an axis into probabilities, as `numbaprims.softmax`. No arguments."""
        return self._append(of.Softmax, axis)

    def bias(self) -> Operator:
        """Add a value a channel. Arguments: bias (C,)."""
        return self._append(of.Bias)

    def scale(self) -> Operator:
        """Multiply by a value a channel. Arguments: scale (C,); float32 behind a convolution of integers."""
        return self._append(of.Scale)

    def batch_norm(
        self, *, mode: str = "spatial", training: bool = False, eps: float = 1e-5, momentum: float = 0.1,
        fold: bool = True,
    ) -> Operator:  # fmt: skip
        """Normalise as `numbaprims.batch_norm`, or with `training` as `numbaprims.batch_norm_train`.

        Behind a convolution at inference, mode="spatial" becomes part of its weight and bias: weight * scale /
        sqrt(var + eps) and (bias - mean) * scale / sqrt(var + eps) + shift, computed in float64 from the numbers that
        were given and rounded once to the weight's dtype; so it does in front of a convolution without padding, and
        of `gemm`. ``fold=False`` keeps it a pass of its own.

        Arguments: scale, shift, mean, var; with `training` scale, shift and, if wanted, running_mean, running_var. The
        plan then gives ``(y, mean, inv_std[, running_mean, running_var])``.
        """
        return self._append(of.Normalisation, mode, training, eps, momentum, fold)

    def batch_norm_backward(self, *, mode: str = "spatial") -> Operator:
        """Take the gradient of a batch norm in training, as `numbaprims.batch_norm_backward`; the plan's x is dy.

        Arguments: x of the forward call, scale, saved_mean, saved_inv_std; behind `activation_backward` shift too. x
        and what was saved are not copied, but read at each run. The plan gives (dx, dscale, dshift).
        """
        return self._append(of.NormalisationBackward, mode)

    def activation_backward(self, kind: str, **parameters: Any) -> Operator:
        """Take the gradient of an activation that stood behind a batch norm, in front of `batch_norm_backward`. No
        arguments: what it was applied to is computed again."""
        return self._append(of.ActivationBackward, kind, parameters)

    def activation(self, kind: str, **parameters: Any) -> Operator:
        """Apply a kind of `numbaprims.activation`. Arguments: its parameters, where they shall be others than here;
        weight (C,) of prelu."""
        return self._append(of.Activation, kind, parameters)

    def add(self) -> Operator:
        """Add an array. Arguments: added, of the shape and dtype of what goes in; not copied, but read at each run."""
        return self._append(of.Add)

    def pool(
        self, op: str, kernel_size: Any, *, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ) -> Operator:  # fmt: skip
        """Pool as `numbaprims.max_pool` ("max") or `numbaprims.avg_pool` ("avg"). No arguments."""
        return self._append(of.Pool, op, kernel_size, stride, padding, dilation, ceil_mode, count_include_pad)

    def cast(self, dtype: Any) -> Operator:
        """Store another dtype: float32 of halves; int8 or uint8 of the scaled sums of integers, ``saturate(round(x /
        scale) + zero_point)``. Arguments of the latter: scale and zero_point, numbers."""
        return self._append(of.Cast, dtype)

    # ---------------------------------------------------------------- compile

    def compile(self, *, strict: bool = False, calls: int | None = None) -> bool:
        """Find the path with the fewest calls.

        Args:
            strict: raise instead of saying no.
            calls: how many native calls are allowed; 1 for a plan that is one or does not compile. On the CPU calls are
                joined into one; on a GPU, where the arguments or `config(device=...)` say so, each counts.

        Returns:
            Whether there is one; `reason` says which operator could not join, and why.

        Raises:
            ValueError: with `strict`, where there is none.
        """
        calls = None if calls is None else integer(calls, "calls")
        found = metadata.search(self.operators, calls, self._alone())
        self._forget()
        self._most, self.reason = calls, found if isinstance(found, str) else ""
        if isinstance(found, str):
            if strict:
                raise ValueError(found)
            return False
        self._path, self._calls = found, tuple(found.made(self.operators))
        self._settle()
        return True

    def _compiled(self) -> metadata.Path:
        if self._path is None:
            raise ValueError(f"the plan is not compiled; call compile(){f': {self.reason}' if self.reason else ''}")
        return self._path

    def _alone(self) -> str:
        """Why calls are not joined; empty where they are."""
        device = registry.device_of(self._library or arrays.NUMPY)
        if registry.split(device)[0] != "cpu":
            return f"on {device} each call is a launch"
        return "" if self._bound is None else self._bound.joined.why

    @property
    def launches(self) -> int:
        """Native calls of a run."""
        self._compiled()
        return len(self._calls) if self._alone() else 1

    @property
    def launches_saved(self) -> int:
        """How many fewer they are than a call for each operator."""
        return len(self.operators) - self.launches

    @property
    def bytes_moved(self) -> int:
        """Bytes that the calls of a run read and write: x, parameters, what is added, results; of joined calls also
        what one leaves for the next in scratch memory."""
        self._compiled()
        return sum(call.bytes_moved() for call in self._calls)

    @property
    def bytes_saved(self) -> int:
        """How many fewer they are than of a call for each operator."""
        alone = ((each.x[:2], *each.arrays(), each.y[:2]) for each in self.operators)
        return sum(of.nbytes(*pair) for pairs in alone for pair in pairs) - self.bytes_moved

    # ---------------------------------------------------------------- arguments

    def set_args(self, operator: Operator, **values: Any) -> None:
        """Give an operator its arguments, all or some of them; the others stay what they were.

        Arrays are copied, but those that a method says are read at each run. Between runs they may be set anew; a run
        that has begun ends with those that it began with. Those of a GPU that are folded go through the host, once, as
        soon as all are set.

        Args:
            operator: a handle of this plan.
            **values: by the names that the operator's method says.

        Raises:
            TypeError: a handle that is none, unknown names, other dtypes, arrays of several libraries.
            ValueError: a handle of another plan, other shapes.
        """
        if not isinstance(operator, Operator):
            raise TypeError(f"operator is {operator!r}; it must be what a method of the plan gave")
        if not any(operator is each for each in self.operators):
            raise ValueError(f"{operator!r} is of another plan; this one has {', '.join(map(repr, self.operators))}")
        checked: dict[str, Any] = {}
        library = self._library
        for name, value in values.items():
            if name not in operator.arguments:
                takes = ", ".join(operator.arguments) or "none"
                raise TypeError(f"{operator.label} has no argument {name!r}; it takes {takes}")
            try:
                checked[name], its = operator.arguments[name].check(name, value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{operator.label}: {error}") from None
            if its is not None and library is not None and its is not library:
                raise TypeError(
                    f"{operator.label}: {name} is a {arrays.describe(value)}; the plan's other arguments are "
                    f"{library.name} arrays"
                )
            library = its or library
        operator.check({**self._arguments.get(operator, {}), **checked})
        with self._lock:
            self._arguments = {**self._arguments, operator: {**self._arguments.get(operator, {}), **checked}}
            self._library, self._bound = library, None
        self._settle()

    def _settle(self) -> None:
        """Fold what lies on a GPU as soon as it is all there, so that no run waits for copies."""
        on_gpu = self._library is not None and self._library.device != "cpu"
        if on_gpu and self._path is not None and not any(map(self._missing, self.operators)):
            self._bind()

    def _missing(self, operator: Operator) -> list[str]:
        """Arguments that are still to be set."""
        has = self._arguments.get(operator, {})
        return [name for name, argument in operator.arguments.items() if argument.needed and name not in has]

    def _bind(self, library: arrays.Library = arrays.NUMPY) -> _Bound:
        """`library` is that of x."""
        with self._lock:
            bound, arguments, own = self._bound, self._arguments, self._library
        if bound is None:
            given = {operator: arguments.get(operator, {}) for operator in self.operators}
            for operator in given:
                if missing := self._missing(operator):
                    raise ValueError(f"{operator.label}: {', '.join(missing)} not set; call set_args")
            runs = self._runs(given)
            bound = _Bound(runs(own or library), given, _live(given), self._join(runs, given, own))
            with self._lock:
                if self._arguments is arguments:
                    self._bound = bound
        return bound

    def _runs(self, given: Arguments) -> Callable[[arrays.Library], tuple[Run, ...]]:
        """The calls with arguments, by the library of what they bring along."""

        @functools.cache
        def runs(library: arrays.Library) -> tuple[Run, ...]:
            with np.errstate(all="ignore"):  # a negative variance gives NaN, as everywhere
                return tuple(call.bind(given, library) for call in self._calls)

        return runs

    def _join(
        self, runs: Callable[[arrays.Library], tuple[Run, ...]], given: Arguments, library: arrays.Library | None
    ) -> JoinedCalls:
        names = [[name for name, argument in operator.arguments.items() if argument.live] for operator in given]

        def apart(x: Any, out: Any, live: Sequence[Any]) -> Any:
            arrays_of = iter(live)
            now = {
                operator: {name: next(arrays_of) for name in its} for operator, its in zip(given, names, strict=True)
            }
            # where no argument is an array, x may be of any library
            return self._apart(runs(library or arrays.enter(x, "x")[2]), now, x, out)

        return JoinedCalls(apart, later=len(self._calls) == 1)

    # ---------------------------------------------------------------- run

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """Execute.

        Args:
            x: of the plan's shape and dtype, any strides, of the library of the arguments.
            out: where the result goes.

        Returns:
            The last operator's result; with a batch norm in training ``(y, mean, inv_std[, running_mean,
            running_var])``, with a gradient of one ``(dx, dscale, dshift)``.

        Raises:
            TypeError, ValueError: a plan that is not compiled, arguments that were not set, an x or `out` of another
                shape, dtype or library, an `out` that overlaps what the last call reads.
        """
        ready = self._bound
        if ready is not None:
            found = ready.joined.again((x, *ready.live), out)
            if found is not None:
                return found
        self._compiled()
        storage, dtype, library = arrays.enter(x, "x")
        if tuple(storage.shape) != self._x.shape or dtype != self._x.dtype:
            raise ValueError(f"x is a {arrays.describe(x)}; this plan takes {self._x}")
        if self._library is not None and library is not self._library:
            raise TypeError(f"x is a {arrays.describe(x)}; the plan's arguments are {self._library.name} arrays")
        target = None
        if out is not None:
            target = arrays.check_out(out, self.result.shape, self.result.dtype, library=library)
        bound = self._bind(library)
        return bound.joined(x, (storage, dtype, library), out, target, bound.live)

    def _apart(self, runs: Sequence[Run], arguments: Arguments, x: Any, out: Any) -> Any:
        """The calls, one after another."""
        value, extra = x, ()
        own = out if self._may_hold(out, arguments) else None
        for at, (call, run) in enumerate(zip(self._calls, runs, strict=True), 1):
            place = out if at == len(runs) else None
            if place is None and all(each.in_place for each in self._calls[at:]):
                place = own  # where what follows works in place
            if place is None and value is not x and call.in_place:
                place = value  # what the plan made itself
            value = run(value, place, arguments)
            if isinstance(value, tuple):
                value, *more = value
                extra = (*extra, *more)
        return (value, *extra) if extra else value

    def _may_hold(self, out: Any, arguments: Arguments) -> bool:
        """Whether results between calls may lie in `out`: they are as large, and no array is read later."""
        kinds = {call.y[:2] for call in self._calls}
        return out is not None and len(kinds) == 1 and not _live(arguments)

    def explain(self, *, phases: bool = False) -> str:
        """The path of each operator through the metadata graph, the solver of each call, MIOpen's constraints beside
        ours, bytes and launches; or why the plan does not compile. With `phases` kernels are compiled, and it says what
        a run on the CPU does."""
        if self._path is None:
            return self.reason or "not compiled"
        path, alone = self._path, self._alone()
        # before an array is set, one whose arrays may have the plan's dtype, as those of NumPy alone may not
        library = self._library or arrays.enter(examples.array((0,), self._x.dtype), "x")[2]
        found = []
        for call in self._calls:
            problem = call.problem(self._arguments, library)
            if problem is None:
                found.append("none, there is nothing to compute")
                continue
            with asked_for(problem.stem, getattr(call.product, "algorithm", "auto")):
                found.append(call.solver(explain(problem)))
            own = [
                each for each in registry.solvers(problem.stem, registry.device_of(library)) if each.name == found[-1]
            ]
            if own and not hasattr(own[0], "program"):
                alone = alone or f"solver {found[-1]} runs no program"
        joined = len(found) > 1 and not alone
        launches = 1 if joined else len(found)
        one = "one call" if launches == 1 else f"{launches} calls"
        lines = [
            f"{self._x}: {len(self.operators)} operators, {launches} native call{'s'[: launches - 1]}"
            + (f" of {len(found)} programs" if joined else "")
        ]
        for number, (call, solver) in enumerate(zip(self._calls, found, strict=True)):
            place = f"call 1, program {number + 1}" if joined else f"call {number + 1}"
            lines.append(f"{place}: {call.function}, solver {solver}, {call.bytes_moved():,} bytes")
            for operator, node, at, why in zip(self.operators, path.nodes, path.calls, path.apart, strict=True):
                if at == number:
                    apart = f"; a {'program' if joined else 'call'} of its own: {why}" if why else ""
                    lines.append(f"  {operator.label} -> {node.name}: {node.does}{apart}")
        if alone and len(found) > 1:
            lines.append(f"calls are not joined: {alone}")
        if phases:
            lines += ["phases:", textwrap.indent(str(self._program(library)), "  ")]
        lines.append(
            f"launches saved: {len(self.operators) - launches}; bytes moved: {self.bytes_moved:,}, "
            f"{self.bytes_moved + self.bytes_saved:,} with a call for each operator"
        )
        takes, rows = miopen.verdict(self.operators)
        lines.append(f"MIOpen: {'fuses it' if takes else 'does not fuse it'}; here it is {one}")
        return "\n".join([*lines, *(f"  {row}" for row in rows)])

    def _program(self, library: arrays.Library) -> Any:
        """What a run on an x in C order does; arguments that are not set are ones."""
        given = filled(self.operators, self._arguments, library)
        joined = self._join(self._runs(given), given, library)
        x = library.empty(*self._x[:2])[0]
        kind = joined.made([arrays.enter(each, "x") for each in (x, *_live(given))])
        return "none" if kind.launch is None else kind.launch.program

    def __getstate__(self) -> dict[str, Any]:
        made = ("_lock", "_path", "_calls", "_bound", "_library")
        kept = {name: value for name, value in self.__dict__.items() if name not in made}
        return {**kept, "_compiled_for": None if self._path is None else (self._most,)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        compiled_for = state.pop("_compiled_for")
        self.__dict__.update(state)
        given = (value for each in self._arguments.values() for value in each.values() if hasattr(value, "shape"))
        self._library = next((arrays.enter(value, "argument")[2] for value in given), None)
        self._forget()
        if compiled_for is not None:
            self.compile(calls=compiled_for[0])

    def __repr__(self) -> str:
        names = " ".join(operator.kind for operator in self.operators) or "nothing yet"
        return f"<fusion plan of {self._x}: {names}>"
