"""Pads as modules; `numbaprims.frontends.torch.nn` gives them out."""

from __future__ import annotations

from typing import Any

from numbaprims.frontends.torch.modules import by_rank
from numbaprims.frontends.torch.places import pad

#: torch's name of a mode -> ours
MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def padded(x: Any, widths: Any, mode: str, value: float = 0.0) -> Any:
    """`torch.nn.functional.pad`, whose widths begin with the last dimension.

    Raises:
        ValueError: more widths than x has dimensions, or mirrored or repeated pads that are wider than torch allows.
    """
    pairs = [(int(widths[at]), int(widths[at + 1])) for at in range(0, len(widths), 2)][::-1]
    if len(pairs) > x.ndim:
        raise ValueError(f"pads {tuple(widths)} are for {len(pairs)} dimensions, x has {x.ndim}")
    for size, pair in zip(x.shape[x.ndim - len(pairs) :], pairs, strict=True):
        if max(pair) > {"reflect": size - 1, "circular": size}.get(mode, max(pair)):
            raise ValueError(f"pads {tuple(widths)} in mode {mode!r} are too wide for {tuple(x.shape)}")
    return pad(x, ((0, 0),) * (x.ndim - len(pairs)) + tuple(pairs), MODES[mode], value)


def _modules(name: str, mode: str) -> Any:
    class Pad:
        value: float = 0.0

        def forward(self, input: Any) -> Any:
            own: Any = self
            if input.ndim - len(own.padding) // 2 not in (1, 2) or not input.is_floating_point():
                return own._of_torch(input)
            return padded(input, own.padding, mode, own.value)

        def _of_torch(self, input: Any) -> Any:
            """Of integers, and of other dimensions than those of images: torch computes it, or says what is wrong."""
            parent: Any = super()
            return parent.forward(input)

    return by_rank(name, "pad", Pad)


ConstantPad1d, ConstantPad2d, ConstantPad3d = _modules("ConstantPad", "constant")
ZeroPad1d, ZeroPad2d, ZeroPad3d = _modules("ZeroPad", "constant")
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _modules("ReflectionPad", "reflect")
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _modules("ReplicationPad", "replicate")
CircularPad1d, CircularPad2d, CircularPad3d = _modules("CircularPad", "circular")
