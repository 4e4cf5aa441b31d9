"""The activations that stand on exp and its relatives, a function each."""

from __future__ import annotations

from typing import Any

from numbaprims.ops._activation_call import (
    axis_of as _axis,
    forward,
    gelu_kind as _gelu,
    glu_forward,
    number as _number,
    numbers as _numbers,
    special as _special,
)


def elu(x: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Exponential linear unit: ``y = x if x > 0 else alpha * (exp(x) - 1)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        alpha: minus the limit for x towards minus infinity.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.elu(np.array([-1.0, 2.0])).round(4)
        array([-0.6321,  2.    ])

    References:
        Clevert et al., Fast and accurate deep network learning by exponential linear units, ICLR 2016.
    """
    return forward("elu", x, out, _number("elu", "alpha", alpha))


def selu(x: Any, *, out: Any = None) -> Any:
    """Self-normalising elu: ``y = 1.0507 * (x if x > 0 else 1.6733 * (exp(x) - 1))``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.selu(np.array([-1.0, 2.0])).round(4)
        array([-1.1113,  2.1014])

    References:
        Klambauer et al., Self-normalizing neural networks, NeurIPS 2017.
    """
    return forward("selu", x, out)


def celu(x: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Continuously differentiable elu: ``y = max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        alpha: minus the limit for x towards minus infinity; not 0.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.celu(np.array([-1.0, 2.0]), 2.0).round(4)
        array([-0.7869,  2.    ])

    References:
        Barron, Continuously differentiable exponential linear units, arXiv:1704.07483.
    """
    return forward("celu", x, out, *_numbers("celu", alpha=alpha))


def sigmoid(x: Any, *, out: Any = None) -> Any:
    """Logistic function: ``y = 1 / (1 + exp(-x))``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.sigmoid(np.array([-1.0, 0.0])).round(4)
        array([0.2689, 0.5   ])
    """
    return forward("sigmoid", x, out)


def tanh(x: Any, *, out: Any = None) -> Any:
    """Hyperbolic tangent: ``y = tanh(x)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.tanh(np.array([-1.0, 0.0])).round(4)
        array([-0.7616,  0.    ])
    """
    return forward("tanh", x, out)


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0, *, out: Any = None) -> Any:
    """Smooth rectifier: ``y = x if beta * x > threshold else log(1 + exp(beta * x)) / beta``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        beta: sharpness; not 0.
        threshold: where it is taken for linear.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softplus(np.array([-1.0, 0.0])).round(4)
        array([0.3133, 0.6931])
    """
    if beta == 1.0 and threshold == 20.0:
        return forward("softplus_1", x, out)
    kernel, *numbers = _special("softplus", *_numbers("softplus", beta=beta, threshold=threshold))
    return forward(kernel, x, out, *numbers)


def power(x: Any, alpha: float = 0.0, beta: float = 1.0, gamma: float = 1.0, *, out: Any = None) -> Any:
    """Power of a linear function: ``y = (alpha + beta * x) ** gamma``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        alpha: shift.
        beta: scale.
        gamma: exponent; a base below 0 gives NaN unless it is a whole number.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.power(np.array([1.0, 2.0]), 1.0, 2.0, 3.0)
        array([ 27., 125.])
    """
    kernel, *numbers = _special("power", *_numbers("power", alpha=alpha, beta=beta, gamma=gamma))
    return forward(kernel, x, out, *numbers)


def gelu(x: Any, approximate: str = "none", *, out: Any = None) -> Any:
    """Gaussian error linear unit: ``y = x * (1 + erf(x / sqrt(2))) / 2``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        approximate: "none", or "tanh" for ``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.gelu(np.array([-1.0, 2.0])).round(4)
        array([-0.1587,  1.9545])

    References:
        Hendrycks and Gimpel, Gaussian error linear units, arXiv:1606.08415.
    """
    return forward(_gelu(approximate), x, out)


def silu(x: Any, *, out: Any = None) -> Any:
    """Sigmoid linear unit: ``y = x / (1 + exp(-x))``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.silu(np.array([-1.0, 2.0])).round(4)
        array([-0.2689,  1.7616])

    References:
        Elfwing et al., Sigmoid-weighted linear units, Neural Networks 107, 2018.
    """
    return forward("silu", x, out)


def swish(x: Any, *, out: Any = None) -> Any:
    """Another name of `silu`: ``y = x / (1 + exp(-x))``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.swish(np.array([-1.0, 2.0])).round(4)
        array([-0.2689,  1.7616])

    References:
        Ramachandran et al., Searching for activation functions, arXiv:1710.05941.
    """
    return forward("silu", x, out)


def mish(x: Any, *, out: Any = None) -> Any:
    """Self-regularised unit: ``y = x * tanh(log(1 + exp(x)))``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.mish(np.array([-1.0, 2.0])).round(4)
        array([-0.3034,  1.944 ])

    References:
        Misra, Mish: a self regularized non-monotonic activation function, BMVC 2020.
    """
    return forward("mish", x, out)


def exp(x: Any, *, out: Any = None) -> Any:
    """Exponential function: ``y = exp(x)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.exp(np.array([0.0, 1.0])).round(4)
        array([1.    , 2.7183])
    """
    return forward("exp", x, out)


def log(x: Any, *, out: Any = None) -> Any:
    """Natural logarithm: ``y = log(x)``; NaN below 0, minus infinity at 0.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where y goes, of x's shape and dtype; it may be x itself.

    Returns:
        y, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `activation`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.log(np.array([1.0, 10.0])).round(4)
        array([0.    , 2.3026])
    """
    return forward("log", x, out)


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
    return glu_forward(x, _axis(axis), out)
