"""gemm on tensor cores by mma.sync: against the definition, in the emulator with all of its checks."""

import re

import numpy as np
import pytest
from helpers import assert_close, assert_exact, exact_integers, from_float64, in_library, real_values, to_float64
from ptx_emulator import EmulatorError, launch
from ptx_emulator.driver import EmulatedDriver

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.gpu import driver
from numbaprims.gpu.gemm.arguments import batch_of, common_ints
from numbaprims.gpu.gemm.mma import TILES, make_mma
from numbaprims.gpu.gemm.mma_solvers import Mma, MmaSplitK, width_of
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.target import A100, H100, H200, GpuTarget
from numbaprims.ops.gemm import PROBLEMS
from numbaprims.reference import gemm as reference


def forced(solver="mma"):
    return numbaprims.config(algorithm={"gemm": solver}, allow_tf32=True)


def store(values, dtype):
    """float64 or integers as an array of the dtype."""
    return values if dtype in ("i8", "u8", "i32") else in_library(from_float64(values, dtype), dtype)


def padded(values, dtype, turned=False, pad=16):
    """On the device, rows a multiple of `pad` elements apart; `turned`: columns contiguous instead."""
    rows, columns = values.shape[::-1] if turned else values.shape
    wide = np.zeros((rows, -(-max(columns, 1) // pad) * pad), values.dtype)
    wide[:, :columns] = values.T if turned else values
    x = to_device(store(wide, dtype))[:, :columns]
    return x.T if turned else x


def host(x):
    result = x.to_host()
    return result.view(np.uint16) if result.itemsize == 2 else result


def check(m, n, k, dtype="f16", a_layout="k", b_layout="k", pads=(16, 16), b_dtype=None, tile=None, out_dtype=None):
    """Integers whose sums are exact must come out bit for bit, over a result full of NaN."""
    rng = np.random.default_rng(m * n + k)
    b_dtype = b_dtype or dtype
    a, b = exact_integers((m, k), dtype, k, rng), exact_integers((k, n), b_dtype, k, rng)
    expected = reference.gemm(a, b)
    out_dtype = out_dtype or ("i32" if dtype in ("i8", "u8") else dtype)
    x, y = padded(a, dtype, a_layout == "x", pads[0]), padded(b, b_dtype, b_layout == "k", pads[1])
    empty = np.full((m, n), -1) if out_dtype == "i32" else np.full((m, n), np.nan)
    out = to_device(empty.astype(np.int32)) if out_dtype == "i32" else to_device(store(empty, out_dtype))
    call = {"out": out, "out_dtype": arrays.LONG_NAMES[out_dtype]}
    with forced():
        if tile is None:
            numbaprims.gemm(x, y, **call)
        else:
            problem = PROBLEMS["gemm"](x, y, **call)
            run = Mma().bind(problem, registry.target("emulated"), {"tile": tile})
            run(*(arrays.enter(z, "z")[0] for z in (out, x, y)), f0=1.0)
    assert_exact(host(out), expected, out_dtype, vacuous=not expected.any())


RAGGED = ((64, 64, 32), (1, 1, 1), (65, 63, 33), (63, 130, 95), (2, 9, 257))


def test_sizes(gpu):
    """One tile, tiles of one row or column, k shorter than a step, longer than the ring."""
    for m, n, k in RAGGED:
        check(m, n, k)
    assert all("_k_k_16_16_64x64" in run.entry for run in gpu.launches)


@pytest.mark.parametrize(
    "dtype, a_layout, b_layout",
    [("f16", "x", "x"), ("bf16", "k", "x"), ("f32", "x", "k")],
)
def test_layouts(gpu, dtype, a_layout, b_layout):
    """Every order of the operands: ldmatrix as it is, turned, and word by word."""
    if dtype == "bf16":
        pytest.importorskip("ml_dtypes")
    for m, n, k in RAGGED[2:4]:
        check(m, n, k, dtype, a_layout, b_layout)
    assert f"_{a_layout}_{b_layout}_16_16_" in gpu.launches[-1].entry


@pytest.mark.parametrize("a_dtype, pads", [("i8", (16, 16)), ("u8", (4, 1))])
def test_bytes(gpu, a_dtype, pads):
    """The whole range of int8 and uint8; copies of 4 bytes, and of single ones."""
    check(33, 70, 65, a_dtype, pads=pads, b_dtype="i8")
    check(64, 64, 64, a_dtype, pads=pads, b_dtype="i8")


@pytest.mark.parametrize("pads", [(4, 2), (1, 8)])
def test_rows_that_are_not_aligned(gpu, pads):
    """f16 rows that begin at multiples of 8, 4 and 2 bytes."""
    check(33, 35, 41 if 1 in pads else 38, pads=pads)
    check(66, 65, 96 + 2 * pads[0] + 3 * (1 in pads), pads=pads)


@pytest.mark.parametrize("tile, dtype, b_layout, sizes", [
    ("128x128", "f16", "x", (129, 127, 70)),
    ("128x256", "f16", "k", (127, 257, 64)),
])  # fmt: skip
def test_large_tiles(gpu, tile, dtype, b_layout, sizes):
    check(*sizes, dtype, "k", b_layout, tile=tile, out_dtype="f32")


def test_views_that_begin_anywhere(gpu):
    """The same shapes and strides at other addresses."""
    rng = np.random.default_rng(3)
    a, b = exact_integers((40, 48), "f16", 32, rng), exact_integers((40, 48), "f16", 32, rng)
    x, y = to_device(store(a, "f16")), to_device(store(b, "f16"))
    for first in (0, 8, 1):
        part = slice(first, first + 32)
        with forced():
            out = numbaprims.gemm(x[:, part], y[:, part], trans_b=True)
        assert_exact(host(out), a[:, part] @ b[:, part].T, "f16")
    assert len({run.entry for run in gpu.launches}) == 2


def test_dimensions_of_one_element(gpu):
    """Whatever their step is, the 16-byte copies of the rows beside them are aligned."""
    rng = np.random.default_rng(14)
    a, b = exact_integers((1, 40), "f16", 40, rng), exact_integers((40, 1), "f16", 40, rng)
    x = padded(np.repeat(a, 2, 0), "f16", pad=45)[:1, :40]
    y = padded(np.repeat(b, 2, 1), "f16", turned=True, pad=45)[:40, :1]
    assert x.strides == (90, 2) and y.strides == (2, 90)
    with forced():
        out = numbaprims.gemm(x, y)
    assert_exact(host(out), a @ b, "f16")
    assert "_k_k_16_16_" in gpu.launches[-1].entry


def test_epilogue(gpu):
    """alpha, beta and c (out itself), bias of either axis, activations; out with contiguous columns."""
    rng = np.random.default_rng(4)
    m, n, k = 40, 72, 50
    a, b = (real_values(shape, "f16", rng) for shape in ((m, k), (k, n)))
    c = real_values((m, n), "f16", rng)
    row, column = real_values((n,), "f16", rng), real_values((m, 1), "f16", rng)
    x, y = (padded(to_float64(z, "f16"), "f16") for z in (a, b))
    for turned, alpha, beta, bias, activation in (
        (False, -0.5, 0.25, row, "relu"), (False, 2.0, 0.0, column, ("clip", {"min": -1.0, "max": 2.0})),
        (True, 1.0, 1.0, row, None), (True, 1.0, 0.5, column, "hard_swish"),
    ):  # fmt: skip
        expected = reference.gemm(
            *(to_float64(z, "f16") for z in (a, b)), c=to_float64(c, "f16"), alpha=alpha, beta=beta,
            bias=to_float64(bias, "f16"), activation=activation,
        )  # fmt: skip
        old = padded(to_float64(c, "f16"), "f16", turned)
        with forced():
            numbaprims.gemm(
                x, y, alpha=alpha, beta=beta, c=old, out=old, activation=activation,
                bias=to_device(in_library(bias, "f16")),
            )  # fmt: skip
        assert_close(host(old), expected, k=k, dtype="f16", max_abs=8 * np.sqrt(k))


def test_compiled_activation_and_float32_result(gpu):
    rng = np.random.default_rng(5)
    a, b = real_values((33, 40), "f16", rng), real_values((40, 40), "f16", rng)
    expected = reference.gemm(to_float64(a, "f16"), to_float64(b, "f16"), activation="silu")
    x, y = (padded(to_float64(z, "f16"), "f16") for z in (a, b))
    with forced():
        out = numbaprims.gemm(x, y, activation="silu", out_dtype="float32")
    assert_close(out.to_host(), expected, k=44, max_abs=np.abs(expected).max() * 5)


def test_tf32_is_asked_for(gpu):
    """Rounded to 10 bits of mantissa; refused unless it is allowed."""
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((40, 64)).astype(np.float32), rng.standard_normal((64, 48)).astype(np.float32)
    x, y = to_device(a), to_device(b)
    with forced():
        out = numbaprims.gemm(x, y).to_host()

    def rounded(z):
        return ((z.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFF_E000)).view(np.float32).astype(np.float64)

    assert_close(out, rounded(a) @ rounded(b), k=64, max_abs=np.abs(out).max() * 2)
    assert np.abs(out - a.astype(np.float64) @ b).max() > 1e-4  # it did round
    with numbaprims.config(algorithm={"gemm": "mma"}), pytest.raises(ValueError, match="allow_tf32"):
        numbaprims.gemm(x, y)


def test_nan_and_infinity(gpu):
    a, b = np.ones((3, 40)), np.ones((40, 8))
    a[1, 3], b[5, 2] = np.nan, np.inf
    with forced():
        out = numbaprims.gemm(padded(a, "f16"), padded(b, "f16"), activation="relu")
    assert_exact(out.to_host().astype(np.float32), np.maximum(a @ b, 0), vacuous=True)


def test_batches(gpu):
    """Even strides, one operand broadcast, and broadcasts that need a table of offsets."""
    rng = np.random.default_rng(7)
    for lead_a, lead_b in (((3,), (3,)), ((3,), ()), ((2, 1), (3,))):
        a, b = (exact_integers((*lead, *z), "f16", 16, rng) for lead, z in ((lead_a, (8, 16)), (lead_b, (16, 24))))
        with forced():
            out = numbaprims.gemm(to_device(store(a, "f16")), to_device(store(b, "f16")))
        assert_exact(host(out), np.matmul(a, b), "f16")


def test_split_k():
    """Chunks of k, one of them shorter; the same bits in any order of the blocks; on an A100's code, too."""
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((17, 1000)), rng.standard_normal((1000, 24))
    results = []
    for options in ({"target": A100}, {"target": A100, "order": "random", "seed": 1}):
        with driver.use(EmulatedDriver(**options)), forced("mma_split_k"):
            out = numbaprims.gemm(padded(a, "f16"), padded(b, "f16"), out_dtype="float32", bias=None)
            results.append(out.to_host())
    np.testing.assert_array_equal(*results)
    halves = (z.astype(np.float16).astype(np.float64) for z in (a, b))
    assert_close(results[0], reference.gemm(*halves), k=1000, max_abs=np.abs(results[0]).max() * 2)
    problem = PROBLEMS["gemm"](np.zeros((17, 1000), np.float16), np.zeros((1000, 24), np.float16))
    chunks, chunk = MmaSplitK()._chunks(problem)
    assert chunks > 1 and chunk % 64 == 0 and (chunks - 1) * chunk < 1000 <= chunks * chunk


def test_refusals_in_words():
    def why(a, b, target=H200, solver=None, **call):
        return (solver or Mma()).why_not(PROBLEMS["gemm"](a, b, **call), target)

    half = np.zeros((64, 64), np.float16)
    assert why(half, half) is None and why(half.T, half) is None
    assert "8.0" in why(half, half, GpuTarget("old", (7, 5), 1, 1e9, 1e9, 1, 1, 1, 1))
    assert "strid" in why(half[::2, ::2], half[:32]) or "contiguous" in why(half[::2, ::2], half[:32])
    byte = np.zeros((64, 64), np.int8)
    assert "int8" in why(byte, byte) and why(byte, byte.T) is None
    assert "float64" in why(np.zeros((4, 4)), np.zeros((4, 4)))
    assert "k is 0" in why(half[:, :0], half[:0])
    assert "short" in why(half, half, solver=MmaSplitK())


def test_choice():
    """Large halves go to large tiles, small ones to small; what must be copied one by one is not worth it."""
    half = np.lib.stride_tricks.as_strided(np.zeros(1, np.float16), (8192, 8192), (16384, 2))
    for target in (A100, H100):
        big = PROBLEMS["gemm"](half, half)
        assert next(iter(Mma().configs(big, target)))["tile"] in ("128x256", "128x128")
        assert next(iter(Mma().configs(PROBLEMS["gemm"](half[:64, :64], half[:64, :64]), target)))["tile"] == "64x64"
        peak = target.peak("f16")
        assert 0.4 < big.flops() / Mma().estimate(big, target) / peak < 1.0
    odd = np.zeros((65, 65), np.float16)
    assert (
        width_of(PROBLEMS["gemm"](odd, odd), 0, 0) == 0 and width_of(PROBLEMS["gemm"](odd[:, :64], odd[:64]), 0, 0) == 0
    )
    assert TILES["128x256"].shared <= A100.shared_per_block


# ---------------------------------------------------------------- planted mistakes


def arguments(m, n, k):
    rng = np.random.default_rng(13)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    problem = PROBLEMS["gemm"](a, b, trans_b=True)
    out = np.full((m, n), np.nan, np.float16)
    bits = [x.view(np.uint16) for x in (out, a, b)]
    none = np.zeros(1, np.uint16)
    values = (
        *bits, none, none, np.zeros(4, np.int64), *common_ints(problem, batch_of(problem)), 0, 1.0, 0.0, 0.0, 0.0, 0.0,
        np.zeros(1, np.float32), -(-m // 64), -(-n // 64), 1, 1 << 20, 0,
    )  # fmt: skip
    return values, -(-m // 64) * -(-n // 64), a.astype(np.float64) @ b.T.astype(np.float64)


def test_mutants():
    """Without a barrier, or without waiting for a copy, the emulator names the mistake; with them it is right."""
    kernel = make_mma("f16", "f16", "f16", "k", "k", 16, 16, "64x64", "switch", False)
    ptx = kernel.ptx("sm_90a")
    sizes = (65, 64, 264)

    def run(text):
        values, blocks, expected = arguments(*sizes)
        launch(text, blocks, kernel.threads, *values, shared=kernel.shared)
        np.testing.assert_array_equal(values[0].view(np.float16), expected)

    run(ptx)
    barriers = [found.span() for found in re.finditer(r"bar\.sync\s+0;", ptx)]
    assert len(barriers) == 3
    for first, last in barriers:
        with pytest.raises(EmulatorError):
            run(ptx[:first] + ptx[last:])
    assert "cp.async.wait_group 2;" in ptx
    for late in ("", "cp.async.wait_group 3;"):
        with pytest.raises(EmulatorError):
            run(ptx.replace("cp.async.wait_group 2;", late))
