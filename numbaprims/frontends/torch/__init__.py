"""numbaprims for torch: the public functions with gradients, for tensors that require them.

``from numbaprims.frontends import torch as nbt``: `nbt.gemm`, `nbt.conv`, `nbt.relu`, ... take the arguments of the
functions of the same names in `numbaprims` and record gradients, which are computed by numbaprims's own backward
functions. `nbt.nn` has modules in the place of those of `torch.nn`. Where nothing is recorded, a call is one of
`numbaprims` itself. See docs/frontends-torch.md.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("numbaprims.frontends.torch needs torch: pip install 'numbaprims[torch]'") from error

import numbaprims.frontends.torch.nn as nn
import numbaprims.frontends.torch.seconds  # noqa: F401 - fills the table of second derivatives
from numbaprims.frontends.torch.activations import (
    abs as abs,
    acos as acos,
    acosh as acosh,
    activation as activation,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atanh as atanh,
    ceil as ceil,
    celu as celu,
    clip as clip,
    clipped_relu as clipped_relu,
    cos as cos,
    cosh as cosh,
    elu as elu,
    erf as erf,
    erfc as erfc,
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    floor as floor,
    gelu as gelu,
    glu as glu,
    hard_shrink as hard_shrink,
    hard_sigmoid as hard_sigmoid,
    hard_swish as hard_swish,
    hard_tanh as hard_tanh,
    identity as identity,
    leaky_relu as leaky_relu,
    log as log,
    log1p as log1p,
    log2 as log2,
    log10 as log10,
    log_sigmoid as log_sigmoid,
    mish as mish,
    neg as neg,
    power as power,
    prelu as prelu,
    reciprocal as reciprocal,
    relu as relu,
    relu6 as relu6,
    round as round,
    rsqrt as rsqrt,
    selu as selu,
    shrink as shrink,
    sigmoid as sigmoid,
    sign as sign,
    silu as silu,
    sin as sin,
    sinh as sinh,
    soft_shrink as soft_shrink,
    softplus as softplus,
    softsign as softsign,
    sqrt as sqrt,
    square as square,
    swish as swish,
    tan as tan,
    tanh as tanh,
    tanh_shrink as tanh_shrink,
    threshold as threshold,
)
from numbaprims.frontends.torch.attention import attention as attention
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
from numbaprims.frontends.torch.places import embedding as embedding, gather as gather, pad as pad
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

# Without abs and round, as in numbaprims.
__all__ = [
    "nn", "acos", "acosh", "activation", "adaptive_avg_pool", "adaptive_max_pool", "asin", "asinh", "atan", "atanh",
    "attention", "avg_pool", "batch_norm", "batch_norm_train", "binary", "cast", "ceil", "celu", "clip",
    "clipped_relu", "conv", "conv_backward_bias", "conv_backward_data", "conv_backward_weight", "conv_transpose",
    "conv_transpose_backward_data", "conv_transpose_backward_weight", "cos", "cosh", "ctc_loss", "cumprod", "cumsum",
    "dropout",
    "elu", "embedding", "erf", "erfc", "exp", "exp2", "expm1", "floor", "fuse", "gather", "gelu", "gemm", "gemv",
    "ger", "global_avg_pool", "global_max_pool", "glu", "group_norm", "group_norm_train", "gru", "gru_train",
    "hard_shrink", "hard_sigmoid", "hard_swish", "hard_tanh", "identity", "instance_norm", "instance_norm_train",
    "layer_norm", "layer_norm_train", "leaky_relu", "linear", "log", "log10", "log1p", "log2", "log_sigmoid",
    "log_softmax", "lp_pool", "lrn", "lstm", "lstm_train", "max_pool", "mish", "neg", "nll_loss", "pad", "power",
    "prelu", "reciprocal", "reduce", "relu", "relu6", "resize", "rms_norm", "rms_norm_train", "rnn", "rnn_train",
    "rope", "rsqrt", "scale", "selu", "shrink", "sigmoid", "sign", "silu", "sin", "sinh", "soft_shrink", "softmax",
    "softmax_cross_entropy", "softplus", "softsign", "sqrt", "square", "swish", "tan", "tanh", "tanh_shrink",
    "threshold", "topk", "where",
]  # fmt: skip
