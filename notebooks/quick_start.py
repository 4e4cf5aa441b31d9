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
# # Quick start
#
# NumPy arrays go in, NumPy arrays come out. The first call of a kernel compiles it, for a tenth of a second to a few
# seconds; the result is kept on disk for the next process.

# %%
import numpy as np

import numbaprims as nbp

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 784), dtype=np.float32)
w = rng.standard_normal((784, 256), dtype=np.float32)
b = np.zeros(256, np.float32)

h = nbp.gemm(x, w, bias=b, activation="relu")  # product, bias and relu in one pass
h.shape, h.dtype, float(np.abs(h - np.maximum(x @ w + b, 0)).max())

# %% [markdown]
# ## Why is a call fast?
#
# Every primitive has several solvers. `explain` runs nothing: it shows what each one is estimated to take, which is
# chosen, why the others are refused, and the file and line that hold it.

# %%
nbp.explain(nbp.gemm, x, w)

# %% [markdown]
# `find` runs them all, and keeps the times in a database by which later calls choose (`store=False`: not this time).

# %%
image = rng.standard_normal((1, 64, 28, 28), dtype=np.float32)
filters = rng.standard_normal((64, 64, 3, 3), dtype=np.float32)
nbp.find("conv", image, filters, padding=1, store=False)

# %% [markdown]
# ## Layers with fixed weights
#
# A plan packs or transforms its weights once.

# %%
layer = nbp.conv.plan(image.shape, filters, padding=1, activation="relu")
features = layer(image)
features.shape, features.min()

# %% [markdown]
# ## Against NumPy, on this machine
#
# The clock is the library's own: turns of each function in one process, the median of several rounds.

# %%
from numbaprims.tuning.timing import measure  # noqa: E402

sizes = [2**k for k in range(10, 21, 2)]
rows = []
for size in sizes:
    v = rng.standard_normal(size, dtype=np.float32)
    out = np.empty_like(v)
    times = measure({"numbaprims": lambda: nbp.tanh(v, out=out), "numpy": lambda: np.tanh(v, out=out)})  # noqa: B023
    rows.append([times[name].seconds for name in ("numbaprims", "numpy")])

for size, (ours, theirs) in zip(sizes, rows, strict=True):
    print(f"tanh of {size:8d} numbers: {ours * 1e6:8.1f} us, NumPy {theirs * 1e6:8.1f} us, {theirs / ours:5.1f} x")

# %%
import matplotlib.pyplot as plt  # noqa: E402

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for place, name in enumerate(("numbaprims", "numpy")):
    axes.loglog(sizes, [size / row[place] / 1e9 for size, row in zip(sizes, rows, strict=True)], "o-", label=name)
axes.set_xlabel("numbers")
axes.set_ylabel("tanh: 10^9 numbers a second")
_ = axes.legend()
# %% [markdown]
# ## Threads, types, strides
#
# Results are the same bits whatever the number of threads. float64, float32, float16, bfloat16 and int8 are taken, and
# arrays of any strides are read where they lie.

# %%
with nbp.config(threads=1):
    one = nbp.gemm(x, w)
assert np.array_equal(one, nbp.gemm(x, w))
np.testing.assert_allclose(nbp.gemm(x[::2, ::-1], w[::-1]), (x @ w)[::2], rtol=1e-4, atol=1e-3)
