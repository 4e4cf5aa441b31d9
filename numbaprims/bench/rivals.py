"""The other libraries at their best: no caps in the environment, the same threads, their kernels named."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Variables that slow a rival down or pin it to fewer threads than it is asked for. They are read when the
# libraries load, so the command removes them and runs itself again in a new process.
# OPENBLAS_CORETYPE=Haswell on an AVX-512 machine halves NumPy's products; OMP_WAIT_POLICY=passive puts
# torch's workers to sleep between two calls; a *_NUM_THREADS below the count asked for cannot be raised.
CAPS = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "OPENBLAS_VERBOSE",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_DEFAULT_NUM_THREADS",
    "OPENBLAS_MAIN_FREE",
    "GOTO_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "BLIS_ARCH_TYPE",
    "NPY_DISABLE_CPU_FEATURES",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_CPU_ISA_HINTS",
    "ONEDNN_VERBOSE",
    "DNNL_MAX_CPU_ISA",
    "DNNL_VERBOSE",
    "ATEN_CPU_CAPABILITY",
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY",
    "OMP_DYNAMIC",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "KMP_AFFINITY",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
CAP_PREFIXES = ("MKL_",)
# What holds a run to the instructions of a lesser CPU (`numbaprims bench --cpu`): our kernels by its name, and each
# rival by a variable of its own. onnxruntime has none and is left out.
RESTRICTIONS = {
    "x86-64-v3": {
        "NUMBA_CPU_NAME": "x86-64-v3",
        "NUMBA_CPU_FEATURES": "",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    }
}
# An idle worker of OpenBLAS spins for 2**26 ticks, 25 ms, which is longer than a block: on two cores whoever came
# after NumPy then waited 8 ms for a second thread. With 2**18 it sleeps after 0.1 ms; between NumPy's own calls lies
# less, and its times stay (512 x 512 x 512: 0.61 ms both ways).
SETTLED = {"OPENBLAS_THREAD_TIMEOUT": "18"}

# Parameters of glibc's malloc (malloc.h). torch allocates the result of every convolution. Above 32 MB malloc gives
# such memory back to the system at once, and the next call spends more time on page faults than on arithmetic:
# 16 x 64 x 56 x 56 to 256 channels by 1x1, 51 MB, takes 17 ms instead of 7.3. Programs that care set the same by
# environment variables or another malloc.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

LIBRARIES = ("numpy", "torch", "scipy", "numexpr", "onnxruntime", "cupy")


def caps(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that would cap a rival, with their values."""
    return {name: value for name, value in environ.items() if name in CAPS or name.startswith(CAP_PREFIXES)}


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment without the caps, in which idle workers of rivals go to sleep."""
    capped = caps(environ)
    return {name: value for name, value in environ.items() if name not in capped} | SETTLED


def restricted() -> bool:
    """Whether this process is held to the instructions of a lesser CPU, as `run_again` did it."""
    return any(words.items() <= os.environ.items() for words in RESTRICTIONS.values())


def run_again(module: str, arguments: Mapping[str, Any]) -> int | None:
    """Run ``python -m module JSON`` in a new process without the caps, which libraries read once, when they load.

    `arguments` go there with "removed", the names of the caps; None, and nothing is run, where this process is as good.
    A "cpu" among them is one of RESTRICTIONS.
    """
    capped = caps(os.environ)
    restriction = RESTRICTIONS.get(arguments.get("cpu") or "", {})
    if not capped and not restriction and "numpy" not in sys.modules:
        os.environ.update(SETTLED)
        return None
    text = json.dumps({**arguments, "removed": sorted(capped)}, default=str)
    words = [sys.executable, "-m", module, text]
    return subprocess.run(words, env=clean_environment(os.environ) | restriction, check=False).returncode


@cache
def load_rival(name: str) -> ModuleType | None:
    """A rival's module, or None when it is not installed, or cannot be held to the instructions of this run."""
    if name == "onnxruntime" and restricted():
        return None
    return import_module(name) if find_spec(name) else None


def keep_memory() -> bool:
    """Let malloc keep memory that is freed, where the C library is glibc; whether it does."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def versions() -> dict[str, str]:
    """Version of each rival that is installed."""
    return {name: _version(name) for name in LIBRARIES if find_spec(name)}


def _version(module: str) -> str:
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:  # CuPy's is named by the CUDA that it is for: cupy-cuda13x
        return metadata.version(metadata.packages_distributions()[module][0])


def kernels() -> dict[str, str]:
    """For each rival installed: which compute kernels it selected on this machine."""
    found: dict[str, str] = {}
    pools = _openblas_by_owner()
    for name in ("numpy", "scipy"):
        if load_rival(name) is not None:
            found[name] = pools.get(name, "its own loops (no BLAS found by threadpoolctl)")
    torch = load_rival("torch")
    if torch is not None:
        build = torch.__config__.show()
        mkl = re.search(r"Math Kernel Library Version ([\d.]+)", build)
        found["torch"] = f"ATen {torch.backends.cpu.get_cpu_capability()}"
        if mkl:
            found["torch"] += f", MKL {mkl[1]}" + " (AVX2 code path on AMD)" * _is_amd()
        if torch.backends.mkldnn.is_available():
            version = re.search(r"MKL-DNN (v[\d.]+)", build)
            isa = os.environ.get("ONEDNN_MAX_CPU_ISA") or "this CPU's best ISA"
            found["onednn"] = f"oneDNN {version[1] if version else ''} in torch, for {isa}"
    runtime = load_rival("onnxruntime")
    if runtime is not None:
        found["onnxruntime"] = f"MLAS of {runtime.__version__}, for this CPU's best ISA"
    numexpr = load_rival("numexpr")
    if numexpr is not None:
        found["numexpr"] = "with Intel VML" if numexpr.use_vml else "its own loops, libm"
    return found


def _is_amd() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return "AuthenticAMD" in file.read(4096)
    except OSError:
        return False


def _openblas_by_owner() -> dict[str, str]:
    """NumPy and SciPy bring an OpenBLAS each; the directory says whose it is."""
    if not find_spec("threadpoolctl"):
        return {}
    threadpoolctl = import_module("threadpoolctl")
    if load_rival("scipy") is not None:
        import_module("scipy.linalg.blas")
    found = {}
    for pool in threadpoolctl.threadpool_info():
        if pool.get("user_api") == "blas":
            owner = "scipy" if "scipy.libs" in pool["filepath"] else "numpy"
            kind, version = pool["internal_api"], pool.get("version")
            found[owner] = f"{kind} {version} {pool.get('architecture', '')}".strip()
    return found


@contextlib.contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Give every library, ours included, the same number of threads."""
    import numbaprims

    with contextlib.ExitStack() as stack:
        if find_spec("threadpoolctl"):
            limits = import_module("threadpoolctl").threadpool_limits
            stack.enter_context(limits(limits=count, user_api="blas"))
        torch = load_rival("torch")
        if torch is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(count)
        numexpr = load_rival("numexpr")
        if numexpr is not None:
            stack.callback(numexpr.set_num_threads, numexpr.set_num_threads(count))
        stack.enter_context(numbaprims.config(threads=count))
        yield
