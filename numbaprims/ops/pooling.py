"""Pooling over windows, whole planes, or windows that adapt: `max_pool`, `avg_pool`, `lp_pool`, and their gradients."""

from __future__ import annotations

from typing import Any

from numbaprims.ops._docs import documented
from numbaprims.ops._pooling_backward import (
    adaptive_avg_pool_backward as adaptive_avg_pool_backward,
    adaptive_max_pool_backward as adaptive_max_pool_backward,
    avg_pool_backward as avg_pool_backward,
    global_avg_pool_backward as global_avg_pool_backward,
    global_max_pool_backward as global_max_pool_backward,
    lp_pool_backward as lp_pool_backward,
    max_pool_backward as max_pool_backward,
)
from numbaprims.ops._pooling_pose import FORWARD_OF, example_call, options
from numbaprims.ops._pooling_problem import PoolingProblem as PoolingProblem
from numbaprims.ops.primitive import problems

_documented = documented("""
Args:
    x: (N, C, spatial...), or (N, spatial..., C), of one to three spatial dimensions; float64, float32, float16,
        bfloat16, int8 or uint8.
    kernel_size: of a window: one integer, or one a dimension.
    stride: from window to window; None for kernel_size.
    padding: in front and behind: an integer, one a dimension, pairs, "same" or "valid"; at most half a window.
    dilation: from element to element of a window.
    ceil_mode: whether a last window may reach beyond the padding; it begins inside, or in the padding in front.
    output_size: how many windows: one integer, or one a dimension.
    layout: "NCHW" or "NHWC", at any rank.
    return_indices: also give the place of each maximum in its plane, the first of equal ones.
    out: where y goes.

Raises:
    TypeError: a dtype that is none of these, or numbers that are not integers.
    ValueError: sizes that do not fit, padding of more than half a window, a window without an element, an `out` of
        another shape or one that shares memory with an input.
""")


@_documented
def max_pool(
    x: Any,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    return_indices: bool = False,
    out: Any = None,
) -> Any:
    """Largest element of each window: ``y[p] = max over t of x[p * stride - padding + t * dilation]``.

    Returns:
        y, of x's dtype and library, in C order; with indices (int64) if they are wanted. NaN is larger than anything.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.float32([[[1, 5, 2, 3]]])
        >>> numbaprims.max_pool(x, 2, return_indices=True)
        (array([[[5., 3.]]], dtype=float32), array([[[1, 3]]]))

    References:
        ONNX MaxPool; torch.nn.functional.max_pool2d.
    """
    said = options(
        kernel=kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil=ceil_mode,
        layout=layout,
        indexed=return_indices,
    )
    return FORWARD_OF["max"].run((x,), said, (), out)


@_documented
def avg_pool(
    x: Any,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    count_include_pad: bool = True,
    out: Any = None,
) -> Any:
    """Mean of each window: ``y[p] = sum over t of x[p * stride - padding + t * dilation] / count``, x being 0 outside.

    Args:
        count_include_pad: whether padding counts as elements; what a window has beyond it never does.

    Returns:
        y, of x's dtype and library, in C order; means of integers are rounded, halves to even.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.avg_pool(np.float32([[[1, 5, 2, 3]]]), 2)
        array([[[3. , 2.5]]], dtype=float32)

    References:
        ONNX AveragePool; torch.nn.functional.avg_pool2d.
    """
    said = options(
        kernel=kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil=ceil_mode,
        layout=layout,
        every=count_include_pad,
    )
    return FORWARD_OF["avg"].run((x,), said, (), out)


@_documented
def lp_pool(
    x: Any,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    p: float = 2.0,
    out: Any = None,
) -> Any:
    """Norm of each window: ``y[q] = (sum over t of |x[q * stride - padding + t * dilation]| ** p) ** (1 / p)``.

    Args:
        x: (N, C, spatial...), or (N, spatial..., C), of one to three spatial dimensions; float64, float32, float16 or
            bfloat16, the last two computed in float32.
        p: a positive number; 1 and 2 take no powers.

    Returns:
        y, of x's dtype and library, in C order.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.lp_pool(np.float32([[[3, 4, -5, 12]]]), 2)
        array([[[ 5., 13.]]], dtype=float32)

    References:
        ONNX LpPool; Gulcehre et al., Learned-norm pooling for deep feedforward and recurrent neural networks, 2013.
    """
    said = options(
        kernel=kernel_size, stride=stride, padding=padding, dilation=dilation, ceil=ceil_mode, layout=layout, p=p
    )
    return FORWARD_OF["lp"].run((x,), said, (), out)


@_documented
def adaptive_max_pool(
    x: Any, output_size: Any, *, layout: str = "NCHW", return_indices: bool = False, out: Any = None
) -> Any:
    """Largest elements of windows i of n that tile x, from ``floor(i size / n)`` to ``ceil((i + 1) size / n)``.

    Returns:
        As `max_pool`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.adaptive_max_pool(np.float32([[[1, 5, 2]]]), 2)
        array([[[5., 5.]]], dtype=float32)

    References:
        torch.nn.functional.adaptive_max_pool2d.
    """
    said = options(output=output_size, layout=layout, indexed=return_indices)
    return FORWARD_OF["max"].run((x,), said, (), out)


@_documented
def global_max_pool(x: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    """Largest element of each plane: ``y[n, c] = max of x[n, c, ...]``, its dimensions kept with size 1.

    Returns:
        As `max_pool`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.global_max_pool(np.float32([[[1, 5, 3]]]))
        array([[[5.]]], dtype=float32)

    References:
        ONNX GlobalMaxPool.
    """
    return FORWARD_OF["max"].run((x,), options(output=1, layout=layout), (), out)


@_documented
def adaptive_avg_pool(x: Any, output_size: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    """Means of windows i of n that tile x, from ``floor(i size / n)`` to ``ceil((i + 1) size / n)``.

    Returns:
        As `avg_pool`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.adaptive_avg_pool(np.float32([[[1, 5, 2]]]), 2)
        array([[[3. , 3.5]]], dtype=float32)

    References:
        torch.nn.functional.adaptive_avg_pool2d.
    """
    said = options(output=output_size, layout=layout)
    return FORWARD_OF["avg"].run((x,), said, (), out)


@_documented
def global_avg_pool(x: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    """Mean of each plane: ``y[n, c] = mean of x[n, c, ...]``, its dimensions kept with size 1.

    Returns:
        As `avg_pool`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.global_avg_pool(np.float32([[[1, 5, 3]]]))
        array([[[3.]]], dtype=float32)

    References:
        ONNX GlobalAveragePool.
    """
    return FORWARD_OF["avg"].run((x,), options(output=1, layout=layout), (), out)


PROBLEMS = problems(
    max_pool, avg_pool, lp_pool, adaptive_max_pool, adaptive_avg_pool, global_max_pool, global_avg_pool,
    max_pool_backward, avg_pool_backward, lp_pool_backward, adaptive_max_pool_backward, adaptive_avg_pool_backward,
    global_max_pool_backward, global_avg_pool_backward,
)  # fmt: skip
EXAMPLES = {"pooling": example_call}
