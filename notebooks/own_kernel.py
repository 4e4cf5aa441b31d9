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
# # A SIMD kernel of your own, as a solver
#
# The primitive is the outer product `ger`, `out = alpha x y^T`. A kernel of one's own computes a band of rows with
# explicit vectors; a solver says when it may be taken and what it costs; `register` lets dispatch know it.
#
# ## Count first
#
# M N multiplications and M N elements stored: at 4 bytes an element the stores are the bound, and a kernel has to do
# nothing but store whole vectors.

# %%
import functools

import numpy as np

import numbaprims as nbp
from numbaprims.cpu.ger.arguments import ARGS, walk
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import advance, lanes, load_first, load_scalar, scalar, splat, store_first
from numbaprims.cpu.solver import Program, Solver
from numbaprims.dispatch import registry

ARGS.arrays, ARGS.floats, ARGS.ints  # noqa: B018

# %% [markdown]
# ## The kernel
#
# `args` has typed pointers and integers; rows `lo` to `hi - 1` are this worker's. `W` lanes are one vector. The factory
# closes over numbers and strings only, and `spec` names them: they are part of the key of the compiled code.


# %%
@functools.cache
def make_bands(dtype: str, W: int):
    @range_kernel("ger_bands", ARGS.types(out=dtype, x=dtype, y=dtype, a=dtype), spec=(dtype, W))
    def ger_bands(args, worker, lo, hi):
        for i in range(lo, hi):
            factor = splat(scalar(load_scalar(args.x, i * args.x_step) * args.alpha, dtype), W)
            row = advance(args.out, i * args.out_rs)
            for j in range(0, args.n, W):
                left = min(args.n - j, W)
                store_first(row, j, left, load_first(args.y, j, left, W) * factor)

    return ger_bands


# %% [markdown]
# ## The solver


# %%
class Bands(Solver):
    """Rows of whole vectors."""

    name = "bands"

    def why_not(self, problem, target):
        if problem.has_a or problem.dtype not in ("f32", "f64"):
            return "it knows no A and no 16-bit types"
        if problem.order != "row" or problem.strides.y != 1 or problem.strides.out[1] != 1:
            return "y and the rows of out must have unit stride"
        return None

    def estimate(self, problem, target):
        return 0.5e-6 + problem.bytes_moved() / 40e9

    def program(self, problem, target, config):
        kernel = make_bands(problem.dtype, lanes(problem.dtype, target.vector_bytes))
        phases = [(kernel, problem.m, max(1, problem.m // 8))]  # so many rows, so many of them at a time
        return Program.of(ARGS, walk(problem)[0], phases, parallel=problem.bytes_moved() > 1e6)


registry.register("ger", Bands())

# %% [markdown]
# ## Right?
#
# Small integers, whose products are exact; every length of the last vector; a result filled with NaN beforehand.

# %%
rng = np.random.default_rng(0)
with nbp.config(algorithm={"ger": "bands"}):
    for n in range(2, 70):
        x, y = (rng.integers(-9, 9, size).astype(np.float32) for size in (33, n))
        out = np.full((33, n), np.nan, np.float32)
        nbp.ger(x, y, alpha=2.0, out=out)
        np.testing.assert_array_equal(out, 2 * np.outer(x, y))
print("right")

# %% [markdown]
# ## Vectors?

# %%
assembly = make_bands("f32", lanes("f32", registry.target("cpu").vector_bytes)).inspect_asm()
loops = [line.strip() for line in assembly.splitlines() if "mul" in line and "mm" in line]
loops[:5]

# %% [markdown]
# ## Quick?
#
# The same call by each solver, timed; then what dispatch takes, by the estimates.

# %%
x, y = rng.standard_normal(1000, dtype=np.float32), rng.standard_normal(1000, dtype=np.float32)
nbp.find("ger", x, y, store=False)

# %%
nbp.explain("ger", x, y, phases=True)

# %%
registry.unregister("ger", "bands")
