"""`conv.plan`: a convolution whose weights are packed or transformed once, for weights that meet many inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays, forks, settings
from numbaprims.dispatch import call, registry
from numbaprims.dispatch.known import KnownCalls
from numbaprims.ops._activation_call import forward
from numbaprims.ops._conv_pose import FORWARD, Options, Window, geometry, hashable
from numbaprims.ops.epilogue import fused
from numbaprims.ops.plans import Plan
from numbaprims.ops.primitive import Result
from numbaprims.ops.product import asked_for, by_name, new_result
from numbaprims.shapes import sizes_of

# Shapes and settings that one plan keeps launchers and prepared weights for, as many as there are batch sizes.
_LAUNCHERS = 16


class ConvPlan(Plan):
    """``plan(x)`` computes ``activation(conv(x, weight) + bias)`` with the weights prepared at construction.

    The plan owns its prepared copy: a later change of `weight` does not reach it until `update`.  It may be called
    from several threads, and pickles its arguments (the weight itself, not the prepared copy).
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        weight: Any,
        *,
        bias: Any = None,
        stride: int | Sequence[int] = 1,
        padding: Any = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        layout: str = "NCHW",
        activation: Any = None,
        algorithm: str = "auto",
    ) -> None:
        self._x_shape = sizes_of(x_shape, "x_shape")
        window = Window(*hashable((stride, padding, dilation, groups, layout)))
        self._arguments: dict[str, Any] = {
            "bias": bias, **window._asdict(), "activation": activation, "algorithm": algorithm
        }  # fmt: skip
        kind, values = fused(activation)
        self._options = Options(tuple(window), activation=kind, algorithm=algorithm, prepared=True)
        self._numbers = by_name((1.0, 0.0, *values))
        view = arrays.enter(weight, "weight")[0]
        geometry(self._x_shape, view.shape, window, "x_shape")
        self._lock = forks.lock()
        self._shape: tuple[int, ...] | None = None
        self._dtype = ""
        self.update(weight)

    def update(self, weight: Any) -> None:
        """Take new values of the weight: same shape and dtype.

        Raises:
            ValueError: its shape or dtype is not that of the plan.
        """
        view, dtype, library = arrays.enter(weight, "weight")
        if self._shape is not None and (view.shape != self._shape or dtype != self._dtype):
            raise ValueError(
                f"weight is a {arrays.describe(weight)}; this plan holds a {arrays.LONG_NAMES[self._dtype]} one of "
                f"shape {self._shape}"
            )
        # the plan's own: `weight` may change in place at any time
        if isinstance(view, np.ndarray):
            mine = library.wrap(np.array(view, copy=True, order="C"), dtype)
        else:
            mine = forward((weight,), "identity")
        with self._lock:
            self._mine, self._dtype, self._shape = mine, dtype, view.shape
            self._bound: dict[Any, tuple[call.Bound | None, Result, Any, Any]] = {}
            self._packed: dict[Any, Any] = {}
            self._calls = KnownCalls()

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """Convolve.

        Args:
            x: of the plan's shape, with any number of images, of the library and dtype of `weight`. The weights are
                prepared anew for each new number.
            out: where the result goes.

        Returns:
            (N, K, P, Q) in the plan's layout.

        Raises:
            TypeError, ValueError: as `numbaprims.conv`; also where `x` is not of the plan's shape.
        """
        found = self._calls.again((x, self._arguments["bias"]), out)
        if found is not None:
            return found
        state = settings.current()
        view, dtype, library = arrays.enter(x, "x")
        if view.ndim != len(self._x_shape) or view.shape[1:] != self._x_shape[1:]:
            raise ValueError(f"x is a {arrays.describe(x)}; this plan takes {self._x_shape}, with any number of images")
        key: Any = (view.shape, view.strides, dtype, library, state.key)
        out_view = None
        if out is not None:
            out_view, out_dtype, out_library = arrays.enter(out, "out")
            key += (out_view.shape, out_view.strides, out_dtype, out_library)
        with self._lock:
            bound_of, packed_of, calls = self._bound, self._packed, self._calls
            known = bound_of.get(key)
        again = known is not None
        if known is None:
            if state.device == "reference":  # the definition prepares nothing
                return FORWARD.run(self._given(x), self._options, tuple(self._numbers.values()), out)
            known = self._bind(x, out, packed_of)
            with self._lock:
                if len(bound_of) >= _LAUNCHERS:
                    bound_of.clear()
                    packed_of.clear()
                bound_of[key] = known
        bound, form, weight, packed = known
        bias = self._arguments["bias"]
        if bias is not None:
            bias = arrays.enter(bias, "bias")[0]
        if out_view is None:
            result, out_view = new_result(library, form)
        else:
            result = out
            arrays.check_writable(out, out_view)
            inputs = [(view, "x", False), (weight, "weight", False)]
            arrays.check_overlap(out_view, inputs if bias is None else [*inputs, (bias, "bias", False)])
        if bound is not None:
            bound.launch(out_view, view, weight, None, bias, packed, None, **self._numbers)
            if state.verbose:
                call.log_call(bound)
            elif again:
                launched = 0, 1, weight, None, None if bias is None else 2, packed, None
                given = result, x, self._arguments["bias"]
                views = None if library.device == "cpu" else (arrays.enter(result, "out")[0], view, bias)
                calls.add_plan(state.calls, bound, launched, tuple(self._numbers.values()), given, out is None, views)
        return result

    def _given(self, x: Any) -> tuple[Any, ...]:
        """The arrays of the call that this plan is for."""
        return x, self._mine, None, self._arguments["bias"]

    def _bind(self, x: Any, out: Any, packed_of: dict[Any, Any]) -> tuple[call.Bound | None, Result, Any, Any]:
        """Check a call, choose its solver and prepare the weights for it; nothing of it for no images."""
        numbers = tuple(self._numbers.values())
        pose, problem, library = FORWARD.pose(self._given(x), self._options, numbers, out)
        form, weight = pose.results[0], arrays.enter(self._mine, "weight")[0]
        if not x.shape[0]:
            return None, form, weight, None
        with asked_for("conv", self._options.algorithm):
            bound = call.bind(problem, form.shape, form.dtype, library=library)
        device = call.device_of(library)
        packed = None
        # what is prepared on the host is read by the host's kernels
        if device == library.device:
            # other settings, as those of a network that is recorded, choose the same
            key = problem, bound.solver.name, *sorted(bound.config.items())
            packed = packed_of.get(key)
            if packed is None:
                packed = bound.solver.prepare(problem, registry.target(device), bound.config, weight)
                packed_of[key] = packed
        return bound, form, weight, packed

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._x_shape, self._mine, self._arguments)

    def __repr__(self) -> str:
        return f"<conv plan, x {self._x_shape}, weight {arrays.LONG_NAMES[self._dtype]} {self._shape}>"


