"""A kernel and a solver to test the house with: the outer product, element by element, in any layout."""

import functools

from numbaprims.dispatch.solver import Solver
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, thread_index, types
from numbaprims.gpu.launch import make_launcher, step

THREADS = 64
I32 = types.int32


@device_function
def element(row, column, rows_step, columns_step):
    return I32(row * rows_step + column * columns_step)


@functools.cache
def make_outer(dtype: str, has_a: bool) -> GpuKernel:
    """out = alpha x y^T (+ a); a block for each row.  For f32 and f64, which need no conversion."""
    T = STORAGE[dtype]
    P = types.CPointer(T)
    signature = types.void(P, P, P, P, types.float64, *[I32] * 7)

    @gpu_kernel("toy_outer", signature, spec=(dtype, has_a), threads=THREADS, registers=40)
    def outer(out, x, y, a, alpha, n, out_rs, out_cs, x_step, y_step, a_rs, a_cs):
        row = I32(block_index())
        factor = T(alpha) * x[I32(row * x_step)]
        for column in range(I32(thread_index()), n, THREADS):
            value = factor * y[I32(column * y_step)]
            if has_a:
                value = value + a[element(row, column, a_rs, a_cs)]
            out[element(row, column, out_rs, out_cs)] = value

    return outer


class Toy(Solver):
    """The only one of its list."""

    name = "toy"

    def why_not(self, problem, target):
        return None if problem.dtype in ("f32", "f64") else "it converts nothing"

    def estimate(self, problem, target):
        return problem.bytes_moved() / target.bandwidth

    def bind(self, problem, target, config):
        s = problem.strides
        fixed = (problem.n, *s.out, s.x, s.y, *s.a)

        def values(arrays, floats, scratch):
            out, x, y, a = arrays[:4]
            return (out.pointer, x.pointer, y.pointer, 0 if a is None else a.pointer, floats[0], *fixed)

        return make_launcher([step(make_outer(problem.dtype, problem.has_a), problem.m, values)])


SOLVERS = (Toy(),)
