"""The gradients of pooling."""

from __future__ import annotations

from typing import Any

from numbaprims.ops._docs import documented
from numbaprims.ops._pooling_pose import BACKWARD_OF, options

_SHARED = """
Args:
    dy: the gradient of y, of its shape.
    x: what was pooled.
    y: what the pooling gave.
    indices: what the pooling gave; a place that is none in the plane is left out.
    size: the spatial sizes of x.
    out: where dx goes.

Returns:
    dx, of dy's dtype and library, in C order.

Raises:
    TypeError: integers, mixed dtypes or libraries.
    ValueError: as of the pooling; shapes that do not belong together.
"""
_of_windows = documented(_SHARED, "Args:\n    *: those of the pooling.")
# windows that tile follow from the shapes
_of_tiles = documented(_SHARED, 'Args:\n    layout: "NCHW" or "NHWC", at any rank.')


@_of_windows
def max_pool_backward(
    dy: Any,
    x: Any,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    indices: Any = None,
    size: Any = None,
    out: Any = None,
) -> Any:
    """Gradient of `max_pool`: every element gets ``dx[i] = sum of dy[p]`` over the windows p whose maximum it is.

    Args:
        x: what was pooled, of which the maxima are found again; None where `indices` and `size` are given.
        size: the spatial sizes of x, where it is None.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.max_pool_backward(np.float32([[[7, 8]]]), np.float32([[[1, 5, 2, 3]]]), 2)
        array([[[0., 7., 0., 8.]]], dtype=float32)
    """
    said = options(
        kernel=kernel_size, stride=stride, padding=padding, dilation=dilation, ceil=ceil_mode, layout=layout, size=size
    )
    return _max_backward(dy, x, indices, said, out)


@_of_windows
def avg_pool_backward(
    dy: Any,
    size: Any,
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
    """Gradient of `avg_pool`: ``dx[i] = sum of dy[p] / count[p]`` over the windows p that hold element i.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.avg_pool_backward(np.float32([[[2, 4]]]), 4, 2)
        array([[[1., 1., 2., 2.]]], dtype=float32)
    """
    said = options(
        kernel=kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil=ceil_mode,
        layout=layout,
        every=count_include_pad,
        size=size,
    )
    return BACKWARD_OF["avg"].run((dy, None, None, None), said, (), out)


@_of_windows
def lp_pool_backward(
    dy: Any,
    x: Any,
    y: Any,
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
    """Gradient of `lp_pool`: ``dx[i] = sign(x[i]) |x[i]| ** (p - 1) sum of dy[q] y[q] ** (1 - p)``, 0 where y is.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.lp_pool_backward(np.float32([[[10]]]), np.float32([[[3, -4]]]), np.float32([[[5]]]), 2)
        array([[[ 6., -8.]]], dtype=float32)
    """
    said = options(
        kernel=kernel_size, stride=stride, padding=padding, dilation=dilation, ceil=ceil_mode, layout=layout, p=p
    )
    return BACKWARD_OF["lp"].run((dy, x, y, None), said, (), out)


@_of_tiles
def adaptive_max_pool_backward(
    dy: Any, x: Any, *, layout: str = "NCHW", indices: Any = None, size: Any = None, out: Any = None
) -> Any:
    """Gradient of `adaptive_max_pool`, whose windows follow from dy: ``dx[i] = sum of dy[p]`` where i is p's maximum.

    Args:
        x: what was pooled, of which the maxima are found again; None where `indices` and `size` are given.
        size: the spatial sizes of x, where it is None.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.adaptive_max_pool_backward(np.float32([[[7, 8]]]), np.float32([[[1, 5, 2]]]))
        array([[[ 0., 15.,  0.]]], dtype=float32)
    """
    return _max_backward(dy, x, indices, options(output=0, layout=layout, size=size), out)


@_of_tiles
def adaptive_avg_pool_backward(dy: Any, size: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    """Gradient of `adaptive_avg_pool`, whose windows follow from dy: ``dx[i] = sum of dy[p] / count[p]``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.adaptive_avg_pool_backward(np.float32([[[2, 4]]]), 4)
        array([[[1., 1., 2., 2.]]], dtype=float32)
    """
    said = options(output=0, layout=layout, size=size)
    return BACKWARD_OF["avg"].run((dy, None, None, None), said, (), out)


@_of_tiles
def global_max_pool_backward(dy: Any, x: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    """Gradient of `global_max_pool`: dy at the first of the largest elements of a plane, ``dx[i] = 0`` elsewhere.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.global_max_pool_backward(np.float32([[[7]]]), np.float32([[[1, 5, 5]]]))
        array([[[0., 7., 0.]]], dtype=float32)
    """
    return adaptive_max_pool_backward(dy, x, layout=layout, out=out)


@_of_tiles
def global_avg_pool_backward(dy: Any, size: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    """Gradient of `global_avg_pool`: ``dx[i] = dy / elements of a plane``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.global_avg_pool_backward(np.float32([[[6]]]), 3)
        array([[[2., 2., 2.]]], dtype=float32)
    """
    return adaptive_avg_pool_backward(dy, size, layout=layout, out=out)


def _max_backward(dy: Any, x: Any, indices: Any, said: tuple[Any, ...], out: Any) -> Any:
    if x is None and (indices is None or said[-1] is None):
        raise ValueError("without x, indices and size must be given")
    return BACKWARD_OF["max"].run((dy, x, None, indices), said, (), out)
