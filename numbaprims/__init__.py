"""Deep-learning primitives in pure Python: explicit SIMD kernels written with Numba, one dispatch layer.

Importing this package loads neither NumPy nor Numba: a public name is imported at its first use (PEP 562).
"""

from sys import modules as _modules

__version__ = "0.1.0"

_KINDS = (
    "identity", "relu", "leaky_relu", "prelu", "clipped_relu", "relu6", "elu", "selu", "celu", "sigmoid",
    "tanh", "softplus", "softsign", "abs", "power", "gelu", "silu", "swish", "mish", "hard_sigmoid",
    "hard_swish", "hard_tanh", "exp", "log", "sqrt", "square", "round", "clip", "threshold", "glu",
)  # fmt: skip

# Public name -> the module that defines it. Written out, so that dir() imports nothing.
_LAZY = {
    "gemm": "ops.gemm",
    "linear": "ops.gemm",
    "gemv": "ops.gemv",
    "ger": "ops.ger",
    **dict.fromkeys(
        (
            "conv",
            "conv_backward_data",
            "conv_backward_weight",
            "conv_backward_bias",
            "conv_transpose",
            "conv_transpose_backward_data",
            "conv_transpose_backward_weight",
        ),
        "ops.conv",
    ),  # fmt: skip
    "conv_integer": "ops.conv_quantized",
    "qlinear_conv": "ops.conv_quantized",
    "activation": "ops.activation",
    "activation_backward": "ops.activation",
    "explain": "dispatch.explain",
    "find": "dispatch.find",
    "tune": "dispatch.tune",
    "share_cpus": "dispatch.scaling",
    "config": "settings",
    **dict.fromkeys(_KINDS, "ops.activation"),
    **{f"{kind}_backward": "ops.activation" for kind in _KINDS},
}

# Without abs and round: `from numbaprims import *` must not replace the built-in functions.
__all__ = ["__version__", *(name for name in _LAZY if name not in ("abs", "round"))]


def __getattr__(name: str) -> object:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'numbaprims' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"numbaprims.{home}"), name)
    globals()[name] = value  # the next use is an ordinary attribute, 30 ns instead of a call
    jitted = _modules.get("numbaprims.jitted")
    if jitted is not None:  # Numba is there: calls of this function inside @njit
        jitted.register(name, value)
    return value


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *_LAZY])
