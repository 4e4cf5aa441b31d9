"""The gradients of the activations that stand on exp and its relatives, a function each."""

from __future__ import annotations

from typing import Any

from numbaprims.ops._activation_call import (
    axis_of as _axis,
    backward,
    gelu_kind as _gelu,
    glu_backward as _glu_backward,
    number as _number,
    numbers as _numbers,
    special as _special,
)


def elu_backward(dy: Any, x: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Gradient of `elu`: ``dx = dy if x > 0 else dy * alpha * exp(x)``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        alpha: as in `elu`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.elu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.3679, 3.    ])
    """
    return backward("elu", dy, x, out, _number("elu", "alpha", alpha))


def selu_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `selu`: ``dx = 1.0507 * dy * (1 if x > 0 else 1.6733 * exp(x))``.

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
        >>> numbaprims.selu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.6468, 3.1521])
    """
    return backward("selu", dy, x, out)


def celu_backward(dy: Any, x: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Gradient of `celu`: ``dx = dy if x > 0 else dy * exp(x / alpha)``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        alpha: as in `celu`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.celu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 2.0).round(4)
        array([0.6065, 3.    ])
    """
    return backward("celu", dy, x, out, *_numbers("celu", alpha=alpha))


def sigmoid_backward(dy: Any, y: Any, *, out: Any = None) -> Any:
    """Gradient of `sigmoid`: ``dx = dy * y * (1 - y)``.

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
        >>> y = numbaprims.sigmoid(np.array([-1.0, 2.0]))
        >>> numbaprims.sigmoid_backward(np.array([1.0, 3.0]), y).round(4)
        array([0.1966, 0.315 ])
    """
    return backward("sigmoid", dy, y, out)


def tanh_backward(dy: Any, y: Any, *, out: Any = None) -> Any:
    """Gradient of `tanh`: ``dx = dy * (1 - y * y)``.

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
        >>> numbaprims.tanh_backward(np.array([1.0, 3.0]), numbaprims.tanh(np.array([-1.0, 2.0]))).round(4)
        array([0.42 , 0.212])
    """
    return backward("tanh", dy, y, out)


def softplus_backward(dy: Any, x: Any, beta: float = 1.0, threshold: float = 20.0, *, out: Any = None) -> Any:
    """Gradient of `softplus`: ``dx = dy if beta * x > threshold else dy / (1 + exp(-beta * x))``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        beta: as in `softplus`.
        threshold: as in `softplus`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softplus_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.2689, 2.6424])
    """
    if beta == 1.0 and threshold == 20.0:
        return backward("softplus_1", dy, x, out)
    kernel, *numbers = _special("softplus", *_numbers("softplus", beta=beta, threshold=threshold))
    return backward(kernel, dy, x, out, *numbers)


def power_backward(
    dy: Any, x: Any, alpha: float = 0.0, beta: float = 1.0, gamma: float = 1.0, *, out: Any = None
) -> Any:
    """Gradient of `power`: ``dx = dy * beta * gamma * (alpha + beta * x) ** (gamma - 1)``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        alpha: as in `power`.
        beta: as in `power`.
        gamma: as in `power`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.power_backward(np.array([1.0, 3.0]), np.array([1.0, 2.0]), 1.0, 2.0, 3.0)
        array([ 54., 450.])
    """
    kernel, *numbers = _special("power", *_numbers("power", alpha=alpha, beta=beta, gamma=gamma))
    return backward(kernel, dy, x, out, *numbers)


def gelu_backward(dy: Any, x: Any, approximate: str = "none", *, out: Any = None) -> Any:
    """Gradient of `gelu`: ``dx = dy * (Phi(x) + x * phi(x))``, the normal distribution and density.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape and dtype.
        approximate: as in `gelu`.
        out: where dx goes; it may be dy or x itself.

    Returns:
        dx, of dy's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.gelu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([-0.0833,  3.2557])
    """
    return backward(_gelu(approximate), dy, x, out)


def silu_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `silu`: ``dx = dy * s * (1 + x * (1 - s))`` with ``s = 1 / (1 + exp(-x))``.

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
        >>> numbaprims.silu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.0723, 3.2724])
    """
    return backward("silu", dy, x, out)


def swish_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `swish`: ``dx = dy * s * (1 + x * (1 - s))`` with ``s = 1 / (1 + exp(-x))``.

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
        >>> numbaprims.swish_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.0723, 3.2724])
    """
    return backward("silu", dy, x, out)


def mish_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `mish`: ``dx = dy * (t + x * s * (1 - t * t))``.

    Here t is ``tanh(log(1 + exp(x)))`` and s is ``1 / (1 + exp(-x))``.

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
        >>> numbaprims.mish_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.0592, 3.208 ])
    """
    return backward("mish", dy, x, out)


def exp_backward(dy: Any, y: Any, *, out: Any = None) -> Any:
    """Gradient of `exp`: ``dx = dy * y``.

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
        >>> numbaprims.exp_backward(np.array([1.0, 3.0]), numbaprims.exp(np.array([-1.0, 2.0]))).round(4)
        array([ 0.3679, 22.1672])
    """
    return backward("exp", dy, y, out)


def log_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `log`: ``dx = dy / x``.

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
        >>> numbaprims.log_backward(np.array([1.0, 3.0]), np.array([0.5, 4.0]))
        array([2.  , 0.75])
    """
    return backward("log", dy, x, out)


def glu_backward(dy: Any, x: Any, axis: int = -1, *, out: Any = None) -> Any:
    """Gradient of `glu`: ``da = dy * s``, ``db = dy * a * s * (1 - s)`` with ``s = 1 / (1 + exp(-b))``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, twice as long along `axis`.
        axis: as in `glu`.
        out: where dx goes, of x's shape; it may be x itself.

    Returns:
        dx, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.glu_backward(np.array([1.0]), np.array([2.0, 0.0]))
        array([0.5, 0.5])
    """
    return _glu_backward(dy, x, _axis(axis), out)
