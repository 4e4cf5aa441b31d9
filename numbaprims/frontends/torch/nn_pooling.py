"""Pooling as modules; `numbaprims.frontends.torch.nn` gives them out."""

from __future__ import annotations

from typing import Any

from torch.nn.modules import pooling as _POOLING

from numbaprims.frontends.torch import pooling as f
from numbaprims.frontends.torch.modules import batched, by_rank


def _window(module: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in ("kernel_size", "stride", "ceil_mode", *names)}


def _rank(module: Any) -> int:
    """Of the spatial dimensions: the digit in the name of torch's class."""
    return next(int(cls.__name__[-2]) for cls in type(module).__mro__ if cls.__module__ == _POOLING.__name__)


class _MaxPool(_POOLING._MaxPoolNd):
    def forward(self, input: Any) -> Any:
        words = _window(self, "padding", "dilation", "return_indices")
        return batched(f.max_pool, input, _rank(self), **words)


MaxPool1d, MaxPool2d, MaxPool3d = by_rank("MaxPool", "max_pool", _MaxPool)


class _AvgPool(_POOLING._AvgPoolNd):
    """By torch with a `divisor_override`."""

    def forward(self, input: Any) -> Any:
        if getattr(self, "divisor_override", None) is not None:
            return super().forward(input)
        words = _window(self, "padding", "count_include_pad")
        return batched(f.avg_pool, input, _rank(self), **words)


AvgPool1d, AvgPool2d, AvgPool3d = by_rank("AvgPool", "avg_pool", _AvgPool)


class _LPPool(_POOLING._LPPoolNd):
    """By torch with ceil_mode, or a norm that is not even."""

    def forward(self, input: Any) -> Any:
        if self.norm_type % 2 or self.ceil_mode:
            # torch's is no norm then: it adds up signed powers, and takes windows over the border for whole ones
            return super().forward(input)
        return batched(f.lp_pool, input, _rank(self), p=float(self.norm_type), **_window(self))


LPPool1d, LPPool2d, LPPool3d = by_rank("LPPool", "lp_pool", _LPPool)


def _sizes(module: Any, input: Any) -> tuple[int, ...]:
    """The output's, of which None stands for the input's."""
    size, rank = module.output_size, _rank(module)
    each = size if isinstance(size, (tuple, list)) else (size,) * rank
    return tuple(input.shape[d - rank] if n is None else n for d, n in enumerate(each))


class _AdaptiveMaxPool(_POOLING._AdaptiveMaxPoolNd):
    def forward(self, input: Any) -> Any:
        size, rank = _sizes(self, input), _rank(self)
        return batched(f.adaptive_max_pool, input, rank, size, return_indices=self.return_indices)


AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d = by_rank(
    "AdaptiveMaxPool", "adaptive_max_pool", _AdaptiveMaxPool
)


class _AdaptiveAvgPool(_POOLING._AdaptiveAvgPoolNd):
    def forward(self, input: Any) -> Any:
        return batched(f.adaptive_avg_pool, input, _rank(self), _sizes(self, input))


AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d = by_rank(
    "AdaptiveAvgPool", "adaptive_avg_pool", _AdaptiveAvgPool
)
