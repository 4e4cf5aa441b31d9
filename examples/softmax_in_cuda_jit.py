"""A @cuda.jit kernel of your own with the device functions of this library in it: softmax of the rows of a matrix.

    python examples/softmax_in_cuda_jit.py          # runs where there is a GPU; else shows the code that was made

`numbaprims.gpu.device` has, for any kernel of numba-cuda: sums and maxima over a warp or a block in a fixed order,
loads and stores of 16 bytes, float16 and bfloat16 conversions, and the mathematics of the activations.  Vector accesses
take arrays that are C-contiguous in one dimension, and an index that is a multiple of their length.
"""

import math

import numpy as np
from numba import cuda, float32, types

from numbaprims.gpu.device.block import block_max, block_sum
from numbaprims.gpu.device.math import exp
from numbaprims.gpu.device.memory import load_vector, store_vector

WARPS = 4
THREADS = 32 * WARPS


@cuda.jit
def softmax_rows(out, x, columns):
    """A block takes a row: out[row] = exp(x[row] - max) / sum.  Three passes, the last two over what is in the caches.

    x and out are flat; columns is a multiple of 4, so that four elements are one access.
    """
    scratch = cuda.shared.array(WARPS, float32)
    first = cuda.blockIdx.x * columns
    lane = cuda.threadIdx.x * 4
    largest = float32(-math.inf)
    for j in range(lane, columns, 4 * THREADS):
        for value in load_vector(x, first + j, 4):
            largest = max(largest, value)
    largest = block_max(largest, scratch, WARPS)
    total = float32(0)
    for j in range(lane, columns, 4 * THREADS):
        for value in load_vector(x, first + j, 4):
            total += exp(value - largest)
    total = block_sum(total, scratch, WARPS)
    for j in range(lane, columns, 4 * THREADS):
        a, b, c, d = load_vector(x, first + j, 4)
        store_vector(
            out,
            first + j,
            (exp(a - largest) / total, exp(b - largest) / total, exp(c - largest) / total, exp(d - largest) / total),
        )


SIGNATURE = types.void(types.float32[::1], types.float32[::1], types.int32)


def main() -> None:
    rows, columns = 1000, 4096
    if not cuda.is_available():
        ptx, _ = cuda.compile(softmax_rows.py_func, SIGNATURE, cc=(9, 0), device=False, abi="numba")
        wanted = ("ld.global", "st.global", "shfl", "bar.sync", "fma.rn")
        print("no GPU here; the kernel compiles to PTX with")
        for word in wanted:
            print(f"  {sum(word in line for line in ptx.splitlines()):3d} lines of {word}")
        return
    x = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
    out = cuda.device_array(rows * columns, np.float32)
    softmax_rows[rows, THREADS](out, cuda.to_device(x.reshape(-1)), columns)
    want = np.exp(x - x.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    print("largest error:", float(np.abs(out.copy_to_host().reshape(rows, columns) - want).max()))


if __name__ == "__main__":
    main()
