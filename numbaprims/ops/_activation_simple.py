"""The activations that are arithmetic alone, each followed by its gradient.

`_activation_docs` puts into each docstring what all have alike: x, dy, out, the results and the errors, and the
parameters of a gradient, which are those of its function.
"""

from __future__ import annotations

from typing import Any

from numbaprims.ops._activation_call import (
    backward,
    forward,
    number as _number,
    numbers as _numbers,
    prelu_backward as _prelu_backward,
    prelu_forward,
)


def leaky_relu(x: Any, negative_slope: float = 0.01, *, out: Any = None) -> Any:
    """Leaky rectified linear unit: ``y = x if x > 0 else negative_slope * x``.

    Args:
        negative_slope: slope below 0.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.leaky_relu(np.array([-1.0, 2.0]), 0.1)
        array([-0.1,  2. ])

    References:
        Maas et al., Rectifier nonlinearities improve neural network acoustic models, ICML 2013.
    """
    return forward((x,), "leaky_relu", (_number("leaky_relu", "negative_slope", negative_slope),), out)


def leaky_relu_backward(dy: Any, x: Any, negative_slope: float = 0.01, *, out: Any = None) -> Any:
    """Gradient of `leaky_relu`: ``dx = dy if x > 0 else negative_slope * dy``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.leaky_relu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 0.1)
        array([0.1, 3. ])
    """
    return backward("leaky_relu", dy, x, out, (_number("leaky_relu", "negative_slope", negative_slope),))


def prelu(x: Any, weight: Any, *, out: Any = None) -> Any:
    """Rectified linear unit with a learned slope: ``y = x if x > 0 else weight * x``.

    Args:
        weight: (1,), one slope, or (C,), one for each index of dimension 1 of x; of x's dtype.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.prelu(np.array([[-1.0, -1.0]]), np.array([0.5, 0.25]))
        array([[-0.5 , -0.25]])

    References:
        He et al., Delving deep into rectifiers, ICCV 2015.
    """
    return prelu_forward(x, weight, out)


def prelu_backward(dy: Any, x: Any, weight: Any, *, out: Any = None) -> tuple[Any, Any]:
    """Gradients of `prelu`: ``dx = dy if x > 0 else weight * dy``, ``dweight = sum(0 if x > 0 else x * dy)``.

    The sum has the same bits whatever the number of threads.

    Returns:
        dx, of dy's shape, and dweight, of weight's; summed in float32 (float64 for float64).

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.prelu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), np.array([0.5]))
        (array([0.5, 3. ]), array([-1.]))
    """
    return _prelu_backward(dy, x, weight, out)


def clipped_relu(x: Any, alpha: float = 6.0, *, out: Any = None) -> Any:
    """Rectified linear unit with a ceiling: ``y = min(max(x, 0), alpha)``.

    Args:
        alpha: the ceiling.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.clipped_relu(np.array([-1.0, 2.0, 9.0]), 4.0)
        array([0., 2., 4.])
    """
    return forward((x,), "clipped_relu", (_number("clipped_relu", "alpha", alpha),), out)


def clipped_relu_backward(dy: Any, x: Any, alpha: float = 6.0, *, out: Any = None) -> Any:
    """Gradient of `clipped_relu`: ``dx = dy if 0 < x < alpha else 0``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.clipped_relu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 1.5)
        array([0., 0.])
    """
    return backward("clipped_relu", dy, x, out, (_number("clipped_relu", "alpha", alpha),))


def relu6(x: Any, *, out: Any = None) -> Any:
    """Rectified linear unit with the ceiling 6: ``y = min(max(x, 0), 6)``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.relu6(np.array([-1.0, 2.0, 9.0]))
        array([0., 2., 6.])
    """
    return forward((x,), "clipped_relu", (6.0,), out)


def relu6_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `relu6`: ``dx = dy if 0 < x < 6 else 0``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.relu6_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]))
        array([0., 3.])
    """
    return backward("clipped_relu", dy, x, out, (6.0,))


def hard_tanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, *, out: Any = None) -> Any:
    """Piecewise linear tanh: ``y = min(max(x, min_val), max_val)``.

    Args:
        min_val: lower bound.
        max_val: upper bound, not below the lower.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_tanh(np.array([-4.0, 0.5, 4.0]))
        array([-1. ,  0.5,  1. ])
    """
    return forward((x,), "hard_tanh", _numbers("hard_tanh", min_val=min_val, max_val=max_val), out)


def hard_tanh_backward(dy: Any, x: Any, min_val: float = -1.0, max_val: float = 1.0, *, out: Any = None) -> Any:
    """Gradient of `hard_tanh`: ``dx = dy if min_val < x < max_val else 0``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_tanh_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]))
        array([0., 0.])
    """
    return backward("hard_tanh", dy, x, out, _numbers("hard_tanh", min_val=min_val, max_val=max_val))


def clip(x: Any, min: float | None = None, max: float | None = None, *, out: Any = None) -> Any:
    """Clamp: ``y = min(max(x, min), max)``.

    Args:
        min: lower bound, None for none.
        max: upper bound, None for none; where the bounds cross, it wins.

    Raises:
        ValueError: a bound that is NaN, as of `hard_tanh` and `clipped_relu`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.clip(np.array([-4.0, 0.5, 4.0]), 0.0, 1.0)
        array([0. , 0.5, 1. ])
    """
    return forward((x,), "clip", (_number("clip", "min", min), _number("clip", "max", max)), out)


def clip_backward(dy: Any, x: Any, min: float | None = None, max: float | None = None, *, out: Any = None) -> Any:
    """Gradient of `clip`: ``dx = dy if min <= x <= max else 0``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.clip_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 0.0, 4.0)
        array([0., 3.])
    """
    return backward("clip", dy, x, out, (_number("clip", "min", min), _number("clip", "max", max)))


def threshold(x: Any, threshold: float, value: float, *, out: Any = None) -> Any:
    """Replace small elements: ``y = x if x > threshold else value``.

    Args:
        threshold: what is not above it is replaced.
        value: what it is replaced by.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.threshold(np.array([-4.0, 0.5, 4.0]), 1.0, -1.0)
        array([-1., -1.,  4.])
    """
    return forward(
        (x,), "threshold", (_number("threshold", "threshold", threshold), _number("threshold", "value", value)), out
    )


def threshold_backward(dy: Any, x: Any, threshold: float, value: float, *, out: Any = None) -> Any:
    """Gradient of `threshold`: ``dx = dy if x > threshold else 0``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.threshold_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 1.0, -1.0)
        array([0., 3.])
    """
    return backward(
        "threshold", dy, x, out, (_number("threshold", "threshold", threshold), _number("threshold", "value", value))
    )
