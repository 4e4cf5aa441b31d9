# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # CPU and GPU
#
# The same public functions run on both: the arrays decide. This notebook measures the CPU that it runs on, and the GPU
# where there is one; else it shows stored results of a GPU, and where none are stored it says so.

# %%
import json
import pathlib

import numpy as np

import numbaprims as nbp
from numbaprims.cpu import target as cpu
from numbaprims.gpu import driver
from numbaprims.tuning.timing import Schedule, measure_one

try:
    has_gpu, why = driver.current() is not None, ""
except Exception as error:  # no driver, no GPU, no numba-cuda: each says so
    has_gpu, why = False, str(error).splitlines()[0]
here = cpu.current()
print(f"CPU: {here.isa}, vectors of {here.vector_bytes} bytes")
print("GPU: measured here" if has_gpu else f"GPU: none here ({why})")

# %% [markdown]
# ## Products and activations, by size

# %%
rng = np.random.default_rng(0)
SIZES = (64, 256, 1024)


def cases():
    """(name, operations, bytes, a function of arrays, its arrays)."""
    for n in SIZES:
        a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
        yield f"gemm {n}", 2 * n**3, 12 * n * n, nbp.gemm, (a, b)
    for n in SIZES:
        x = rng.standard_normal(n * n, dtype=np.float32)
        yield f"gelu {n * n}", n * n, 8 * n * n, nbp.gelu, (x,)


on_cpu = {name: measure_one(lambda: call(*arrays)).seconds for name, _, _, call, arrays in cases()}  # noqa: B023
for name, seconds in on_cpu.items():
    print(f"{name:14s} {seconds * 1e6:9.1f} us")

# %% [markdown]
# The GPU's clock is events in its stream; copies to and from it are not in these times.

# %%
on_gpu = {}
if has_gpu:
    from numbaprims.gpu.memory import to_device

    clock = driver.current().clock()
    for name, _, _, call, arrays in cases():
        there = [to_device(array) for array in arrays]
        timing = measure_one(lambda: call(*there), Schedule(resolution=1e-3), clock=clock)  # noqa: B023
        on_gpu[name] = timing.seconds
        print(f"{name:14s} {on_gpu[name] * 1e6:9.1f} us, {on_cpu[name] / on_gpu[name]:6.1f} x the CPU")

# %% [markdown]
# ## Stored results of GPUs
#
# `numbaprims bench gemm --device cuda --save benchmarks/results` stores them, against torch (cuBLAS) on the same GPU.

# %%
root = next((p for p in (pathlib.Path.cwd(), *pathlib.Path.cwd().parents) if (p / "benchmarks/results").is_dir()), None)
stored = []
for path in sorted(root.glob("benchmarks/results/*/gemm*.json")) if root else []:
    document = json.loads(path.read_text())
    stored += [(path.parent.name, r) for r in document["records"] if str(r.get("device", "cpu")).startswith("cuda")]
for machine, record in stored:
    print(machine, record["label"], f"{record['seconds'] * 1e6:.1f} us", record.get("rivals"))
if not stored:
    print("none: no GPU has run this library's kernels yet; they are compiled and emulated")

# %% [markdown]
# ## What the bounds say
#
# Not measurements: the least time that the bytes and operations of a call take on the GPU as its data sheet has it, and
# the estimate by which dispatch would choose there.

# %%
from numbaprims.gpu.target import H200  # noqa: E402

print(f"{H200.name}: {H200.bandwidth / 1e12:.1f} TB/s, {H200.peak('f32') / 1e12:.0f} TFLOP/s in float32")
for name, operations, moved, _, _ in cases():
    bound = max(operations / H200.peak("f32"), moved / H200.bandwidth)
    print(f"{name:14s} at least {bound * 1e6:7.2f} us there; here {on_cpu[name] * 1e6:9.1f} us")
