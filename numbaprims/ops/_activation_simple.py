"""The activations that are arithmetic alone, a function each."""

from __future__ import annotations

from typing import Any

from numbaprims.ops._activation_call import forward, number as _number, numbers as _numbers, prelu_forward


def identity(x: Any, *, out: Any = None) -> Any:
    """Copy: ``y = x``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.identity(np.array([-1.0, 2.0]))
        array([-1.,  2.])
    """
    return forward("identity", x, out)


def relu(x: Any, *, out: Any = None) -> Any:
    """Rectified linear unit: ``y = max(x, 0)``; NaN stays NaN.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.relu(np.array([-1.0, 2.0]))
        array([0., 2.])
    """
    return forward("relu", x, out)


def leaky_relu(x: Any, negative_slope: float = 0.01, *, out: Any = None) -> Any:
    """Leaky rectified linear unit: ``y = x if x > 0 else negative_slope * x``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        negative_slope: slope below 0.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.leaky_relu(np.array([-1.0, 2.0]), 0.1)
        array([-0.1,  2. ])

    References:
        Maas et al., Rectifier nonlinearities improve neural network acoustic models, ICML 2013.
    """
    return forward("leaky_relu", x, out, _number("leaky_relu", "negative_slope", negative_slope))


def prelu(x: Any, weight: Any, *, out: Any = None) -> Any:
    """Rectified linear unit with a learned slope: ``y = x if x > 0 else weight * x``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        weight: (1,), one slope, or (C,), one for each index of dimension 1 of x; of x's dtype.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.prelu(np.array([[-1.0, -1.0]]), np.array([0.5, 0.25]))
        array([[-0.5 , -0.25]])

    References:
        He et al., Delving deep into rectifiers, ICCV 2015.
    """
    return prelu_forward(x, weight, out)


def clipped_relu(x: Any, alpha: float = 6.0, *, out: Any = None) -> Any:
    """Rectified linear unit with a ceiling: ``y = min(max(x, 0), alpha)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        alpha: the ceiling.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.clipped_relu(np.array([-1.0, 2.0, 9.0]), 4.0)
        array([0., 2., 4.])
    """
    return forward("clipped_relu", x, out, _number("clipped_relu", "alpha", alpha))


def relu6(x: Any, *, out: Any = None) -> Any:
    """Rectified linear unit with the ceiling 6: ``y = min(max(x, 0), 6)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.relu6(np.array([-1.0, 2.0, 9.0]))
        array([0., 2., 6.])
    """
    return forward("clipped_relu", x, out, 6.0)


def softsign(x: Any, *, out: Any = None) -> Any:
    """Algebraic sigmoid: ``y = x / (1 + |x|)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softsign(np.array([-1.0, 3.0]))
        array([-0.5 ,  0.75])
    """
    return forward("softsign", x, out)


def abs(x: Any, *, out: Any = None) -> Any:
    """Absolute value: ``y = |x|``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.abs(np.array([-1.0, 2.0]))
        array([1., 2.])
    """
    return forward("abs", x, out)


def hard_sigmoid(x: Any, *, out: Any = None) -> Any:
    """Piecewise linear sigmoid: ``y = min(max(x + 3, 0), 6) / 6`` (torch's slope; ONNX's default is 0.2).

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_sigmoid(np.array([-4.0, 0.0, 1.5]))
        array([0.  , 0.5 , 0.75])
    """
    return forward("hard_sigmoid", x, out)


def hard_swish(x: Any, *, out: Any = None) -> Any:
    """Piecewise quadratic swish: ``y = x * min(max(x + 3, 0), 6) / 6``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_swish(np.array([-4.0, 1.5, 4.0]))
        array([-0.   ,  1.125,  4.   ])

    References:
        Howard et al., Searching for MobileNetV3, ICCV 2019.
    """
    return forward("hard_swish", x, out)


def hard_tanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, *, out: Any = None) -> Any:
    """Piecewise linear tanh: ``y = min(max(x, min_val), max_val)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        min_val: lower bound.
        max_val: upper bound, not below the lower.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_tanh(np.array([-4.0, 0.5, 4.0]))
        array([-1. ,  0.5,  1. ])
    """
    return forward("hard_tanh", x, out, *_numbers("hard_tanh", min_val=min_val, max_val=max_val))


def sqrt(x: Any, *, out: Any = None) -> Any:
    """Square root: ``y = sqrt(x)``; NaN below 0.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.sqrt(np.array([0.25, 9.0]))
        array([0.5, 3. ])
    """
    return forward("sqrt", x, out)


def square(x: Any, *, out: Any = None) -> Any:
    """Square: ``y = x * x``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.square(np.array([-1.5, 3.0]))
        array([2.25, 9.  ])
    """
    return forward("square", x, out)


def round(x: Any, *, out: Any = None) -> Any:
    """The nearest integer, halves to even.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.round(np.array([-1.6, 0.5, 1.5]))
        array([-2.,  0.,  2.])
    """
    return forward("round", x, out)


def clip(x: Any, min: float | None = None, max: float | None = None, *, out: Any = None) -> Any:
    """Clamp: ``y = min(max(x, min), max)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        min: lower bound, None for none.
        max: upper bound, None for none; where the bounds cross, it wins.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.clip(np.array([-4.0, 0.5, 4.0]), 0.0, 1.0)
        array([0. , 0.5, 1. ])
    """
    return forward("clip", x, out, _number("clip", "min", min), _number("clip", "max", max))


def threshold(x: Any, threshold: float, value: float, *, out: Any = None) -> Any:
    """Replace small elements: ``y = x if x > threshold else value``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        threshold: what is not above it is replaced.
        value: what it is replaced by.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.threshold(np.array([-4.0, 0.5, 4.0]), 1.0, -1.0)
        array([-1., -1.,  4.])
    """
    return forward(
        "threshold",
        x,
        out,
        _number("threshold", "threshold", threshold),
        _number("threshold", "value", value),
    )
