"""Writes docs/primitives/index.md: which operators of ONNX and of torch.nn.functional have a function here.

    pip install onnx torch
    python docs/notes/operators.py

The tables below say what computes an operator; the lists of operators are those of the installed packages.
"""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

OPSET = 24
PAGE = Path(__file__).resolve().parent.parent / "primitives" / "index.md"

#: A function for each operator of ONNX, with what it does not take.
ONNX = {
    **{name.capitalize(): name for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "neg", "shrink", "sin", "sinh", "tan",
    )},
    "ThresholdedRelu": "threshold", "IsNaN": "isnan", "IsInf": "isinf", "Not": "binary", "BitShift": "binary",
    **{f"Bitwise{name}": "binary" for name in ("And", "Not", "Or", "Xor")}, "CastLike": "cast",
    "ConstantOfShape": "fill", "Hardmax": "hardmax", "Mean": "binary, scale", "Sum": "binary",
    "ReduceLogSum": "reduce", "ReduceSumSquare": "reduce",
    "Abs": "abs", "Add": "binary", "And": "binary", "ArgMax": "reduce", "ArgMin": "reduce", "Attention": "attention",
    "AveragePool": "avg_pool", "BatchNormalization": "batch_norm, batch_norm_train", "Cast": "cast", "Ceil": "ceil",
    "Celu": "celu", "Clip": "clip", "Concat": "concat", "Conv": "conv", "ConvInteger": "conv_integer",
    "ConvTranspose": "conv_transpose", "CumSum": "cumsum",
    "DequantizeLinear": "dequantize", "Div": "binary", "Dropout":
    "dropout", "DynamicQuantizeLinear": "dynamic_quantize", "Elu": "elu", "Equal": "binary", "Erf": "erf", "Exp":
    "exp", "Floor": "floor", "GRU": "gru", "Gather": "gather", "Gelu": "gelu", "Gemm": "gemm",
    "GlobalAveragePool": "global_avg_pool", "GlobalLpPool": "lp_pool", "GlobalMaxPool": "global_max_pool",
    "Greater": "binary", "GreaterOrEqual": "binary", "GroupNormalization": "group_norm", "HardSigmoid": "hard_sigmoid",
    "HardSwish": "hard_swish", "Identity": "identity", "InstanceNormalization": "instance_norm", "LRN": "lrn",
    "LSTM": "lstm", "LayerNormalization": "layer_norm", "LeakyRelu": "leaky_relu", "Less": "binary",
    "LessOrEqual": "binary", "Log": "log", "LogSoftmax": "log_softmax", "LpPool": "lp_pool", "MatMul": "gemm",
    "MatMulInteger": "gemm_integer", "Max": "binary", "MaxPool": "max_pool", "Min": "binary", "Mish": "mish", "Mod":
    "binary", "Mul": "binary", "NegativeLogLikelihoodLoss": "nll_loss", "OneHot": "one_hot", "Or": "binary", "PRelu":
    "prelu", "Pad": "pad", "Pow": "binary", "QLinearConv": "qlinear_conv", "QLinearMatMul": "qlinear_gemm",
    "QuantizeLinear": "quantize", "RMSNormalization": "rms_norm", "RNN": "rnn", "RandomNormal": "random_normal",
    "RandomNormalLike": "random_normal", "RandomUniform": "random_uniform", "RandomUniformLike": "random_uniform",
    "Reciprocal": "reciprocal", "RotaryEmbedding": "rope",
    "ReduceL1": "reduce", "ReduceL2": "reduce", "ReduceLogSumExp": "reduce",
    "ReduceMax": "reduce", "ReduceMean": "reduce", "ReduceMin": "reduce", "ReduceProd": "reduce",
    "ReduceSum": "reduce", "Relu": "relu", "Resize": "resize", "Round": "round", "Selu": "selu", "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Softmax": "softmax", "SoftmaxCrossEntropyLoss": "softmax_cross_entropy", "Softplus": "softplus",
    "Softsign": "softsign", "Split": "split", "Sqrt": "sqrt", "Sub": "binary", "Swish": "swish", "Tanh": "tanh",
    "TopK": "topk", "Transpose": "transform",
    "Where": "where", "Xor": "binary",
}  # fmt: skip
TORCH = {
    "hardshrink": "hard_shrink", "tanhshrink": "tanh_shrink", "softmin": "neg, softmax",
    "logsigmoid": "log_sigmoid", "softshrink": "soft_shrink",
    "batch_norm": "batch_norm, batch_norm_train", "celu": "celu", "cross_entropy": "softmax_cross_entropy",
    "ctc_loss": "ctc_loss", "dropout": "dropout", "elu": "elu", "embedding": "embedding", "gelu": "gelu", "glu": "glu",
    "group_norm": "group_norm",
    "hardsigmoid": "hard_sigmoid", "hardswish": "hard_swish", "hardtanh": "hard_tanh", "instance_norm": "instance_norm",
    "interpolate": "resize",
    "layer_norm": "layer_norm", "leaky_relu": "leaky_relu", "linear": "linear", "local_response_norm": "lrn",
    "log_softmax": "log_softmax", "mish": "mish", "nll_loss": "nll_loss", "one_hot": "one_hot",
    "pad": "pad", "prelu": "prelu", "relu": "relu",
    "relu6": "relu6", "rms_norm": "rms_norm", "scaled_dot_product_attention": "attention", "selu": "selu",
    "sigmoid": "sigmoid", "silu": "silu", "softmax": "softmax", "softplus": "softplus", "softsign": "softsign",
    "tanh": "tanh", "threshold": "threshold", "upsample": "resize", "upsample_bilinear": "resize",
    "upsample_nearest": "resize",
    **{f"conv{d}d": "conv" for d in (1, 2, 3)}, **{f"conv_transpose{d}d": "conv_transpose" for d in (1, 2, 3)},
    **{f"{op}_pool{d}d": f"{op}_pool" for op in ("max", "avg", "lp") for d in (1, 2, 3)},
    **{f"adaptive_{op}_pool{d}d": f"adaptive_{op}_pool" for op in ("max", "avg") for d in (1, 2, 3)},
}  # fmt: skip
#: Names in torch.nn.functional that are no operators.
HELPERS = ("assert_int_or_pair", "boolean_dispatch", "handle_torch_function", "has_torch_function")


