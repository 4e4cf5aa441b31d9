"""What first convolutions want compiled: the kernels that the default choice takes for layers that networks have."""

from __future__ import annotations

from typing import Any

import numpy as np

#: images, channels, side, filters, window, stride, padding, groups; one for each kind that has kernels of its own.
LAYERS = (
    (1, 3, 224, 64, 7, 2, 3, 1),
    (1, 3, 224, 64, 3, 1, 1, 1),
    (1, 64, 56, 64, 3, 1, 1, 1),
    (1, 512, 7, 512, 3, 1, 1, 1),
    (1, 128, 56, 128, 3, 2, 1, 1),
    (1, 256, 56, 64, 1, 1, 0, 1),
    (1, 1024, 14, 256, 1, 1, 0, 1),
    (1, 2048, 7, 512, 1, 1, 0, 1),
    (1, 256, 56, 512, 1, 2, 0, 1),
    (1, 32, 112, 32, 3, 1, 1, 32),
    (1, 64, 112, 64, 3, 2, 1, 64),
    (64, 1, 28, 8, 5, 1, 2, 1),
)


def layer(
    direction: str, n: int, c: int, side: int, k: int, window: int, stride: int, padding: int, groups: int
) -> tuple[()]:
    """Bind one layer as a plain call does, which compiles, and run a plan of it forward.  Arrays that are
    never touched take no memory."""
    from numbaprims import settings
    from numbaprims.dispatch import call
    from numbaprims.ops._conv_call import pose_call
    from numbaprims.ops._conv_pose import Ending, Window
    from numbaprims.ops.conv_plan import plan

    out = (side + 2 * padding - window) // stride + 1
    shapes = {"x": (n, c, side, side), "w": (k, c // groups, window, window), "y": (n, k, out, out)}
    names, result = {"forward": ("xw", "y"), "data": ("yw", "x"), "weight": ("yx", "w")}[direction]
    first, second = (np.empty(shapes[name], np.float32) for name in names)
    target = None if direction == "forward" else shapes[result]
    with settings.config(device="cpu"):
        posed = pose_call(
            direction, (first, second), ("first", "second"), target, Window(stride, padding, 1, groups), Ending()
        )
        call.bind(posed.problem, posed.shape, posed.problem.out_dtype, library=posed.origin, extra=posed.last)
        if direction == "forward":
            weight = np.zeros(shapes["w"], np.float32)
            plan(shapes["x"], weight, stride=stride, padding=padding, groups=groups)(np.zeros_like(first))
    return ()


def bias_gradient() -> tuple[()]:
    """The sums of a bias."""
    from numbaprims import conv_backward_bias, settings

    with settings.config(device="cpu"):
        for layout in ("NCHW", "NHWC"):
            conv_backward_bias(np.zeros((2, 32, 32, 32), np.float32), layout=layout)
    return ()


def warm_specs() -> list[tuple[str, tuple[Any, ...]]]:
    """Every layer in every direction, and the gradient of a bias."""
    return [
        ("numbaprims.cpu.conv.warm:bias_gradient", ()),
        *(
            ("numbaprims.cpu.conv.warm:layer", (direction, *sizes))
            for sizes in LAYERS
            for direction in ("forward", "data", "weight")
        ),
    ]
