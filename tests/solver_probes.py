"""Calls among which every solver of a stem finds one that it takes: (function, arguments, keywords); and one of each
public function."""

import numpy as np
from contract import CALLS, made
from helpers import NUMPY_FLOATS, caller_array

import numbaprims
from numbaprims.ops.activation_kinds import ALIASES, KINDS
from numbaprims.stems import PUBLIC

STEM_OF = {name: stem for stem, names in PUBLIC.items() for name in names}


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


PROBES = {
    "gemm": [
        ("gemm", (ones(m, k), ones(k, n)), {})
        for m, n, k in (
            (1, 1, 1), (4, 4, 4), (1, 300, 200), (300, 1, 200), (200, 300, 100), (500, 49, 300), (3000, 7, 2000)
        )
    ] + [("gemm", (ones(8, 64, dtype=dtype), ones(64, 40, dtype=dtype)), {}) for dtype in (np.int8, np.float16)],
    "gemv": [("gemv", (ones(m, n), ones(n)), {}) for m, n in ((1, 1), (3, 500), (500, 3), (1000, 1000))],
    "ger": [("ger", (ones(m), ones(n)), {}) for m, n in ((1, 1), (3, 500), (900, 1000))],
    "activation": [
        *(("tanh", (ones(n),), {}) for n in (1, 100, 1 << 20)),
        ("tanh", (ones(20, 30)[:, ::2],), {}),
        ("glu", (ones(4, 6, dtype=np.float64),), {}),
    ],
    "conv": [
        ("conv", (ones(1, 32, 28, 28), ones(64, 32, 3, 3)), {"padding": 1}),
        ("conv", (ones(1, 32, 28, 28), ones(64, 32, 3, 3)), {"padding": 1, "stride": 2}),
        ("conv", (ones(2, 32, 14, 14), ones(64, 32, 1, 1)), {}),
        ("conv", (ones(1, 3, 64, 64), ones(64, 3, 7, 7)), {"padding": 3, "stride": 2}),
        ("conv", (ones(1, 16, 30, 30), ones(16, 16, 7, 7)), {"padding": 3}),
        ("conv", (ones(1, 16, 30, 30), ones(16, 1, 3, 3)), {"groups": 16}),
        ("conv", (ones(1, 8, 9, 9, dtype=np.int8), ones(8, 8, 3, 3, dtype=np.int8)), {}),
        ("conv", (ones(1, 8, 9, 9, dtype=np.float16), ones(8, 8, 3, 3, dtype=np.float16)), {}),
        ("conv_backward_data", (ones(1, 64, 28, 28), ones(64, 32, 3, 3), (1, 32, 28, 28)), {"padding": 1}),
        ("conv_backward_weight", (ones(1, 64, 28, 28), ones(1, 32, 28, 28), (64, 32, 3, 3)), {"padding": 1}),
        ("conv_backward_weight", (ones(1, 16, 28, 28), ones(1, 16, 30, 30), (16, 1, 3, 3)), {"groups": 16}),
        *(
            ("conv_backward_weight", (caller_array(np.ones((1, 8, 9, 9)), dtype),) * 2 + ((8, 8, 1, 1),), {})
            for dtype in NUMPY_FLOATS[2:]
        ),
        ("conv_backward_bias", (ones(2, 8, 9, 9),), {}),
    ],
}  # fmt: skip

PROBES["gather"] = [("one_hot", (np.arange(4), 6), {})]
BYTES, LONG = ones(33, 64, dtype=np.uint8), ones(1, 300000)
#: Arguments that each function of quantised integers takes.
QUANTIZED = {
    "quantize": (ones(33, 64), 0.5),
    "dequantize": (BYTES, 0.5),
    "dynamic_quantize": (ones(33, 64),),
    "gemm_integer": (BYTES, ones(64, 5, dtype=np.int8)),
    "qlinear_gemm": (BYTES, 0.5, 3, ones(64, 5, dtype=np.int8), 0.5, 0, 0.5, np.uint8(7)),
    "qlinear_add": (BYTES, 0.5, 3, BYTES, 0.5, 3, 0.5, np.uint8(7)),
    "qlinear_global_avg_pool": (BYTES[None], 0.5, 3, 0.5, np.uint8(7)),
    "qlinear_avg_pool": (BYTES[None], 0.5, 3, 0.5, np.uint8(7), 2),
    "qlinear_activation": (BYTES, "relu", 0.5, 3, 0.5, np.uint8(7)),
}
PROBES["quantize"] = [
    *((name, QUANTIZED[name], {}) for name in ("quantize", "dequantize", "qlinear_add", "qlinear_activation")),
    *(("dynamic_quantize", (x,), {"axis": axis}) for x in (ones(33, 64), LONG) for axis in (0, 1)),
    ("quantize", (ones(33, 64)[:, ::2], 0.5), {}), ("dynamic_quantize", (LONG,), {}),
]  # fmt: skip
PROBES["random"] = [(f"random_{kind}", (100,), {"seed": 1}) for kind in ("uniform", "normal")]
#: Those of the primitives that are formulas, and of recurrent networks: the calls of the contract suite, in float32.
FORMULAS = {}
for _call in CALLS:
    with numbaprims.config(device="reference"):  # a gradient is given what training keeps
        _args, _words = _call.given(*made(_call, "f32"))
    if _words.get("reduction", "mean") == "mean":  # what it is without being said
        FORMULAS.setdefault(_call.function, (_args, _words))
    PROBES.setdefault(STEM_OF[_call.function], []).append((_call.function, _args, _words))
