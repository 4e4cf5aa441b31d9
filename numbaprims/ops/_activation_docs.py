"""What the docstrings of all activations say alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.ops._docs import documented

_FORWARD = """
Args:
    x: any shape and strides; float64, float32, float16 or bfloat16.
    out: where y goes, of x's shape and dtype; it may be x itself.

Returns:
    y, of x's shape, dtype and library.

Raises:
    TypeError, ValueError: as `activation`.
"""
_BACKWARD = """
Args:
    dy: gradient of the loss by y; any strides.
    x: the input of the forward pass, of dy's shape and dtype.
    y: the result of the forward pass, of dy's shape and dtype.
    *: as in `{forward}`.
    out: where dx goes; it may be {inputs} itself.

Returns:
    dx, of dy's shape, dtype and library.

Raises:
    TypeError, ValueError: as `activation_backward`.
"""


def document(function: Callable[..., Any]) -> None:
    """Complete the docstring of an activation, or of the gradient of one."""
    code = function.__code__
    inputs = [name for name in code.co_varnames[: code.co_argcount] if name in ("dy", "x", "y")]
    forward = function.__name__.removesuffix("_backward")
    text = _BACKWARD.format(forward=forward, inputs=" or ".join(inputs)) if "dy" in inputs else _FORWARD
    documented(text)(function)
