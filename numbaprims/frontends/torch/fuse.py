"""`fuse`: a module of torch planned by `numbaprims.fuse`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

import numbaprims
from numbaprims.dtypes import FLOATS, LONG_NAMES
from numbaprims.frontends.torch.fuse_attention import encoder_layer, self_attention
from numbaprims.frontends.torch.fuse_functions import ACTIVATIONS as ACTIVATION_FUNCTIONS
from numbaprims.frontends.torch.fuse_graph import Unknown, only_tensor, twin_of
from numbaprims.frontends.torch.fuse_trace import is_leaf, read, run
from numbaprims.frontends.torch.fuse_training import Trained
from numbaprims.frontends.torch.modules import hooked
from numbaprims.frontends.torch.nn import ACTIVATIONS, TWINS
from numbaprims.frontends.torch.recording import differentiable, recorded, without_autocast
from numbaprims.fusion import layers
from numbaprims.fusion.stack_plan import FusedNetwork

nn = torch.nn

_ACTIVATIONS = {kind: row for kind, row in ACTIVATIONS.items() if row[0] not in ("glu", "prelu")}
_UNCHANGED = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def _host(x: Any) -> Any:
    return None if x is None else x.detach().cpu()


def _max_pool(m: Any) -> Any:
    words = {"dilation": m.dilation, "ceil_mode": m.ceil_mode}
    return None if m.return_indices else layers.MaxPool(m.kernel_size, m.stride, m.padding, **words)


def _avg_pool(m: Any) -> Any:
    words = {"ceil_mode": m.ceil_mode, "count_include_pad": m.count_include_pad}
    divided = getattr(m, "divisor_override", None) is not None
    return None if divided else layers.AvgPool(m.kernel_size, m.stride, m.padding, **words)


def _adaptive(layer: type) -> Callable[[Any], Any]:
    def make(m: Any) -> Any:
        sizes = m.output_size if isinstance(m.output_size, (tuple, list)) else (m.output_size,)
        return layer() if set(sizes) == {1} and not getattr(m, "return_indices", False) else None

    return make


def _batch_norm(m: Any) -> Any:
    if m.running_mean is None:  # then it normalises by the statistics of the batch
        return None
    return layers.BatchNorm(_host(m.weight), _host(m.bias), _host(m.running_mean), _host(m.running_var), m.eps)


def _conv(m: Any) -> Any:
    words = {"stride": m.stride, "padding": m.padding, "dilation": m.dilation, "groups": m.groups}
    return layers.Conv(_host(m.weight), _host(m.bias), **words) if m.padding_mode == "zeros" else None


def _attention(m: Any) -> Any:
    """Attention of a sequence to itself."""
    added = m.bias_k is not None or m.bias_v is not None or m.add_zero_attn
    if added or not m.batch_first or not m._qkv_same_embed_dim or hooked(m.out_proj):
        return None
    parameters = (m.in_proj_weight, m.in_proj_bias, m.out_proj.weight, m.out_proj.bias)
    return self_attention(m.num_heads, *map(_host, parameters))


def _encoder_layer(m: Any) -> Any:
    kind = ACTIVATION_FUNCTIONS.get(m.activation)
    between = layer_of(m.activation, 3) if isinstance(m.activation, nn.Module) else kind and layers.Activation(kind)
    attend, first, last, *norms = (layer_of(each, 3) for each in (m.self_attn, m.linear1, m.linear2, m.norm1, m.norm2))
    if None in (between, attend, first, last, *norms):
        return None
    return encoder_layer([attend, [first, between, last]], norms, m.norm_first)


def _encoder(m: Any) -> Any:
    found = [layer_of(each, 3) for each in (*m.layers, *([] if m.norm is None else [m.norm]))]
    return None if None in found else found


_MODULES: dict[type, Callable[[Any], Any]] = {
    nn.PReLU: lambda m: layers.PReLU(_host(m.weight)),
    nn.Flatten: lambda m: layers.Flatten() if (m.start_dim, m.end_dim) == (1, -1) else None,
    nn.Linear: lambda m: layers.Linear(_host(m.weight), _host(m.bias)),
    nn.LayerNorm: lambda m: layers.LayerNorm(_host(m.weight), _host(m.bias), m.eps, len(m.normalized_shape)),
    nn.RMSNorm: lambda m: layers.RMSNorm(_host(m.weight), m.eps, len(m.normalized_shape)) if m.eps else None,
    nn.GroupNorm: lambda m: layers.GroupNorm(m.num_groups, _host(m.weight), _host(m.bias), m.eps),
    nn.Softmax: lambda m: layers.Softmax(m.dim),
    nn.MultiheadAttention: _attention,
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder,
}
#: Modules that take a sequence without a batch too, which would be a batch of vectors here.
_OF_SEQUENCES = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
for _rank in (1, 2, 3):
    for _name, _make in {
        "MaxPool": _max_pool, "AvgPool": _avg_pool, "AdaptiveAvgPool": _adaptive(layers.GlobalAvgPool),
        "AdaptiveMaxPool": _adaptive(layers.GlobalMaxPool), "BatchNorm": _batch_norm, "Conv": _conv,
    }.items():  # fmt: skip
        _MODULES[getattr(nn, f"{_name}{_rank}d")] = _make


def _described(module: Any, x: Any) -> tuple[Any, Any]:
    """The description of a module, and what the module makes of x."""
    kind = type(module)
    if kind is nn.Sequential and not hooked(module):
        found = []
        for each in module:
            layer, x = _described(each, x)
            found.append(layer)
        return found, x
    layer = layer_of(module, x.ndim)
    if layer is None and not is_leaf(module):
        try:
            return read(module, x, layer_of)
        except Unknown:
            pass
    y = only_tensor(run(module, module, x), module)
    return layers.Call(twin_of(module), tuple(y.shape[1:])) if layer is None else layer, y


def layer_of(module: Any, ndim: int) -> Any:
    """The layer that a module is for inputs of so many dimensions; None where it is none that is known."""
    if hooked(module):
        return None
    kind = type(module)
    twin = TWINS.get(kind, kind)
    if twin in _OF_SEQUENCES or getattr(module, "activation", None) is None:
        kind = twin
    rank = re.search(r"(\d)d$", kind.__name__)
    if kind in _UNCHANGED:
        return layers.Dropout()
    if kind in _ACTIVATIONS:
        name, words = _ACTIVATIONS[kind]
        return layers.Activation(name, **{word: getattr(module, word) for word in words})
    # torch takes a single image (C, H, W) too, which here is a batch of (N, C, L)
    if kind in _OF_SEQUENCES and ndim != 3:
        return None
    if kind in (nn.LayerNorm, nn.RMSNorm) and len(module.normalized_shape) >= ndim:  # over all images
        return None
    if kind is nn.Softmax and (module.dim is None or module.dim % ndim == 0):
        return None
    if kind in _MODULES and (rank is None or ndim == int(rank[1]) + 2 or (kind is nn.BatchNorm1d and ndim == 2)):
        return _MODULES[kind](module)
    return None


@differentiable(FusedNetwork.__call__)
def _run(network: Any, x: Any) -> Any:
    with without_autocast(x):
        return network(x)


class Fused(torch.nn.Module):
    """A module that calls a fused network, which is its `network`; for inference only."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, x: Any) -> Any:
        if self.training:
            raise RuntimeError("a fused network computes inference; call eval(), and train the module it was made of")
        if recorded(x):
            raise TypeError(
                "x requires grad and a fused network records none; call under torch.no_grad(), or fuse(gradients=True)"
            )
        return _run(self.network, x)

    def extra_repr(self) -> str:
        return repr(self.network)


