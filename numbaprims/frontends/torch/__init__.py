"""numbaprims for torch: the public functions with gradients, for tensors that require them.

``from numbaprims.frontends import torch as nbt``: `nbt.gemm`, `nbt.conv`, `nbt.relu`, ... take the arguments of the
functions of the same names in `numbaprims` and record gradients, which are computed by numbaprims's own backward
functions. `nbt.nn` has modules in the place of those of `torch.nn`. Where nothing is recorded, a call is one of
`numbaprims` itself. See docs/frontends-torch.md.
"""

from __future__ import annotations

from typing import Any

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("numbaprims.frontends.torch needs torch: pip install 'numbaprims[torch]'") from error

import numbaprims
import numbaprims.frontends.torch.nn as nn
import numbaprims.frontends.torch.seconds  # noqa: F401 - fills the table of second derivatives
from numbaprims.frontends.torch import activations
from numbaprims.frontends.torch.activations import activation as activation, prelu as prelu
from numbaprims.frontends.torch.attention import attention as attention
from numbaprims.frontends.torch.compiler import backend as backend
from numbaprims.frontends.torch.convolutions import (
    conv as conv,
    conv_backward_bias as conv_backward_bias,
    conv_backward_data as conv_backward_data,
    conv_backward_weight as conv_backward_weight,
    conv_transpose as conv_transpose,
    conv_transpose_backward_data as conv_transpose_backward_data,
    conv_transpose_backward_weight as conv_transpose_backward_weight,
)
from numbaprims.frontends.torch.dropout import dropout as dropout
from numbaprims.frontends.torch.fuse import fuse as fuse
from numbaprims.frontends.torch.losses import ctc_loss as ctc_loss
from numbaprims.frontends.torch.normalisation import (
    batch_norm as batch_norm,
    batch_norm_train as batch_norm_train,
    log_softmax as log_softmax,
    lrn as lrn,
    nll_loss as nll_loss,
    softmax as softmax,
    softmax_cross_entropy as softmax_cross_entropy,
)
from numbaprims.frontends.torch.norms import (
    group_norm as group_norm,
    group_norm_train as group_norm_train,
    instance_norm as instance_norm,
    instance_norm_train as instance_norm_train,
    layer_norm as layer_norm,
    layer_norm_train as layer_norm_train,
    rms_norm as rms_norm,
    rms_norm_train as rms_norm_train,
)
from numbaprims.frontends.torch.places import (
    concat as concat,
    embedding as embedding,
    gather as gather,
    pad as pad,
    split as split,
    transform as transform,
)
from numbaprims.frontends.torch.pooling import (
    adaptive_avg_pool as adaptive_avg_pool,
    adaptive_max_pool as adaptive_max_pool,
    avg_pool as avg_pool,
    global_avg_pool as global_avg_pool,
    global_max_pool as global_max_pool,
    lp_pool as lp_pool,
    max_pool as max_pool,
)
from numbaprims.frontends.torch.products import gemm as gemm, gemv as gemv, ger as ger, linear as linear
from numbaprims.frontends.torch.recurrent import (
    gru as gru,
    gru_train as gru_train,
    lstm as lstm,
    lstm_train as lstm_train,
    rnn as rnn,
    rnn_train as rnn_train,
)
from numbaprims.frontends.torch.resizing import resize as resize
from numbaprims.frontends.torch.rotary import rope as rope
from numbaprims.frontends.torch.scans import cumprod as cumprod, cumsum as cumsum, topk as topk
from numbaprims.frontends.torch.tensors import (
    binary as binary,
    cast as cast,
    reduce as reduce,
    scale as scale,
    where as where,
)


def __getattr__(name: str) -> Any:
    """The activations."""
    if name in activations.NAMES:
        return getattr(activations, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *activations.NAMES})


# Without abs and round, as in numbaprims.
__all__ = ["nn", *(name for name in __dir__() if name in numbaprims.__all__ and not name.startswith("_"))]
