"""`gemm.plan`: a product whose B is packed once, for weights that meet many inputs."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from numbaprims import arrays, forks, settings
from numbaprims.dispatch import call, registry
from numbaprims.dispatch.choose import Trial, candidates
from numbaprims.dispatch.known import KnownCalls
from numbaprims.ops._activation_call import forward
from numbaprims.ops._gemm_pose import GEMM
from numbaprims.ops.epilogue import fused
from numbaprims.ops.plans import Plan
from numbaprims.ops.primitive import truth
from numbaprims.ops.product import Product, scalar

# Row counts that one plan keeps launchers for; a server sees few batch sizes, and a launcher is rebuilt in 50 us.
_LAUNCHERS = 64
# A plain call's solver takes a plan's product where it is estimated at less than so much of the packed copy's time.
_PLAIN = 0.9


def packed_solver(problem: Any, device: str) -> Any:
    """The solver by which a plan multiplies with its packed copy; None where a plain call's is faster: for few rows
    or columns, of which tiles would be filled with zeros."""
    solver, target = registry.prepared("gemm", device), registry.target(device)
    if solver is None or solver.why_not(problem, target) is not None:
        return None
    if settings.current().algorithm_for("gemm") is not None:
        return solver
    plain = min(candidate.estimate for candidate in candidates(problem, device))
    return None if plain < _PLAIN * solver.estimate(problem, target) else solver


class GemmPlan(Plan):
    """``plan(a)`` computes ``activation(alpha * a @ op(b) + bias)`` with `b` packed at construction.

    The plan owns its packed copy: a later change of `b` does not reach it until `update`.  It may be called from
    several threads, and pickles its arguments (b itself, not the packed copy).
    """

    def __init__(
        self,
        b: Any,
        *,
        trans_b: bool = False,
        alpha: float = 1.0,
        bias: Any = None,
        activation: Any = None,
        out_dtype: Any = None,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "trans_b": truth(trans_b, "trans_b"), "alpha": scalar(alpha, "alpha"), "bias": bias,
            "activation": activation, "out_dtype": out_dtype,
        }  # fmt: skip
        kind, values = fused(activation)
        numbers = self._arguments["alpha"], 0.0, *values
        self._hold(b, GEMM, (False, bool(trans_b), numbers[0] == 1.0, True, kind, out_dtype), numbers)

    def _hold(self, b: Any, product: Product, options: Any, numbers: tuple[float, ...], *more: Any) -> None:
        """`more`: what stands behind the bias among the arrays of the product."""
        self._product, self._options, self._numbers, self._more = product, options, numbers, more
        self._behind = [None if x is None else arrays.enter(x, "factors")[0] for x in more] or [None, None]
        self._lock = forks.lock()
        self._shape: tuple[int, ...] | None = None
        self._dtype = ""
        self.update(b)

    def update(self, b: Any) -> None:
        """Take new values of B: same shape and dtype.

        Raises:
            ValueError: `b` is no matrix, or its shape or dtype is not that of the plan.
        """
        view, dtype, library = arrays.enter(b, "b")
        if view.ndim != 2:
            raise ValueError(f"b is a {arrays.describe(b)}; a plan takes one matrix (K, N), or (N, K) with trans_b")
        if self._shape is not None and (view.shape != self._shape or dtype != self._dtype):
            raise ValueError(
                f"b is a {arrays.describe(b)}; this plan holds a {arrays.LONG_NAMES[self._dtype]} matrix {self._shape}"
            )
        # the plan's own: `b` may change in place at any time
        if isinstance(view, np.ndarray):
            own = np.array(view, copy=True, order="C")
            mine = library.wrap(own, dtype)
        else:
            mine = forward((b,), "identity")
            own = arrays.enter(mine, "b")[0]
        with self._lock:
            self._b, self._dtype, self._library, self._shape = own, dtype, library, view.shape
            self._mine = mine
            self._packed: Any = None
            self._bound: dict[Any, tuple[Any, ...]] = {}
            self._calls = KnownCalls()

    def __call__(self, a: Any, *, out: Any = None) -> Any:
        """Multiply.

        Args:
            a: (..., M, K), of the library and dtype of `b`.
            out: where the result goes.

        Returns:
            (..., M, N).

        Raises:
            TypeError, ValueError: as `numbaprims.gemm`.
        """
        found = self._calls.again((a, self._arguments["bias"]), out)
        if found is not None:
            return found
        state = settings.current()
        with self._lock:
            own, mine, packed, bound_of, calls = self._b, self._mine, self._packed, self._bound, self._calls
        view, dtype, library = arrays.enter(a, "a")
        key: Any = (view.shape, view.strides, dtype, library, state.key)
        out_view = None
        if out is not None:
            out_view, out_dtype, out_library = arrays.enter(out, "out")
            key += (out_view.shape, out_view.strides, out_dtype, out_library)
        known = bound_of.get(key)
        again = known is not None
        if known is None:
            if state.device == "reference":  # the definition packs nothing
                given = a, mine, None, self._arguments["bias"], *self._more
                return self._product.run(given, self._options, self._numbers, out)
            known = self._bind(a, out, own, mine, packed, bound_of, key)
            if type(known) is not tuple:
                return known(a, out)
        bound, bias, packed = known
        if out_view is None:
            result, out_view = library.empty(bound.shape, bound.dtype)
        else:
            result = out
            arrays.check_writable(out, out_view)
            inputs = [(view, "a", False), (own, "b", False)]
            arrays.check_overlap(out_view, inputs if bias is None else [*inputs, (bias, "bias", False)])
        if out_view.size:
            behind = self._behind[1]
            bound.launch(out_view, view, own, None, bias, packed, behind, *self._numbers)
            if again and not state.verbose:
                launched = 0, 1, own, None, None if bias is None else 2, packed, behind
                given = result, a, self._arguments["bias"]
                views = None if library.device == "cpu" else (out_view, view, bias)
                calls.add_plan(state.calls, bound, launched, self._numbers, given, out is None, views)
        return result

    def leading(self, ndim: int) -> int:
        return max(1, ndim - 1)

    def _bind(self, a: Any, out: Any, own: Any, mine: Any, packed: Any, bound_of: dict[Any, Any], key: Any) -> Any:
        """Check a call, and bind it: to the packed copy, or to the solver of a plain call where packing is no gain."""
        g = self._arguments
        given = a, mine, None, g["bias"], *self._more
        pose, problem, library = self._product.pose(given, self._options, self._numbers, out)
        form = pose.results[0]
        shape, bias = form.shape, None if g["bias"] is None else arrays.enter(g["bias"], "bias")[0]
        device = call.device_of(library)
        target = registry.target(device)
        trial = settings.current().trial
        asked = isinstance(trial, Trial)  # which problem this is
        # what is packed on the host is read by the host's kernels
        solver = None if asked or 0 in shape or device != library.device else packed_solver(problem, device)
        if solver is None:
            launch: Any = None
            if 0 not in shape:
                launch = call.bind(problem, shape, form.dtype, library=library).launch
            packed = None
        else:
            config = next(iter(solver.configs(problem, target)))
            if packed is None:
                packed = solver.prepare(problem, target, config, own.T if g["trans_b"] else own)
            launch = solver.bind(problem, target, config)
            if trial is not None:  # as `call.bind` tells it
                trial.choice(problem)
                launch = trial.wrap(launch, "", (0,))
        bound = call.Bound(launch, problem, cast(Any, solver), {}, "", shape, form.dtype)
        known = bound, bias, packed
        with self._lock:
            if self._b is own:
                self._packed = self._packed if packed is None else packed
                if len(bound_of) >= _LAUNCHERS:
                    bound_of.clear()
                bound_of[key] = known
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._mine, self._arguments)

    def __repr__(self) -> str:
        return f"<gemm plan, b {arrays.LONG_NAMES[self._dtype]} {self._shape}>"


def _rebuild(b: Any, arguments: dict[str, Any]) -> GemmPlan:
    return GemmPlan(b, **arguments)


def plan(
    b: Any,
    *,
    trans_b: bool = False,
    alpha: float = 1.0,
    bias: Any = None,
    activation: Any = None,
    out_dtype: Any = None,
) -> GemmPlan:
    """Pack B once: ``plan(a)`` is then ``gemm(a, b, ...)`` without the packing.

    It multiplies few rows or columns, of which tiles of a packed product would be filled with zeros, as `gemm` does.

    Args:
        b: (K, N), or (N, K) with `trans_b`.
        trans_b: read `b` transposed, as a layer's weight.
        alpha: factor of the product.
        bias: as in `numbaprims.gemm`.
        activation: as in `numbaprims.gemm`.
        out_dtype: as in `numbaprims.gemm`.

    Raises:
        TypeError, ValueError: as `numbaprims.gemm`.

    Example:
        >>> import numpy as np, numbaprims
        >>> layer = numbaprims.gemm.plan(np.eye(3, dtype=np.float32), activation="relu")
        >>> layer(np.array([[1.0, -2.0, 3.0]], np.float32))
        array([[1., 0., 3.]], dtype=float32)
    """
    return GemmPlan(b, trans_b=trans_b, alpha=alpha, bias=bias, activation=activation, out_dtype=out_dtype)
