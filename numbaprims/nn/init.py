"""Initial weights by numbaprims's own generator: functions of shape, seed and offset, the same on every machine.

Formulas, fans and gains are those of `torch.nn.init`; the numbers are `random_uniform`'s and `random_normal`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numbaprims

_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 3.0 / 4.0,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """What weights before a nonlinearity are multiplied by, that variances stay.

    Example:
        >>> calculate_gain("leaky_relu", 1.0)
        1.0
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1.0 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"nonlinearity is {nonlinearity!r}; it must be leaky_relu or one of {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """(inputs of an output, outputs of an input) of a weight (outputs, inputs, *window).

    Example:
        >>> fans((64, 32, 3, 3))
        (288, 576)
    """
    if len(shape) < 2:
        raise ValueError(f"shape is {tuple(shape)}; fans are those of weights of two dimensions or more")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _fan(count: int) -> int:
    """A fan by which can be divided: a weight whose fan is 0 has no elements."""
    return max(count, 1)


def xavier_uniform(shape: Sequence[int], gain: float = 1.0, **words: Any) -> Any:
    """Between -b and b, ``b = gain sqrt(6 / (fan_in + fan_out))`` (Glorot and Bengio, 2010).

    Args:
        shape: of the weight, outputs first.
        gain: see `calculate_gain`.
        **words: seed, offset, dtype, out of `random_uniform`.

    Example:
        >>> bool(abs(xavier_uniform((20, 40), seed=1)).max() < (6 / 60) ** 0.5)
        True
    """
    bound = gain * math.sqrt(6.0 / _fan(sum(fans(shape))))
    return numbaprims.random_uniform(shape, low=-bound, high=bound, **words)


def xavier_normal(shape: Sequence[int], gain: float = 1.0, **words: Any) -> Any:
    """Normal with ``std = gain sqrt(2 / (fan_in + fan_out))``; as `xavier_uniform`."""
    return numbaprims.random_normal(shape, std=gain * math.sqrt(2.0 / _fan(sum(fans(shape)))), **words)


def _kaiming(shape: Sequence[int], a: float, mode: str, nonlinearity: str) -> float:
    modes = ("fan_in", "fan_out")
    if mode not in modes:
        raise ValueError(f"mode is {mode!r}; it must be fan_in or fan_out")
    return calculate_gain(nonlinearity, a) / math.sqrt(_fan(fans(shape)[modes.index(mode)]))


def kaiming_uniform(
    shape: Sequence[int], a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", **words: Any
) -> Any:
    """Between -b and b, ``b = gain sqrt(3 / fan)`` (He et al., 2015).

    Args:
        shape: of the weight, outputs first.
        a: the slope of leaky_relu below 0.
        mode: fan_in keeps variances forward, fan_out backward.
        nonlinearity: behind the weight.
        **words: seed, offset, dtype, out of `random_uniform`.
    """
    bound = math.sqrt(3.0) * _kaiming(shape, a, mode, nonlinearity)
    return numbaprims.random_uniform(shape, low=-bound, high=bound, **words)


def kaiming_normal(
    shape: Sequence[int], a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", **words: Any
) -> Any:
    """Normal with ``std = gain / sqrt(fan)``; as `kaiming_uniform`."""
    return numbaprims.random_normal(shape, std=_kaiming(shape, a, mode, nonlinearity), **words)
