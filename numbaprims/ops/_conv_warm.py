"""What `numbaprims warmup conv` does in another process: the calls of `cpu/conv/warm.py`, without computing more than
compiling takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims import settings
from numbaprims.dispatch import call
from numbaprims.ops.conv import PROBLEMS, conv_backward_bias
from numbaprims.ops.conv_plan import plan


def layer(
    direction: str, n: int, c: int, side: int, k: int, window: int, stride: int, padding: int, groups: int
) -> tuple[()]:
    """Bind one layer as a plain call does, which compiles, and run a plan of it forward.  Arrays that are
    never touched take no memory."""
    out = (side + 2 * padding - window) // stride + 1
    shapes = {"x": (n, c, side, side), "w": (k, c // groups, window, window), "y": (n, k, out, out)}
    names, result = {"forward": ("xw", "y"), "data": ("yw", "x"), "weight": ("yx", "w")}[direction]
    first, second = (np.empty(shapes[name], np.float32) for name in names)
    target = None if direction == "forward" else shapes[result]
    with settings.config(device="cpu"):
        function = "conv" if direction == "forward" else f"conv_backward_{direction}"
        words = {"stride": stride, "padding": padding, "groups": groups}
        problem: Any = PROBLEMS[function](first, second, *([] if target is None else [target]), **words)
        call.bind(problem, shapes[result], problem.out_dtype)
        if direction == "forward":
            weight = np.zeros(shapes["w"], np.float32)
            plan(shapes["x"], weight, stride=stride, padding=padding, groups=groups)(np.zeros_like(first))
    return ()


def bias_gradient() -> tuple[()]:
    """The sums of a bias."""
    with settings.config(device="cpu"):
        for layout in ("NCHW", "NHWC"):
            conv_backward_bias(np.zeros((2, 32, 32, 32), np.float32), layout=layout)
    return ()
