"""What first convolutions want compiled: the kernels that the default choice takes for layers that networks have."""

from __future__ import annotations

from typing import Any

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


def warm_specs() -> list[tuple[str, tuple[Any, ...]]]:
    """Every layer in every direction, and the gradient of a bias."""
    return [
        ("numbaprims.ops._conv_warm:bias_gradient", ()),
        *(
            ("numbaprims.ops._conv_warm:layer", (direction, *sizes))
            for sizes in LAYERS
            for direction in ("forward", "data", "weight")
        ),
    ]