def fuse(
    module: Any, example: Any, *, strategy: str = "auto", limit: int | None = None, exact: bool = False,
    gradients: bool = False,
) -> Any:  # fmt: skip
    """Plan a module for inference, as `numbaprims.fuse` plans layers, or a sequence of modules for training.

    Pooling, norms, activations, dropout, convolutions, linear layers, attention, softmax, sums, products,
    concatenations, other orders and shapes of a tensor are planned. A module of your own is traced by torch.fx:
    what its `forward` does with torch's functions and methods is planned too, or called as it is; so are modules of
    torch's that are no such layer, by their twins in `nn` where there are some. What torch.fx cannot trace is
    called as a whole, and so are a module whose graph gives other numbers than itself (while it traces, x is no
    instance of torch.Tensor), one with hooks (weight norm and pruning are such) or a `forward` of the instance's
    own. Weights are copied. Under `torch.autocast` it computes in the dtype of the example.

    Args:
        module: in eval mode, of one tensor; its layers of exactly torch's own classes or their twins in `nn`.
            What it computes of no input is computed once.
        example: an input of floats, of which the shape and the dtype count; other numbers of images may follow.
        strategy, limit, exact: as of `numbaprims.fuse`.
        gradients: record gradients: stacks take the module's own parameters at each call, which get theirs, by
            `numbaprims.stack_backward`; the other modules are called as they are, in training mode batch norms and
            dropout too.

    Returns:
        A module; its `network` is what `numbaprims.fuse` gives. With gradients its `module` is the one given.

    Raises:
        TypeError: what is no module or no tensor, a module that gives another thing than one tensor, another dtype.
        ValueError: a module in training mode, without `gradients`.

    Example:
        >>> import torch
        >>> layers = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.BatchNorm2d(3), torch.nn.ReLU()).eval()
        >>> fused = fuse(layers, torch.zeros(1, 3, 8, 8))
        >>> len(fused.network.stacks), fused(torch.ones(2, 3, 8, 8)).shape
        (1, torch.Size([2, 3, 4, 4]))
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is a {type(module).__name__}; it must be a torch.nn.Module")
    if not isinstance(example, torch.Tensor):
        raise TypeError(f"example is a {type(example).__name__}; it must be a tensor")
    if gradients:
        return Trained(module, example, layer_of)
    words = [LONG_NAMES[each] for each in FLOATS]
    if str(example.dtype).removeprefix("torch.") not in words:
        raise TypeError(f"example's dtype is {example.dtype}; fuse takes {', '.join(words)}")
    training = [name or type(module).__name__ for name, each in module.named_modules() if each.training]
    if training:
        raise ValueError(f"module is in training mode ({', '.join(training[:3])}); call module.eval() first")
    # in place of inference mode, whose tensors do not say what is written to them
    with torch.inference_mode(False), torch.no_grad(), without_autocast(example):
        described, _ = _described(module, example.detach().clone())
    options: dict[str, Any] = {"strategy": strategy, "limit": limit, "exact": exact}
    return Fused(numbaprims.fuse(described, tuple(example.shape), dtype=example.dtype, **options))