def _rebuild(x_shape: tuple[int, ...], weight: Any, arguments: dict[str, Any]) -> ConvPlan:
    return ConvPlan(x_shape, weight, **arguments)


def plan(
    x_shape: Sequence[int],
    weight: Any,
    *,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: Any = None,
    algorithm: str = "auto",
) -> ConvPlan:
    """Prepare a convolution once: ``plan(x)`` is then ``conv(x, weight, ...)`` without packing or transforming.

    Args:
        x_shape: the shape of the inputs, in `layout`.
        weight: (K, C / groups, R, S); its values are copied.
        bias: as in `numbaprims.conv`; so are the others.
        stride: as in `numbaprims.conv`.
        padding: as in `numbaprims.conv`.
        dilation: as in `numbaprims.conv`.
        groups: as in `numbaprims.conv`.
        layout: as in `numbaprims.conv`.
        activation: as in `numbaprims.conv`.
        algorithm: as in `numbaprims.conv`.

    Raises:
        TypeError, ValueError: as `numbaprims.conv`.

    Example:
        >>> import numpy as np, numbaprims
        >>> layer = numbaprims.conv.plan((1, 1, 3, 3), np.full((1, 1, 1, 1), -2, np.float32), activation="relu")
        >>> float(layer(np.ones((1, 1, 3, 3), np.float32)).max())
        0.0
    """
    return ConvPlan(
        x_shape, weight, bias=bias, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout,
        activation=activation, algorithm=algorithm,
    )  # fmt: skip
