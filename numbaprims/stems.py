"""The public functions of each stem, and who makes its kernels: what the package gives out, and every list of stems,
follow from these tables."""

KINDS = (
    "identity", "relu", "leaky_relu", "prelu", "clipped_relu", "relu6", "elu", "selu", "celu", "sigmoid",
    "tanh", "softplus", "softsign", "abs", "power", "gelu", "silu", "swish", "mish", "hard_sigmoid",
    "hard_swish", "hard_tanh", "exp", "log", "sqrt", "square", "round", "clip", "threshold", "glu",
    "exp2", "expm1", "log1p", "erf", "reciprocal", "rsqrt", "sign", "floor", "ceil",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "log2", "log10", "erfc",
    "neg", "log_sigmoid", "shrink", "hard_shrink", "soft_shrink", "tanh_shrink",
)  # fmt: skip

#: stem -> the functions of ``numbaprims/ops/<stem>.py``
PUBLIC: dict[str, tuple[str, ...]] = {
    "gemm": ("gemm", "linear"),
    "gemv": ("gemv",),
    "ger": ("ger",),
    "activation": ("activation", "activation_backward", *KINDS, *(f"{kind}_backward" for kind in KINDS)),
    "conv": (
        "conv", "conv_backward_data", "conv_backward_weight", "conv_backward_bias", "conv_transpose",
        "conv_transpose_backward_data", "conv_transpose_backward_weight",
    ),
    "softmax": (
        "softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "hardmax", "softmax_cross_entropy",
        "softmax_cross_entropy_backward", "nll_loss", "nll_loss_backward",
    ),
    "batch_norm": ("batch_norm", "batch_norm_train", "batch_norm_backward"),
    "norm": tuple(
        f"{name}_norm{way}" for name in ("layer", "rms", "group", "instance") for way in ("", "_train", "_backward")
    ),
    "pooling": tuple(
        f"{name}_pool{way}" for way in ("", "_backward")
        for name in ("max", "avg", "lp", "global_max", "global_avg", "adaptive_max", "adaptive_avg")
    ),
    "random": ("dropout", "dropout_backward", "random_uniform", "random_normal"),
    "stack": ("stack", "stack_backward"),
    "lrn": ("lrn", "lrn_backward"),
    "resize": ("resize", "resize_backward"),
    "reduce": ("reduce",),
    "tensor": ("binary", "where", "isnan", "isinf", "scale", "fill", "cast", "transform", "concat"),
    "gather": (
        "gather", "gather_backward", "embedding", "embedding_backward", "one_hot", "pad", "pad_backward", "split",
    ),
    "quantize": ("quantize", "dequantize", "dynamic_quantize"),
    "rnn": tuple(f"{cell}{way}" for way in ("", "_train", "_backward") for cell in ("lstm", "gru", "rnn")),
    "ctc": ("ctc_loss", "ctc_loss_backward", "ctc_greedy_decode", "ctc_beam_search_decode"),
    "attention": ("attention", "attention_train", "attention_backward"),
    "rope": ("rope", "rope_backward"),
    "scan": ("cumsum", "cumprod"),
    "topk": ("topk",),
}  # fmt: skip
STEMS = tuple(PUBLIC)
#: Functions that native code may answer (`fast_path`): what they do follows from the types, lengths and strides of
#: their arrays and from their other arguments. Left out is what looks at elements: at indices, lengths, classes.
FAST: frozenset[str] = frozenset(
    name
    for stem in (
        "gemm", "gemv", "ger", "activation", "conv", "softmax", "batch_norm", "norm", "pooling", "lrn", "resize",
        "reduce", "tensor", "quantize", "attention", "scan", "topk",
    )
    for name in PUBLIC[stem]
    if not name.startswith(("softmax_cross_entropy", "nll_loss"))
)  # fmt: skip
#: Stems whose kernels an engine makes from formulas; the others have a folder of their own.
ENGINES = {
    "softmax": "reduce", "batch_norm": "reduce", "norm": "reduce", "reduce": "reduce", "tensor": "reduce",
    "quantize": "reduce",     "pooling": "windows",
}  # fmt: skip
