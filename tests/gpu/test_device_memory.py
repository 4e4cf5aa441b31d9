"""gpu/device/memory.py: vector accesses and conversions against NumPy, in the emulator; the instructions they are."""

import functools

import numpy as np
import pytest
from ptx_emulator import EmulatorError, launch

from numbaprims.gpu.device.memory import (
    advance,
    load_vector,
    load_wide,
    load_wide_readonly,
    narrow,
    pack_halves,
    store_narrow,
    store_vector,
    widen,
)  # fmt: skip
from numbaprims.gpu.jit import STORAGE, gpu_kernel, thread_index, types

ARCHS = ("sm_80", "sm_90a")
COUNTS = {"f32": 4, "f64": 2, "f16": 8, "bf16": 8, "i8": 16, "u8": 16, "i32": 4}
NUMPY = {
    "f32": np.float32, "f64": np.float64, "f16": np.uint16, "bf16": np.uint16, "i8": np.int8, "u8": np.uint8,
    "i32": np.int32,
}  # fmt: skip
REGISTERS = {"f64": types.float64, "i8": types.int32, "u8": types.int32, "i32": types.int32}
U32 = types.uint32
THREADS = 64


def round_bf16(x: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16, nearest even; NaN is one NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


def to_float(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@functools.cache
def make_copy(dtype: str, readonly: bool):
    """out = x by whole vectors, widened and narrowed on the way; wide = the widened elements."""
    T, R = STORAGE[dtype], REGISTERS.get(dtype, types.float32)
    count = COUNTS[dtype]
    load = load_wide_readonly if readonly else load_wide
    P = types.CPointer

    if readonly:

        @gpu_kernel("test_copy", types.void(P(T), P(R), P(T)), (dtype, readonly), threads=THREADS, registers=64)
        def copy(out, wide, x):
            at = U32(thread_index() * U32(count))
            values = load_wide_readonly(x, at, count, dtype)
            store_narrow(out, at, values, dtype)
            for e in range(count):
                wide[U32(at + U32(e))] = values[e]

        return copy

    @gpu_kernel("test_copy", types.void(P(T), P(R), P(T)), (dtype, readonly), threads=THREADS, registers=64)
    def copy_plain(out, wide, x):
        at = U32(thread_index() * U32(count))
        values = load_wide(x, at, count, dtype)
        store_vector(out, at, load_vector(x, at, count))
        for e in range(count):
            wide[U32(at + U32(e))] = values[e]

    del load
    return copy_plain


@pytest.mark.parametrize("dtype", COUNTS)
@pytest.mark.parametrize("readonly", [False, True])
def test_vectors(dtype: str, readonly: bool):
    rng = np.random.default_rng(1)
    size = THREADS * COUNTS[dtype]
    x = rng.integers(0, 256, size * np.dtype(NUMPY[dtype]).itemsize, np.uint8).view(NUMPY[dtype])
    out = np.zeros_like(x)
    wide_type = np.float32 if dtype in ("f32", "f16", "bf16") else np.float64 if dtype == "f64" else np.int32
    wide = np.zeros(size, wide_type)
    kernel = make_copy(dtype, readonly)
    launch(kernel, 1, THREADS, out, wide, x, uninitialised=(0, 1))
    expected = to_float(x, dtype) if dtype in ("f16", "bf16") else x.astype(wide_type)
    np.testing.assert_array_equal(wide, expected)
    if dtype in ("f16", "bf16"):  # a NaN stays one, its payload may not
        np.testing.assert_array_equal(to_float(out, dtype), expected)
    else:
        np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8"])
def test_vectors_are_one_instruction(dtype: str):
    for arch in ARCHS:
        used = make_copy(dtype, True).resources(arch)
        assert used.spills == used.stack == 0
        if used.opcodes:
            assert used.count("LDG.E.128.CONSTANT") == 1 and used.has("STG.E.128"), (arch, used.opcodes)
            assert not used.has("F2F.F64") and not used.has("CALL") and not used.has("LDL")


def test_a_vector_out_of_line_or_bounds_is_found():
    kernel = make_copy("f32", False)
    x, out, wide = np.zeros(255, np.float32), np.zeros(256, np.float32), np.zeros(256, np.float32)
    with pytest.raises(EmulatorError, match="bounds"):
        launch(kernel, 1, THREADS, out, wide, x)


@functools.cache
def make_round(dtype: str):
    """out[i] = x[i] rounded to a half precision, four ways: alone, as the low and high half of a pair, by vectors."""
    T, F, P = STORAGE[dtype], types.float32, types.CPointer

    @gpu_kernel("test_round", types.void(P(T), P(T), P(T), P(F), P(F)), (dtype,), threads=THREADS, registers=64)
    def convert(alone, pairs, vectors, back, x):
        i = thread_index()
        alone[i] = narrow(x[i], dtype)
        pair = pack_halves(x[i], x[U32(i ^ U32(1))], dtype)
        pairs[i] = types.uint16(pair & U32(0xFFFF))
        pairs[U32((i ^ U32(1)) + U32(THREADS))] = types.uint16(pair >> U32(16))
        back[i] = widen(narrow(x[i], dtype), dtype)
        if i < U32(THREADS // 4):
            store_narrow(advance(vectors, 4 * i), 0, load_vector(x, U32(i * U32(4)), 4), dtype)

    return convert


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rounding(dtype: str):
    hard = np.array(
        [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 65504.0, 65519.9, 65520.0, -65536.0, 3.4e38, 1e-8, 5.9604645e-8,
         2.98e-8, -3e-8, 6.1e-5, 1e-40, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8,
         1.0 + 2.0**-8 + 2.0**-20],
        np.float32,
    )  # fmt: skip
    # halves between two neighbours: the tie must go to the even one
    ties = (np.arange(1, THREADS - len(hard) + 1, dtype=np.uint32) << np.uint32(16)) + np.uint32(0x3F80_8000)
    x = np.concatenate([hard, ties.view(np.float32)])
    alone, vectors = np.zeros(THREADS, np.uint16), np.zeros(THREADS, np.uint16)
    pairs, back = np.zeros(2 * THREADS, np.uint16), np.zeros(THREADS, np.float32)
    launch(make_round(dtype), 1, THREADS, alone, pairs, vectors, back, x, uninitialised=(0, 1, 2, 3))
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).view(np.uint16) if dtype == "f16" else round_bf16(x)
    for result in (alone, pairs[:THREADS], pairs[THREADS:], vectors):
        np.testing.assert_array_equal(to_float(result, dtype), to_float(expected, dtype))
        finite = ~np.isnan(x)
        np.testing.assert_array_equal(result[finite], expected[finite])  # signs of zero too
    np.testing.assert_array_equal(back, to_float(expected, dtype))
    assert np.isnan(back).sum() == 2
