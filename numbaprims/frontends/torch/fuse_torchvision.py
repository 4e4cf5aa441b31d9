"""Functions of torchvision that torch.fx does not look into: those of Swin transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from numbaprims.fusion import layers


def _windows(
    image: tuple[int, ...], qkv_weight: Any, proj_weight: Any, relative_position_bias: Any, window_size: Any,
    num_heads: int, shift_size: Any, attention_dropout: float = 0.0, dropout: float = 0.0, qkv_bias: Any = None,
    proj_bias: Any = None, logit_scale: Any = None, training: bool = True,
) -> Any:  # fmt: skip
    """Attention within windows of an image (H, W, C) that are shifted around its borders; None where it is padded.

    Liu et al., Swin Transformer: Hierarchical Vision Transformer using Shifted Windows, 2021.
    """
    *size, c = image
    if training or logit_scale is not None or size[0] % window_size[0] or size[1] % window_size[1]:
        return None
    shift = [0 if window >= n else by for n, window, by in zip(size, window_size, shift_size, strict=True)]

    def in_windows(x: np.ndarray) -> np.ndarray:
        """(windows, elements of a window)"""
        (h, w), (down, across) = size, window_size
        return x.reshape(h // down, down, w // across, across).swapaxes(1, 2).reshape(-1, down * across)

    count = size[0] * size[1]
    order = in_windows(np.roll(np.arange(count).reshape(size), [-by for by in shift], (0, 1)))
    mask = relative_position_bias
    if any(shift):  # elements that were no neighbours before the shift do not see one another
        parts = [
            np.digitize(np.arange(n), (n - window, n - by))
            for n, window, by in zip(size, window_size, shift, strict=True)
        ]
        of = in_windows(parts[0][:, None] * 3 + parts[1])
        mask = mask + torch.where(torch.from_numpy(of[:, None, :, None] != of[:, None, None, :]), -100.0, 0.0)
    return [
        layers.Reshape((count, c)), layers.Gather(order.ravel()), layers.Linear(qkv_weight, qkv_bias),
        layers.Reshape((*order.shape, 3 * c)), layers.SelfAttention(heads=num_heads, mask=mask),
        layers.Reshape((count, c)), layers.Linear(proj_weight, proj_bias),
        layers.Gather(np.argsort(order, axis=None)), layers.Reshape(image),
    ]  # fmt: skip


def _merged(image: tuple[int, ...]) -> Any:
    """Four neighbours of an image (H, W, C) side by side, those below one another first."""
    h, w, c = image
    if h % 2 or w % 2:
        return None
    view = layers.View((h // 2, w // 2, 2, 2, c), (2 * w * c, 2 * c, c, w * c, 1))
    return [view, layers.Reshape((h // 2, w // 2, 4 * c))]


#: (module, name) of a function -> (shape of an image, its further arguments) -> what it is, or None.
FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torchvision.models.swin_transformer", "shifted_window_attention"): _windows,
    ("torchvision.models.swin_transformer", "_patch_merging_pad"): _merged,
}
