"""Kernels run in threads with small stacks, and what one takes of the stack is bounded."""

import subprocess
import sys

import pytest
from frames import LARGEST, frame_bytes

from numbaprims import settings
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import Arguments, stack_array, types

pytestmark = pytest.mark.cpu

#: Every solver of every call in a thread of 128 kB; what compiles has run before, in a thread of any size.
SMALL_STACK = """
import threading
import numpy as np
import numbaprims
from numbaprims.dispatch import registry

rng = np.random.default_rng(0)

def calls():
    x, dy = (rng.standard_normal((1, 40, 21, 21)).astype(np.float32) for _ in range(2))
    for taps in (3, 14):
        w = rng.standard_normal((40, 40, taps, taps)).astype(np.float32)
        yield "conv", numbaprims.conv, (x, w), {"padding": "same"}
    yield "conv", numbaprims.conv_backward_weight, (dy, x, (40, 40, 3, 3)), {"padding": 1}
    a = rng.standard_normal((150, 150))
    yield "gemm", numbaprims.gemm, (a, a), {}
    yield "gemv", numbaprims.gemv, (a, a[0].copy()), {}
    yield "gemv", numbaprims.gemv, (a.T, a[0].copy()), {}
    yield "activation", numbaprims.glu_backward, (a[:75].T, a.T), {}

def solvers():
    for stem, function, args, kwargs in calls():
        table = numbaprims.explain(function, *args, **kwargs)
        for solver in registry.solvers(stem, "cpu"):
            if table[solver.name].refusal is None:
                yield stem, solver.name, function, args, kwargs

def run(todo):
    for stem, name, function, args, kwargs in todo:
        with numbaprims.config(threads=1, algorithm={stem: name}):
            results.append(function(*args, **kwargs))

todo, results = list(solvers()), []
run(todo)
wanted, results = results, []
threading.stack_size(128 << 10)
thread = threading.Thread(target=run, args=(todo,))
thread.start()
thread.join()
assert len(wanted) == len(results) > 30, (len(wanted), len(results))
assert all(np.array_equal(x, y) for x, y in zip(wanted, results)), "other bits"
assert {"winograd_fused", "winograd_pieces", "winograd_weight", "fft", "fft_weight", "rows"} <= {one[1] for one in todo}
"""


def test_every_solver_runs_in_a_thread_of_128_kB():
    done = subprocess.run([sys.executable, "-c", SMALL_STACK], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


def make_array(size):
    @range_kernel("test_stack_bytes", Arguments(arrays=("out",)).types(out="f64"), spec=(size,))
    def test_stack_bytes(args, worker, lo, hi):
        room = stack_array("f64", size)
        for i in range(lo, hi):
            room[i] = args.out[i]
        for i in range(lo, hi):
            args.out[i] = room[hi - i - 1]

    return test_stack_bytes


def test_larger_arrays_are_refused_at_compile_time():
    assert make_array(types.STACK_BYTES // 8).address
    with pytest.raises(ValueError, match="workspace"):
        make_array(types.STACK_BYTES // 8 + 8).address  # noqa: B018


def test_the_gate_reads_frames(monkeypatch, tmp_path):
    """A frame that is too large is seen, whatever made it so: conftest has every kernel of every test checked."""
    monkeypatch.setattr(settings, "_default", settings._default)  # what is changed below comes back
    settings.set_defaults(cache_dir=tmp_path)
    for size in (12 << 10, 26 << 10):
        code = make_array(size // 8)._compile()._library._compiled_object
        assert abs(frame_bytes(code) - size) <= 4096
    monkeypatch.setattr(types, "STACK_BYTES", 1 << 20)
    with pytest.raises(AssertionError, match=f"{LARGEST} are allowed"):
        make_array((LARGEST + 4096) // 8).address  # noqa: B018
