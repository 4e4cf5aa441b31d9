"""Convolution in one to three dimensions: forward, its three gradients, and the transposed convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from numbaprims.ops._conv_example import example
from numbaprims.ops._conv_pose import BIAS, DATA, FORWARD, TRANSPOSED, WEIGHT, hashable
from numbaprims.ops.epilogue import fused
from numbaprims.ops.plans import P, Planned, Q, R, T, with_plan
from numbaprims.ops.primitive import problems
from numbaprims.ops.product import factors
from numbaprims.shapes import items_of

if TYPE_CHECKING:
    from numbaprims.dispatch.find import Findings
    from numbaprims.ops.conv_plan import plan as _plan
else:

    def _plan(x_shape: Sequence[int], weight: Any, **arguments: Any) -> Any:
        from numbaprims.ops import conv_plan

        return conv_plan.plan(x_shape, weight, **arguments)


def _find(x: Any, weight: Any, *args: Any, **arguments: Any) -> Findings:
    """``numbaprims.find("conv", x, weight, ...)``."""
    from numbaprims.dispatch.find import find

    return find("conv", x, weight, *args, **arguments)


class _Found(Planned[P, R, Q, T]):
    find: Callable[..., Findings]


def _with_find(function: Planned[P, R, Q, T]) -> _Found[P, R, Q, T]:
    found = cast(_Found[P, R, Q, T], function)
    found.find = _find
    return found


@_with_find
@with_plan(_plan)
def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    algorithm: str = "auto",
    out: Any = None,
    out_dtype: Any = None,
) -> Any:
    """Convolve (cross-correlate) in one, two or three dimensions, by the rank of the arrays.

    ``out[n, k, p, q] = activation(alpha * sum over c, r, s of x[n, c, p * stride - padding + r * dilation, ...]
    * weight[k, c, r, s] + beta * c[n, k, p, q] + bias[k])``, x being 0 outside of itself.

    Args:
        x: (N, C, H, W), or (N, C, W), or (N, C, D, H, W); with channels last, (N, H, W, C). Any strides.
        weight: (K, C / groups, R, S) in every layout, with as many dimensions as `x`; any strides.
        bias: (K,) or None.
        stride: one integer, or one for each spatial dimension.
        padding: one integer, one for each dimension, pairs (before, after), "same" (ceil(size / stride) outputs,
            the odd element behind) or "valid".
        dilation: one integer, or one for each spatial dimension.
        groups: number of blocks of channels that do not see one another; C for a depthwise convolution.
        layout: "NCHW" (also NCW, NCDHW) or "NHWC" (NWC, NDHWC).
        activation: as in `numbaprims.gemm`.
        alpha: factor of the convolution.
        beta: factor of `c`.
        c: broadcastable to the result; needed when `beta` is not 0, not read when it is.
        algorithm: "auto" or the name of a solver (``numbaprims.explain("conv", x, weight)`` lists them).
        out: where the result goes; it may be exactly `c`, and otherwise share no memory with the inputs.
        out_dtype: dtype of the result; by default that of the inputs, int32 for int8.

    Returns:
        (N, K, P, Q) of the caller's library, P = floor((H + padding - dilation * (R - 1) - 1) / stride) + 1. It lies
        as `x` does: channels_last for channels_last. float16 and bfloat16 are summed in float32, int8 x int8 and
        uint8 x int8 exactly in int32 (alpha 1, beta 0 or 1, activation None or relu).

    Raises:
        TypeError: mixed libraries or dtypes, unknown dtypes.
        ValueError: shapes that do not fit, `beta` without `c`, an `out` that overlaps an input, a solver that does
            not exist or refuses.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.ones((1, 1, 3, 3), np.float32)
        >>> numbaprims.conv(x, np.ones((1, 1, 3, 3), np.float32), padding=1)[0, 0]
        array([[4., 6., 4.],
               [6., 9., 6.],
               [4., 6., 4.]], dtype=float32)

    References:
        Khan et al., MIOpen: An open source library for deep learning primitives, 2019, section IV.A.
    """
    alpha, beta, c = factors(alpha, beta, c, "c")
    kind, values = fused(activation)
    window = hashable((stride, padding, dilation, groups, layout))
    options = window, None, alpha == 1.0, beta in (0.0, 1.0), kind, out_dtype, algorithm
    return FORWARD.run((x, weight, c, bias), options, (alpha, beta, *values), out)


def conv_backward_data(
    dy: Any,
    weight: Any,
    input_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Gradient of `conv` by its input.

    ``dx[n, c, h] = alpha * sum over k, r of dy[n, k, p] * weight[k, c, r] + beta * c``, over the p and r with
    p * stride - padding + r * dilation = h.

    Args:
        dy: (N, K, P, Q), the gradient of conv's result; float64, float32, float16 or bfloat16.
        weight: (K, C / groups, R, S).
        input_shape: the shape of conv's `x`, in `layout`; several sizes lead to one size of `dy`.
        stride: as given to `conv`; so are `padding`, `dilation`, `groups`, `layout`.
        padding: as given to `conv`.
        dilation: as given to `conv`.
        groups: as given to `conv`.
        layout: as given to `conv`.
        alpha: factor of the gradient.
        beta: factor of `c`: with ``c=out, beta=1.0`` the gradient is added to what is there.
        c: broadcastable to the result.
        algorithm: as in `conv`.
        out: where the result goes; it may be exactly `c`.

    Returns:
        An array of shape `input_shape`, library and dtype of `dy`.

    Raises:
        TypeError, ValueError: as `conv`; also where `dy` is not of the shape that `input_shape` leads to.

    Example:
        >>> import numpy as np, numbaprims
        >>> dy, w = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
        >>> numbaprims.conv_backward_data(dy, w, (1, 1, 3, 3))[0, 0]
        array([[1., 2., 1.],
               [2., 4., 2.],
               [1., 2., 1.]], dtype=float32)
    """
    alpha, beta, c = factors(alpha, beta, c, "c")
    window = hashable((stride, padding, dilation, groups, layout))
    target = items_of(input_shape, "input_shape")
    options = window, target, alpha == 1.0, beta in (0.0, 1.0), "identity", None, algorithm
    return DATA.run((dy, weight, c, None), options, (alpha, beta, 0.0), out)


