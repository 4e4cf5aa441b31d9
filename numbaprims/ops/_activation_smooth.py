"""The activations that stand on exp and its relatives, each followed by its gradient.

`_activation_docs` puts into each docstring what all have alike: x, dy, out, the results and the errors, and the
parameters of a gradient, which are those of its function.
"""

from __future__ import annotations

from typing import Any

from numbaprims.ops._activation_call import (
    backward,
    forward,
    gelu_kind as _gelu,
    glu_kind as _glu,
    kernel as _kernel,
    number as _number,
    numbers as _numbers,
)


def elu(x: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Exponential linear unit: ``y = x if x > 0 else alpha * (exp(x) - 1)``.

    Args:
        alpha: minus the limit for x towards minus infinity.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.elu(np.array([-1.0, 2.0])).round(4)
        array([-0.6321,  2.    ])

    References:
        Clevert et al., Fast and accurate deep network learning by exponential linear units, ICLR 2016.
    """
    return forward((x,), "elu", (_number("elu", "alpha", alpha),), out)


def elu_backward(dy: Any, x: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Gradient of `elu`: ``dx = dy if x > 0 else dy * alpha * exp(x)``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.elu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.3679, 3.    ])
    """
    return backward("elu", dy, x, out, (_number("elu", "alpha", alpha),))


def celu(x: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Continuously differentiable elu: ``y = max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))``.

    Args:
        alpha: minus the limit for x towards minus infinity; not 0.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.celu(np.array([-1.0, 2.0]), 2.0).round(4)
        array([-0.7869,  2.    ])

    References:
        Barron, Continuously differentiable exponential linear units, arXiv:1704.07483.
    """
    return forward((x,), "celu", _numbers("celu", alpha=alpha), out)


def celu_backward(dy: Any, x: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Gradient of `celu`: ``dx = dy if x > 0 else dy * exp(x / alpha)``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.celu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0]), 2.0).round(4)
        array([0.6065, 3.    ])
    """
    return backward("celu", dy, x, out, _numbers("celu", alpha=alpha))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0, *, out: Any = None) -> Any:
    """Smooth rectifier: ``y = x if beta * x > threshold else log(1 + exp(beta * x)) / beta``.

    Args:
        beta: sharpness; not 0.
        threshold: where it is taken for linear.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softplus(np.array([-1.0, 0.0])).round(4)
        array([0.3133, 0.6931])
    """
    if type(beta) is float and beta == 1.0 and type(threshold) is float and threshold == 20.0:
        return forward((x,), "softplus_1", (), out)
    kernel, numbers = _kernel("softplus", beta=beta, threshold=threshold)
    return forward((x,), kernel, numbers, out)


def softplus_backward(dy: Any, x: Any, beta: float = 1.0, threshold: float = 20.0, *, out: Any = None) -> Any:
    """Gradient of `softplus`: ``dx = dy if beta * x > threshold else dy / (1 + exp(-beta * x))``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softplus_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.2689, 2.6424])
    """
    if type(beta) is float and beta == 1.0 and type(threshold) is float and threshold == 20.0:
        return backward("softplus_1", dy, x, out)
    kernel, numbers = _kernel("softplus", beta=beta, threshold=threshold)
    return backward(kernel, dy, x, out, numbers)


def power(x: Any, alpha: float = 0.0, beta: float = 1.0, gamma: float = 1.0, *, out: Any = None) -> Any:
    """Power of a linear function: ``y = (alpha + beta * x) ** gamma``.

    Args:
        alpha: shift.
        beta: scale.
        gamma: exponent; a base below 0 gives NaN unless it is a whole number.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.power(np.array([1.0, 2.0]), 1.0, 2.0, 3.0)
        array([ 27., 125.])
    """
    kernel, numbers = _kernel("power", alpha=alpha, beta=beta, gamma=gamma)
    return forward((x,), kernel, numbers, out)


def power_backward(
    dy: Any, x: Any, alpha: float = 0.0, beta: float = 1.0, gamma: float = 1.0, *, out: Any = None
) -> Any:
    """Gradient of `power`: ``dx = dy * beta * gamma * (alpha + beta * x) ** (gamma - 1)``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.power_backward(np.array([1.0, 3.0]), np.array([1.0, 2.0]), 1.0, 2.0, 3.0)
        array([ 54., 450.])
    """
    kernel, numbers = _kernel("power", alpha=alpha, beta=beta, gamma=gamma)
    return backward(kernel, dy, x, out, numbers)


def gelu(x: Any, approximate: str = "none", *, out: Any = None) -> Any:
    """Gaussian error linear unit: ``y = x * (1 + erf(x / sqrt(2))) / 2``.

    Args:
        approximate: "none", or "tanh" for ``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.gelu(np.array([-1.0, 2.0])).round(4)
        array([-0.1587,  1.9545])

    References:
        Hendrycks and Gimpel, Gaussian error linear units, arXiv:1606.08415.
    """
    return forward((x,), _gelu(approximate), (), out)


def gelu_backward(dy: Any, x: Any, approximate: str = "none", *, out: Any = None) -> Any:
    """Gradient of `gelu`: ``dx = dy * (Phi(x) + x * phi(x))``, the normal distribution and density.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.gelu_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([-0.0833,  3.2557])
    """
    return backward(_gelu(approximate), dy, x, out)


def swish(x: Any, *, out: Any = None) -> Any:
    """Another name of `silu`: ``y = x / (1 + exp(-x))``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.swish(np.array([-1.0, 2.0])).round(4)
        array([-0.2689,  1.7616])

    References:
        Ramachandran et al., Searching for activation functions, arXiv:1710.05941.
    """
    return forward((x,), "silu", (), out)


def swish_backward(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `swish`: ``dx = dy * s * (1 + x * (1 - s))`` with ``s = 1 / (1 + exp(-x))``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.swish_backward(np.array([1.0, 3.0]), np.array([-1.0, 2.0])).round(4)
        array([0.0723, 3.2724])
    """
    return backward("silu", dy, x, out)


def glu(x: Any, axis: int = -1, *, out: Any = None) -> Any:
    """Gated linear unit: ``y = a / (1 + exp(-b))``, a and b the halves of x along an axis.

    Args:
        x: any shape and strides, of even length along `axis`; float64, float32, float16 or bfloat16.
        axis: the axis that is halved (torch calls it `dim`).
        out: where y goes; it shares no memory with x.

    Returns:
        y, half as long along `axis`, of x's dtype and library.

    Raises:
        TypeError, ValueError: as `activation`; ValueError for an axis that x does not have or of odd length.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.glu(np.array([[2.0, 4.0, 0.0, 0.0]]))
        array([[1., 2.]])

    References:
        Dauphin et al., Language modeling with gated convolutional networks, ICML 2017.
    """
    return forward((x,), _glu(axis), (), out)


def glu_backward(dy: Any, x: Any, axis: int = -1, *, out: Any = None) -> Any:
    """Gradient of `glu`: ``da = dy * s``, ``db = dy * a * s * (1 - s)`` with ``s = 1 / (1 + exp(-b))``.

    Args:
        x: the input of the forward pass, twice as long along `axis`.
        out: where dx goes, of x's shape; it may be x itself.

    Returns:
        dx, of x's shape, dtype and library.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.glu_backward(np.array([1.0]), np.array([2.0, 0.0]))
        array([0.5, 0.5])
    """
    return backward(_glu(axis), dy, x, out)
