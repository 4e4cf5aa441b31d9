"""Helpers in kernels: copies that do not meet, nested, in loops, with branches and default values."""

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba.core import typed_passes, untyped_passes

from numbaprims import kernel_passes
from numbaprims.cpu import compiler
from numbaprims.cpu.jit import helper, range_kernel
from numbaprims.cpu.simd import Arguments, load_scalar, store_scalar

ARGS = Arguments(arrays=("out", "a"), ints=("n",))


@helper
def clipped(x, low, high=9):
    if x < low:
        return low
    if x > high:
        return high
    return x


@helper
def digits(a, n, step):
    total = 0
    for i in range(n):
        total = 10 * total + clipped(load_scalar(a, i * step), 1)
    return total


def make(step: int):
    @range_kernel("test_inlined", ARGS.types(out="i64", a="i64"), spec=(step,))
    def inlined(args, worker, lo, hi):
        total = 5  # a name that the helper has too
        x = digits(args.a, args.n, step)
        y = digits(args.a, 2, 1) + digits(args.a, 1, 1)
        for i in range(2):
            total += clipped(clipped(i, 1, high=3) + 7, 0)
        store_scalar(args.out, 0, x)
        store_scalar(args.out, 1, y)
        store_scalar(args.out, 2, total)

    return inlined


def test_helpers_are_inlined_as_functions_are_called():
    for step in (1, 2):
        out, a = np.zeros(3, np.int64), np.array([3, -4, 70, 1, 5, 6], np.int64)
        words = np.zeros(80, np.int64)
        words[:2], words[ARGS.slot("n")] = (out.ctypes.data, a.ctypes.data), 3
        ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(make(step).address)(words.ctypes.data, 0, 0, 1)
        x = [clipped.py_func(int(each), 1) for each in a[: 3 * step : step]]
        assert out[0] == int("".join(map(str, x)))
        assert list(out[1:]) == [31 + 3, 5 + 8 + 8]


def test_a_helper_is_analysed_once():
    make(3).inspect_asm()
    found = compiler.passes.analysed[digits.py_func], compiler.passes.analysed[clipped.py_func]
    make(4).inspect_asm()
    assert found == (compiler.passes.analysed[digits.py_func], compiler.passes.analysed[clipped.py_func])


def test_numbas_own_passes_give_the_same_instructions(monkeypatch):
    def instructions():
        lines = make(5).inspect_asm().splitlines()
        names = r'(cfunc\.)?_ZN\w+|"\.const\.<[^"]*"'
        return [re.sub(names, "symbol", line) for line in lines if re.match(r"\t[a-z]", line)]

    ours, own = instructions(), (untyped_passes.ReconstructSSA, untyped_passes.IRProcessing)
    own += (typed_passes.PreLowerStripPhis, typed_passes.NativeLowering)
    monkeypatch.setattr(compiler, "_PASSES", compiler._PASSES | dict(zip(own, own, strict=True)))
    assert len(ours) > 20
    assert instructions() == ours


def test_frames_have_room():
    """Calls at the end of a chunk of Python's frames map one each, whose first page is a fault."""
    resource = pytest.importorskip("resource")

    def leaf():
        pass

    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def most(depth):
        before = faults()
        for _ in range(100):
            leaf()
        here = faults() - before
        return max(here, most(depth - 1)) if depth else here

    with ThreadPoolExecutor(1) as other:  # which has no room yet
        assert other.submit(most, 300).result() >= 100
        assert other.submit(kernel_passes.with_room, most, 300).result() < 50