PROBES["attention"] += [
    ("attention", (caller_array(np.ones((1, 2, 8, 16)), dtype),) * 3, {}) for dtype in NUMPY_FLOATS[3:]
]
#: Solvers that take no other type than bf16, where NumPy has none.
OF_BF16 = {} if "bf16" in NUMPY_FLOATS else {"conv": ("weight_gemm_amx",), "attention": ("flash_amx",)}

#: Arguments that each function of conv takes.
CONV_ARGUMENTS = {
    "conv": (ones(1, 4, 6, 6), ones(5, 4, 3, 3)),
    "conv_backward_data": (ones(1, 5, 4, 4), ones(5, 4, 3, 3), (1, 4, 6, 6)),
    "conv_backward_weight": (ones(1, 5, 4, 4), ones(1, 4, 6, 6), (5, 4, 3, 3)),
    "conv_backward_bias": (ones(1, 5, 4, 4),),
    "conv_transpose": (ones(1, 4, 6, 6), ones(4, 5, 3, 3)),
    "conv_transpose_backward_data": (ones(1, 5, 8, 8), ones(4, 5, 3, 3)),
    "conv_transpose_backward_weight": (ones(1, 5, 8, 8), ones(1, 4, 6, 6), (4, 5, 3, 3)),
    "conv_integer": (ones(1, 4, 6, 6, dtype=np.uint8), ones(5, 4, 3, 3, dtype=np.int8)),
    "qlinear_conv": (
        ones(1, 4, 6, 6, dtype=np.uint8), 0.5, 3, ones(5, 4, 3, 3, dtype=np.int8), 0.25, 0, 0.1, np.uint8(7)
    ),
}  # fmt: skip

NO_PROBLEM = ("config", "explain", "find", "fuse", "tune", "share_cpus", "FusionPlan", "RnnWeights", "rope_frequencies")
FUNCTIONS = [name for name in numbaprims._LAZY if name not in NO_PROBLEM]


def keywords(name):
    """Those without which a public function is no call."""
    return {"seed": 1} if name in PUBLIC["random"] else {}


def arguments(name):
    """Arguments of a public function that it takes."""
    x, y = np.full((4, 6), 0.5, np.float32), np.full(6, 0.5, np.float32)
    if name in ("gemm", "linear"):
        return (x, x.T) if name == "gemm" else (x, x, np.ones(4, np.float32))
    if name in ("gemv", "ger"):
        return (x, y) if name == "gemv" else (y, y)
    if name in FORMULAS:
        return FORMULAS[name][0]
    if name == "one_hot":
        return (np.arange(4), 6)
    if name == "fill":
        return (x, 0.25)
    if name.startswith("random"):
        return ((4, 6),)
    if STEM_OF.get(name) == "ctc":
        return (np.linspace(-3, 0, 40, dtype=np.float32).reshape(4, 2, 5),)
    if name in QUANTIZED:
        return QUANTIZED[name]
    if "conv" in name:
        return CONV_ARGUMENTS[name]
    if name.startswith("activation"):
        return (x, "gelu") if name == "activation" else (x, x, x, "gelu")
    kind = name.removesuffix("_backward")
    extra = {"prelu": (np.full(6, 0.1, np.float32),), "threshold": (0.5, 1.0)}.get(kind, ())
    if kind == name:
        return (x, *extra)
    saved = (x,) if KINDS[ALIASES.get(kind, (kind,))[0]].reads else ()
    return (x[:, :3] if kind == "glu" else x, *saved, *extra)
