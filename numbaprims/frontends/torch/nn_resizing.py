"""Resizing as modules; `numbaprims.frontends.torch.nn` gives them out."""

from __future__ import annotations

from typing import Any

import torch

from numbaprims.frontends.torch.modules import twin
from numbaprims.frontends.torch.resizing import resize

_MODES = {"nearest-exact": "nearest_exact", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
_RANKS = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}


class _Upsample(torch.nn.Upsample):
    """By torch in the mode "area"."""

    def forward(self, input: Any) -> Any:
        rank = _RANKS.get(self.mode, input.ndim - 2)
        floating = input.is_floating_point() or (input.dtype == torch.uint8 and self.mode != "bicubic")
        if self.mode == "area" or input.ndim != rank + 2 or not floating:
            return super().forward(input)  # torch computes it, or says what is wrong
        size, scale = self.size, self.scale_factor
        if scale is not None and self.recompute_scale_factor:
            scales = scale if isinstance(scale, tuple) else (scale,) * rank
            pairs = zip(input.shape[2:], scales, strict=True)
            size, scale = tuple(int(pixels * each) for pixels, each in pairs), None
        words = {"mode": _MODES.get(self.mode, self.mode), "align_corners": bool(self.align_corners)}
        return resize(input, size, scale=scale, **words)


Upsample, UpsamplingNearest2d, UpsamplingBilinear2d = (
    twin(name, "resize", _Upsample) for name in ("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d")
)
