# The public names, for type checkers and editors; numbaprims/__init__.py imports each at its first use.
# Re-exports, so that signatures and docstrings are those of the functions themselves.

from numbaprims.dispatch.explain import explain as explain
from numbaprims.dispatch.find import find as find
from numbaprims.dispatch.scaling import share_cpus as share_cpus
from numbaprims.dispatch.tune import tune as tune
from numbaprims.fusion.fusion_plan import FusionPlan as FusionPlan
from numbaprims.fusion.stack_plan import fuse as fuse
from numbaprims.ops.activation import (
    abs as abs,
    abs_backward as abs_backward,
    acos as acos,
    acos_backward as acos_backward,
    acosh as acosh,
    acosh_backward as acosh_backward,
    activation as activation,
    activation_backward as activation_backward,
    asin as asin,
    asin_backward as asin_backward,
    asinh as asinh,
    asinh_backward as asinh_backward,
    atan as atan,
    atan_backward as atan_backward,
    atanh as atanh,
    atanh_backward as atanh_backward,
    ceil as ceil,
    ceil_backward as ceil_backward,
    celu as celu,
    celu_backward as celu_backward,
    clip as clip,
    clip_backward as clip_backward,
    clipped_relu as clipped_relu,
    clipped_relu_backward as clipped_relu_backward,
    cos as cos,
    cos_backward as cos_backward,
    cosh as cosh,
    cosh_backward as cosh_backward,
    elu as elu,
    elu_backward as elu_backward,
    erf as erf,
    erf_backward as erf_backward,
    erfc as erfc,
    erfc_backward as erfc_backward,
    exp as exp,
    exp2 as exp2,
    exp2_backward as exp2_backward,
    exp_backward as exp_backward,
    expm1 as expm1,
    expm1_backward as expm1_backward,
    floor as floor,
    floor_backward as floor_backward,
    gelu as gelu,
    gelu_backward as gelu_backward,
    glu as glu,
    glu_backward as glu_backward,
    hard_shrink as hard_shrink,
    hard_shrink_backward as hard_shrink_backward,
    hard_sigmoid as hard_sigmoid,
    hard_sigmoid_backward as hard_sigmoid_backward,
    hard_swish as hard_swish,
    hard_swish_backward as hard_swish_backward,
    hard_tanh as hard_tanh,
    hard_tanh_backward as hard_tanh_backward,
    identity as identity,
    identity_backward as identity_backward,
    leaky_relu as leaky_relu,
    leaky_relu_backward as leaky_relu_backward,
    log as log,
    log1p as log1p,
    log1p_backward as log1p_backward,
    log2 as log2,
    log2_backward as log2_backward,
    log10 as log10,
    log10_backward as log10_backward,
    log_backward as log_backward,
    log_sigmoid as log_sigmoid,
    log_sigmoid_backward as log_sigmoid_backward,
    mish as mish,
    mish_backward as mish_backward,
    neg as neg,
    neg_backward as neg_backward,
    power as power,
    power_backward as power_backward,
    prelu as prelu,
    prelu_backward as prelu_backward,
    reciprocal as reciprocal,
    reciprocal_backward as reciprocal_backward,
    relu as relu,
    relu6 as relu6,
    relu6_backward as relu6_backward,
    relu_backward as relu_backward,
    round as round,
    round_backward as round_backward,
    rsqrt as rsqrt,
    rsqrt_backward as rsqrt_backward,
    selu as selu,
    selu_backward as selu_backward,
    shrink as shrink,
    shrink_backward as shrink_backward,
    sigmoid as sigmoid,
    sigmoid_backward as sigmoid_backward,
    sign as sign,
    sign_backward as sign_backward,
    silu as silu,
    silu_backward as silu_backward,
    sin as sin,
    sin_backward as sin_backward,
    sinh as sinh,
    sinh_backward as sinh_backward,
    soft_shrink as soft_shrink,
    soft_shrink_backward as soft_shrink_backward,
    softplus as softplus,
    softplus_backward as softplus_backward,
    softsign as softsign,
    softsign_backward as softsign_backward,
    sqrt as sqrt,
    sqrt_backward as sqrt_backward,
    square as square,
    square_backward as square_backward,
    swish as swish,
    swish_backward as swish_backward,
    tan as tan,
    tan_backward as tan_backward,
    tanh as tanh,
    tanh_backward as tanh_backward,
    tanh_shrink as tanh_shrink,
    tanh_shrink_backward as tanh_shrink_backward,
    threshold as threshold,
    threshold_backward as threshold_backward,
)
from numbaprims.ops.attention import (
    attention as attention,
    attention_backward as attention_backward,
    attention_train as attention_train,
)
from numbaprims.ops.batch_norm import (
    batch_norm as batch_norm,
    batch_norm_backward as batch_norm_backward,
    batch_norm_train as batch_norm_train,
)
from numbaprims.ops.conv import (
    conv as conv,
    conv_backward_bias as conv_backward_bias,
    conv_backward_data as conv_backward_data,
    conv_backward_weight as conv_backward_weight,
    conv_transpose as conv_transpose,
    conv_transpose_backward_data as conv_transpose_backward_data,
    conv_transpose_backward_weight as conv_transpose_backward_weight,
)
from numbaprims.ops.conv_quantized import (
    conv_integer as conv_integer,
    qlinear_conv as qlinear_conv,
)
from numbaprims.ops.ctc import (
    ctc_beam_search_decode as ctc_beam_search_decode,
    ctc_greedy_decode as ctc_greedy_decode,
    ctc_loss as ctc_loss,
    ctc_loss_backward as ctc_loss_backward,
)
from numbaprims.ops.gather import (
    embedding as embedding,
    embedding_backward as embedding_backward,
    gather as gather,
    gather_backward as gather_backward,
    one_hot as one_hot,
    pad as pad,
    pad_backward as pad_backward,
    split as split,
)
from numbaprims.ops.gemm import gemm as gemm, linear as linear
from numbaprims.ops.gemm_quantized import gemm_integer as gemm_integer, qlinear_gemm as qlinear_gemm
from numbaprims.ops.gemv import gemv as gemv
from numbaprims.ops.ger import ger as ger
from numbaprims.ops.lrn import lrn as lrn, lrn_backward as lrn_backward
from numbaprims.ops.norm import (
    group_norm as group_norm,
    group_norm_backward as group_norm_backward,
    group_norm_train as group_norm_train,
    instance_norm as instance_norm,
    instance_norm_backward as instance_norm_backward,
    instance_norm_train as instance_norm_train,
    layer_norm as layer_norm,
    layer_norm_backward as layer_norm_backward,
    layer_norm_train as layer_norm_train,
    rms_norm as rms_norm,
    rms_norm_backward as rms_norm_backward,
    rms_norm_train as rms_norm_train,
)
from numbaprims.ops.pooling import (
    adaptive_avg_pool as adaptive_avg_pool,
    adaptive_avg_pool_backward as adaptive_avg_pool_backward,
    adaptive_max_pool as adaptive_max_pool,
    adaptive_max_pool_backward as adaptive_max_pool_backward,
    avg_pool as avg_pool,
    avg_pool_backward as avg_pool_backward,
    global_avg_pool as global_avg_pool,
    global_avg_pool_backward as global_avg_pool_backward,
    global_max_pool as global_max_pool,
    global_max_pool_backward as global_max_pool_backward,
    lp_pool as lp_pool,
    lp_pool_backward as lp_pool_backward,
    max_pool as max_pool,
    max_pool_backward as max_pool_backward,
)
from numbaprims.ops.qlinear import (
    qlinear_activation as qlinear_activation,
    qlinear_add as qlinear_add,
    qlinear_avg_pool as qlinear_avg_pool,
    qlinear_global_avg_pool as qlinear_global_avg_pool,
)
from numbaprims.ops.quantize import (
    dequantize as dequantize,
    dynamic_quantize as dynamic_quantize,
    quantize as quantize,
)
from numbaprims.ops.random import (
    dropout as dropout,
    dropout_backward as dropout_backward,
    random_normal as random_normal,
    random_uniform as random_uniform,
)
from numbaprims.ops.reduce import reduce as reduce
from numbaprims.ops.resize import resize as resize, resize_backward as resize_backward
from numbaprims.ops.rnn import (
    gru as gru,
    gru_backward as gru_backward,
    gru_train as gru_train,
    lstm as lstm,
    lstm_backward as lstm_backward,
    lstm_train as lstm_train,
    rnn as rnn,
    rnn_backward as rnn_backward,
    rnn_train as rnn_train,
)
from numbaprims.ops.rope import (
    rope as rope,
    rope_backward as rope_backward,
    rope_frequencies as rope_frequencies,
)
from numbaprims.ops.scan import cumprod as cumprod, cumsum as cumsum
from numbaprims.ops.softmax import (
    hardmax as hardmax,
    log_softmax as log_softmax,
    log_softmax_backward as log_softmax_backward,
    nll_loss as nll_loss,
    nll_loss_backward as nll_loss_backward,
    softmax as softmax,
    softmax_backward as softmax_backward,
    softmax_cross_entropy as softmax_cross_entropy,
    softmax_cross_entropy_backward as softmax_cross_entropy_backward,
)
from numbaprims.ops.stack import stack as stack, stack_backward as stack_backward
from numbaprims.ops.tensor import (
    binary as binary,
    cast as cast,
    concat as concat,
    fill as fill,
    isinf as isinf,
    isnan as isnan,
    scale as scale,
    transform as transform,
    where as where,
)
from numbaprims.ops.topk import topk as topk
from numbaprims.recurrent.weights import RnnWeights as RnnWeights
from numbaprims.settings import config as config

__version__: str
__all__: list[str]
_LAZY: dict[str, str]
