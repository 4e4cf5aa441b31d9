"""Deep-learning primitives in pure Python: explicit SIMD kernels written with Numba, one dispatch layer.

Importing this package loads neither NumPy nor Numba: a public name is imported at its first use (PEP 562).
"""

from sys import modules as _modules

from numbaprims.stems import FAST as _FAST, PUBLIC as _PUBLIC

__version__ = "0.1.0"

# Public name -> the module that defines it; a table, so that dir() imports nothing.
_LAZY = {
    **{name: f"ops.{stem}" for stem, names in _PUBLIC.items() for name in names},
    "conv_integer": "ops.conv_quantized",
    "qlinear_conv": "ops.conv_quantized",
    "gemm_integer": "ops.gemm_quantized",
    "qlinear_gemm": "ops.gemm_quantized",
    **dict.fromkeys(
        ("qlinear_add", "qlinear_global_avg_pool", "qlinear_avg_pool", "qlinear_activation"), "ops.qlinear"
    ),
    "fuse": "fusion.stack_plan",
    "explain": "dispatch.explain",
    "find": "dispatch.find",
    "tune": "dispatch.tune",
    "share_cpus": "dispatch.scaling",
    "config": "settings",
    "FusionPlan": "fusion.fusion_plan",
    "RnnWeights": "recurrent.weights",
    "rope_frequencies": "ops.rope",
}

# Without abs and round: `from numbaprims import *` must not replace the built-in functions.
__all__ = ["__version__", *(name for name in _LAZY if name not in ("abs", "round"))]


def __getattr__(name: str) -> object:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'numbaprims' has no attribute {name!r}")
    from importlib import import_module

    import_module("numbaprims.forks")  # before what takes long: forks wait for it
    value = getattr(import_module(f"numbaprims.{home}"), name)
    if name in _FAST:
        value = import_module("numbaprims.dispatch.fast_path").fast(value)
    globals()[name] = value  # the next use is an ordinary attribute, 30 ns instead of a call
    jitted = _modules.get("numbaprims.jitted")
    if jitted is not None:  # Numba is there: calls of this function inside @njit
        jitted.register(name, value)
    return value


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *_LAZY])