def conv_backward_weight(
    dy: Any,
    x: Any,
    kernel_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Gradient of `conv` by its weight.

    ``dw[k, c, r] = alpha * sum over n, p of dy[n, k, p] * x[n, c, p * stride - padding + r * dilation] + beta * c``.

    Args:
        dy: (N, K, P, Q), the gradient of conv's result; float64, float32, float16 or bfloat16.
        x: conv's input.
        kernel_shape: the shape of the weight, (K, C / groups, R, S).
        stride: as given to `conv`; so are `padding`, `dilation`, `groups`, `layout`.
        padding: as given to `conv`.
        dilation: as given to `conv`.
        groups: as given to `conv`.
        layout: as given to `conv`.
        alpha: factor of the gradient.
        beta: factor of `c`: with ``c=out, beta=1.0`` the gradient is added to what is there.
        c: broadcastable to the result.
        algorithm: as in `conv`.
        out: where the result goes; it may be exactly `c`.

    Returns:
        An array of shape `kernel_shape`, library and dtype of `dy`. Sums are cut into pieces that depend on the
        sizes only: the same bits for any number of threads.

    Raises:
        TypeError, ValueError: as `conv`; also where `dy` is not of the shape that `x` and `kernel_shape` lead to.

    Example:
        >>> import numpy as np, numbaprims
        >>> dy, x = np.ones((1, 1, 2, 2), np.float32), np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
        >>> numbaprims.conv_backward_weight(dy, x, (1, 1, 2, 2))[0, 0]
        array([[ 8., 12.],
               [20., 24.]], dtype=float32)
    """
    alpha, beta, c = factors(alpha, beta, c, "c")
    window = hashable((stride, padding, dilation, groups, layout))
    target = items_of(kernel_shape, "kernel_shape")
    options = window, target, alpha == 1.0, beta in (0.0, 1.0), "identity", None, algorithm
    return WEIGHT.run((dy, x, c, None), options, (alpha, beta, 0.0), out)


def conv_backward_bias(dy: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    """Gradient of `conv` by its bias: ``db[k] = sum over n, p, q of dy[n, k, p, q]``.

    Args:
        dy: (N, K, P, Q) in `layout`; float64, float32, float16 (summed in float32) or bfloat16.
        layout: as in `conv`.
        out: (K,), where the result goes.

    Returns:
        (K,), library and dtype of `dy`.

    Raises:
        TypeError, ValueError: as `conv`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.conv_backward_bias(np.ones((2, 3, 4, 4), np.float32))
        array([32., 32., 32.], dtype=float32)
    """
    return BIAS.run((dy,), (layout if type(layout) is str else repr(layout),), (1.0, 0.0, 0.0), out)


def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: Any = None,
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Transposed convolution: the data gradient of a convolution, with `x` in the place of its result.

    ``out[n, k, p * stride - padding + r * dilation] += x[n, c, p] * weight[c, k, r]``, then bias and activation.

    Args:
        x: (N, C, H, W), as in `conv`.
        weight: (C, K / groups, R, S), as in `torch.nn.functional.conv_transpose2d`.
        bias: (K,) or None.
        stride: how far apart the inputs lie in the result.
        padding: what is cut off the result: an integer, one for each dimension, or pairs (before, after).
        output_padding: added behind the result; smaller than stride or dilation.
        dilation: as in `conv`.
        groups: as in `conv`.
        layout: as in `conv`.
        activation: as in `conv`.
        algorithm: as in `conv`.
        out: where the result goes.

    Returns:
        (N, K, P, Q), P = (H - 1) * stride - padding + dilation * (R - 1) + 1 + output_padding.

    Raises:
        TypeError, ValueError: as `conv`.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, w = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
        >>> numbaprims.conv_transpose(x, w, stride=2).shape
        (1, 1, 4, 4)
    """
    kind, values = fused(activation)
    window, more = hashable(((stride, padding, dilation, groups, layout), output_padding))
    options = window, more, True, True, kind, None, algorithm
    return TRANSPOSED.run((x, weight, None, bias), options, (1.0, 0.0, *values), out)


def conv_transpose_backward_data(
    dy: Any, weight: Any, *, stride: int | Sequence[int] = 1, padding: Any = 0, dilation: int | Sequence[int] = 1,
    groups: int = 1, layout: str = "NCHW", algorithm: str = "auto", out: Any = None,
) -> Any:  # fmt: skip
    """Gradient of `conv_transpose` by its input, which is `conv` of `dy` with the same weight.

    Args:
        dy: the gradient of conv_transpose's result.
        weight: (C, K / groups, R, S).
        stride: as given to `conv_transpose`; so are `padding`, `dilation`, `groups`, `layout`.
        padding, dilation, groups, layout: as given to `conv_transpose`.
        algorithm, out: as in `conv`.

    Returns:
        (N, C, H, W).

    Raises:
        TypeError, ValueError: as `conv`.

    Example:
        >>> import numpy as np, numbaprims
        >>> dy, w = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 2, 2), np.float32)
        >>> numbaprims.conv_transpose_backward_data(dy, w, stride=2)[0, 0]
        array([[4., 4.],
               [4., 4.]], dtype=float32)
    """
    return conv(
        dy, weight, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout,
        algorithm=algorithm, out=out,
    )  # fmt: skip


def conv_transpose_backward_weight(
    dy: Any, x: Any, kernel_shape: Sequence[int], *, stride: int | Sequence[int] = 1, padding: Any = 0,
    dilation: int | Sequence[int] = 1, groups: int = 1, layout: str = "NCHW", alpha: float = 1.0, beta: float = 0.0,
    c: Any = None, algorithm: str = "auto", out: Any = None,
) -> Any:  # fmt: skip
    """Gradient of `conv_transpose` by its weight: that of `conv` with the two arrays in each other's place.

    Args:
        dy: the gradient of conv_transpose's result.
        x: conv_transpose's input.
        kernel_shape: (C, K / groups, R, S).
        stride: as given to `conv_transpose`; so are `padding`, `dilation`, `groups`, `layout`.
        padding, dilation, groups, layout: as given to `conv_transpose`.
        alpha, beta, c, algorithm, out: as in `conv_backward_weight`.

    Returns:
        An array of shape `kernel_shape`.

    Raises:
        TypeError, ValueError: as `conv_backward_weight`.

    Example:
        >>> import numpy as np, numbaprims
        >>> dy, x = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 2, 2), np.float32)
        >>> numbaprims.conv_transpose_backward_weight(dy, x, (1, 1, 2, 2), stride=2)[0, 0]
        array([[4., 4.],
               [4., 4.]], dtype=float32)
    """
    return conv_backward_weight(
        x, dy, kernel_shape, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout,
        alpha=alpha, beta=beta, c=c, algorithm=algorithm, out=out,
    )  # fmt: skip


PROBLEMS = problems(
    conv, conv_backward_data, conv_backward_weight, conv_backward_bias, conv_transpose, conv_transpose_backward_data,
    conv_transpose_backward_weight,
)  # fmt: skip
EXAMPLES = {"conv": example}