def onnx_operators() -> list[str]:
    """Those of the default domain at the opset that are not deprecated."""
    import onnx.defs

    latest: dict[str, tuple[int, bool]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and schema.since_version <= OPSET:
            latest[schema.name] = max(latest.get(schema.name, (0, False)), (schema.since_version, schema.deprecated))
    return sorted(name for name, (_, deprecated) in latest.items() if not deprecated)


def torch_functions() -> list[str]:
    """Those that compute something anew: neither in place nor a spelling with indices of another."""
    from torch.nn import functional

    found = []
    for name in dir(functional):
        thing = getattr(functional, name)
        if name.startswith("_") or name.endswith(("_", "_with_indices")) or name.startswith(HELPERS):
            continue
        if callable(thing) and not inspect.isclass(thing) and name != "Optional":
            found.append(name)
    return sorted(found)


def section(title: str, operators: list[str], known: dict[str, str]) -> list[str]:
    import numbaprims

    missing = [name for name in known if name not in operators]
    unknown = [each for words in known.values() for each in words.split(", ") if not hasattr(numbaprims, each)]
    if missing or unknown:
        raise ValueError(f"no such operators: {missing}; no such functions: {unknown}")
    none = [name for name in operators if name not in known]
    lines = [f"## {title}", "", f"{len(known)} of {len(operators)} have a function.", "", "| operator | function |"]
    lines += ["|---|---|", *(f"| {name} | `{known[name].replace(', ', '`, `')}` |" for name in sorted(known))]
    return [*lines, "", textwrap.fill("None yet: " + ", ".join(none) + ".", 118), ""]


if __name__ == "__main__":
    head = [
        "# Operators that have a function", "",
        "Written by `python docs/notes/operators.py`, which asks the packages onnx and torch what they have.", "",
    ]  # fmt: skip
    body = section(f"ONNX, opset {OPSET}", onnx_operators(), ONNX)
    body += section("torch.nn.functional", torch_functions(), TORCH)
    PAGE.write_text("\n".join([*head, *body]).rstrip() + "\n", encoding="utf-8")
