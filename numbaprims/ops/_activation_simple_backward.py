"""The gradients of the activations that are arithmetic alone, a function each."""

from __future__ import annotations

from typing import Any

from numbaprims.ops._activation_call import (
    backward,
    number as _number,
    numbers as _numbers,
    prelu_backward as _prelu_backward,
)


def identity_backward(dy: Any, *, out: Any = None) -> Any:
    """Gradient of `identity`: ``dx = dy``.

    Args:
        dy: gradient of the loss by y; any strides.
        out: where dx goes; it may be dy itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.identity_backward(np.array([1.0, 3.0]))
        array([1., 3.])
    """
    return backward("identity", dy, None, out)


def relu_backward(dy: Any, y: Any, *, out: Any = None) -> Any:
    """Gradient of `relu`: ``dx = dy if y > 0 else 0``.

    Args:
        dy: gradient of the loss by y; any strides.
        y: the result of the forward pass, of dy's shape and dtype.
        out: where dx goes; it may be dy or y itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.relu_backward(np.array([1.0, 3.0]), numbaprims.relu(np.array([-1.0, 2.0])))
        array([0., 3.])
    """
    return backward("relu", dy, y, out)


def leaky_relu_backward(dy: Any, x: Any, negative_slope: float = 0.01, *, out: Any = None) -> Any:
    """Gradient of `leaky_relu`: ``dx = dy if x > 0 else negative_slope * dy``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        negative_slope: as in `leaky_relu`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.leaky_relu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 0.1)
        array([0.1, 3. ])
    """
    return backward("leaky_relu", dy, x, out, _number("leaky_relu", "negative_slope", negative_slope))


def prelu_backward(dy: Any, x: Any, weight: Any, *, out: Any = None) -> tuple[Any, Any]:
    """Gradients of `prelu`: ``dx = dy if x > 0 else weight * dy``, ``dweight = sum(0 if x > 0 else x * dy)``.

    The sum has the same bits whatever the number of threads.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        weight: as in `prelu`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, and dweight, of weight's; summed in float32 (float64 for float64).

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.prelu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), np.array([0.5]))
        (array([0.5, 3. ]), array([-1.]))
    """
    return _prelu_backward(dy, x, weight, out)


def clipped_relu_backward(dy: Any, x: Any, alpha: float = 6.0, *, out: Any = None) -> Any:
    """Gradient of `clipped_relu`: ``dx = dy if 0 < x < alpha else 0``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        alpha: as in `clipped_relu`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.clipped_relu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 1.5)
        array([0., 0.])
    """
    return backward("clipped_relu", dy, x, out, _number("clipped_relu", "alpha", alpha))


def relu6_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `relu6`: ``dx = dy if 0 < x < 6 else 0``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.relu6_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]))
        array([0., 3.])
    """
    return backward("clipped_relu", dy, x, out, 6.0)


def softsign_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `softsign`: ``dx = dy / (1 + |x|) ** 2``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softsign_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.25  , 0.3333])
    """
    return backward("softsign", dy, x, out)


def abs_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `abs`: ``dx = dy * sign(x)``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.abs_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]))
        array([-1.,  3.])
    """
    return backward("abs", dy, x, out)


def hard_sigmoid_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `hard_sigmoid`: ``dx = dy / 6 if -3 < x < 3 else 0``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_sigmoid_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.1667, 0.5   ])
    """
    return backward("hard_sigmoid", dy, x, out)


def hard_swish_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `hard_swish`: ``dx = 0 if x <= -3 else dy * (x / 3 + 1 / 2) if x < 3 else dy``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_swish_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.1667, 3.5   ])
    """
    return backward("hard_swish", dy, x, out)


def hard_tanh_backward(dy: Any, x: Any, min_val: float = -1.0, max_val: float = 1.0, *, out: Any = None) -> Any:
    """Gradient of `hard_tanh`: ``dx = dy if min_val < x < max_val else 0``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        min_val: as in `hard_tanh`.
        max_val: as in `hard_tanh`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_tanh_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]))
        array([0., 0.])
    """
    return backward("hard_tanh", dy, x, out, *_numbers("hard_tanh", min_val=min_val, max_val=max_val))


def sqrt_backward(dy: Any, y: Any, *, out: Any = None) -> Any:
    """Gradient of `sqrt`: ``dx = dy / (2 * y)``.

    Args:
        dy: gradient of the loss by y; any strides.
        y: the result of the forward pass, of dy's shape and dtype.
        out: where dx goes; it may be dy or y itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.sqrt_backward(np.array([1.0, 3.0]), numbaprims.sqrt(np.array([0.25, 4.0])))
        array([1.  , 0.75])
    """
    return backward("sqrt", dy, y, out)


def square_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `square`: ``dx = 2 * dy * x``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.square_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]))
        array([-2., 12.])
    """
    return backward("square", dy, x, out)


def round_backward(dy: Any, *, out: Any = None) -> Any:
    """Gradient of `round`: ``dx = 0 * dy``.

    Args:
        dy: gradient of the loss by y; any strides.
        out: where dx goes; it may be dy itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.round_backward(np.array([1.0, 3.0]))
        array([0., 0.])
    """
    return backward("round", dy, None, out)


def clip_backward(dy: Any, x: Any, min: float | None = None, max: float | None = None, *, out: Any = None) -> Any:
    """Gradient of `clip`: ``dx = dy if min <= x <= max else 0``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        min: as in `clip`.
        max: as in `clip`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.clip_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 0.0, 4.0)
        array([0., 3.])
    """
    return backward("clip", dy, x, out, _number("clip", "min", min), _number("clip", "max", max))


def threshold_backward(dy: Any, x: Any, threshold: float, value: float, *, out: Any = None) -> Any:
    """Gradient of `threshold`: ``dx = dy if x > threshold else 0``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        threshold: as in `threshold`.
        value: as in `threshold`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.threshold_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 1.0, -1.0)
        array([0., 3.])
    """
    return backward(
        "threshold",
        dy,
        x,
        out,
        _number("threshold", "threshold", threshold),
        _number("threshold", "value", value),
    )
