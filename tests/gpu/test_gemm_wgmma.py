"""gemm by wgmma and TMA: against the definition, in the emulator with all of its checks.

What the emulator knows of both comes from the PTX manual, as the kernel does; both agreed with the first H100.
"""

import dataclasses
import re

import numpy as np
import pytest
from gpu.test_gemm_mma import host, padded, store
from helpers import assert_close, assert_exact, exact_integers, from_float64, to_float64
from ptx_emulator import EmulatorError
from ptx_emulator.driver import EmulatedDriver

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.gpu import driver
from numbaprims.gpu.gemm.wgmma import TILES, make_wgmma
from numbaprims.gpu.gemm.wgmma_epilogue import BIASED, PLAIN, RELU
from numbaprims.gpu.gemm.wgmma_solver import Wgmma, way_of
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.target import A100, H100, H200
from numbaprims.ops.gemm import PROBLEMS
from numbaprims.reference import gemm as reference

#: A GPU of two multiprocessors, on which few blocks compute many tiles.
SMALL = dataclasses.replace(H200, multiprocessors=2, shared_per_multiprocessor=H200.shared_per_block)


def forced():
    return numbaprims.config(algorithm={"gemm": "wgmma"})


def run(tile, a, b, out, **call):
    """One tile, whatever the cost model says."""
    problem = PROBLEMS["gemm"](a, b, out=out, out_dtype=out_name(out), **call)
    launch = Wgmma().bind(problem, registry.target("emulated"), {"tile": tile})
    launch(*(arrays.enter(z, "z")[0] for z in (out, a, b)), f0=1.0)
    return launch


def out_name(out):
    return str(out.dtype)


def check(m, n, k, dtype="f16", a_layout="k", b_layout="k", tile="64x128", out_dtype=None):
    """Integers whose sums are exact must come out bit for bit, over a result full of NaN."""
    rng = np.random.default_rng(m * n + k)
    a, b = exact_integers((m, k), dtype, k, rng), exact_integers((k, n), dtype, k, rng)
    expected = reference.gemm(a, b)
    x, y = padded(a, dtype, a_layout == "x"), padded(b, dtype, b_layout == "k")
    if out_dtype == "f16":
        out = to_device(np.full((m, n), np.nan, np.float16))
        run(tile, x, y, out)
        np.testing.assert_array_equal(out.to_host(), expected.astype(np.float16))
        return
    out = to_device(np.full((m, n), -1, np.int32) if dtype == "i8" else np.full((m, n), np.nan, np.float32))
    run(tile, x, y, out)
    assert_exact(out.to_host(), expected, "i32" if dtype == "i8" else "f32", vacuous=not expected.any())


def test_sizes(gpu):
    """Whole tiles and ragged ones, k shorter than a stage, the ring of four stages once and a half around."""
    for m, n, k in ((64, 128, 64), (1, 1, 1), (65, 129, 72), (63, 127, 330), (130, 8, 400)):
        check(m, n, k)


@pytest.mark.parametrize("dtype, a_layout, b_layout", [("f16", "x", "x"), ("bf16", "k", "x"), ("i8", "k", "k")])
def test_layouts(gpu, dtype, a_layout, b_layout):
    if dtype == "bf16":
        pytest.importorskip("ml_dtypes")
    check(65, 129, 136, dtype, a_layout, b_layout)


@pytest.mark.parametrize(
    "tile, a_layout, b_layout, sizes",
    [
        ("128x128", "k", "x", (127, 129, 70)), ("128x256", "k", "k", (129, 257, 64)),
        ("64x64", "x", "k", (65, 129, 800)), ("128x256", "x", "x", (129, 264, 400)),
    ],
)  # fmt: skip
def test_tiles(gpu, tile, a_layout, b_layout, sizes):
    check(*sizes, a_layout=a_layout, b_layout=b_layout, tile=tile)


@pytest.mark.parametrize("tile", ["64x64", "128x256"])
@pytest.mark.parametrize("order", ["lowest", "random"])
def test_tile_after_tile(tile, order):
    """Two blocks compute all tiles, of several products: the ring goes on, whichever warp is ahead."""
    gpu = EmulatedDriver(target=SMALL, order=order, seed=1)
    with driver.use(gpu):
        size = TILES[tile]
        check(2 * size.m + 1, 2 * size.n + 1, 330, tile=tile, b_layout="x")
        assert gpu.launches[-1].grid == (2, 1, 1)
        rng = np.random.default_rng(10)
        a, b = (exact_integers(shape, "f16", 16, rng) for shape in ((3, 72, 24), (3, 24, 80)))
        out = to_device(np.full((3, 72, 80), np.nan, np.float32))
        run(tile, to_device(store(a, "f16")), to_device(store(b, "f16")), out)
        assert_exact(out.to_host(), np.matmul(a, b))


@pytest.mark.parametrize(
    "tile, sizes", [("128x256", (70, 264, 72)), ("128x128", (129, 136, 64)), ("64x64", (17, 8, 130))]
)
def test_short_end(gpu, tile, sizes):
    """16-bit results leave by stmatrix and 16-byte stores; not so rows of an odd number of elements, or that begin
    elsewhere."""
    m, n, k = sizes
    check(*sizes, tile=tile, out_dtype="f16")
    check(m, n - 3, k, tile=tile, out_dtype="f16")
    rng = np.random.default_rng(11)
    a, b = exact_integers((m, k), "f16", k, rng), exact_integers((k, n), "f16", k, rng)
    whole = to_device(np.zeros((m, n + 8), np.float16))
    x, y = padded(a, "f16"), padded(b, "f16")
    for begin in (4, 8):
        run(tile, x, y, whole[:, begin : begin + n])
        np.testing.assert_array_equal(whole.to_host()[:, begin : begin + n], reference.gemm(a, b).astype(np.float16))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("first, activation", [(0, "relu"), (2, None), (1, "relu")])
def test_short_end_with_a_bias(gpu, dtype, first, activation):
    """A bias that begins at an odd element goes the other way; both give the same."""
    if dtype == "bf16":
        pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(12)
    m, n, k = 70, 136, 72
    a, b, bias = (exact_integers(shape, dtype, k, rng) for shape in ((m, k), (k, n), (n + 2,)))
    with forced():
        out = numbaprims.gemm(
            padded(a, dtype), padded(b, dtype), bias=to_device(store(bias, dtype))[first : first + n],
            activation=activation,
        )  # fmt: skip
    expected = reference.gemm(a, b, bias=bias[first : first + n], activation=activation)
    assert_exact(host(out), expected, dtype)


def test_which_end():
    half = np.zeros((64, 64), np.float16)

    def asked(pointer=0, out=None, **call):
        out = half.copy() if out is None else out
        return way_of(PROBLEMS["gemm"](half, half, out=out, out_dtype=out.dtype, **call), pointer)

    assert asked() == asked(alpha=2.0) == PLAIN and asked(activation="relu") == RELU
    assert asked(bias=half[0]) == asked(bias=half[0], activation="relu") == BIASED
    assert not asked(8) and not asked(out=np.zeros((64, 64), np.float32))
    padded_rows = [np.zeros((64, 64 + pad), np.float16)[:, :64] for pad in (4, 8)]
    assert not asked(out=padded_rows[0]) and asked(out=padded_rows[1]) == PLAIN
    assert not asked(bias=half[:, :1]) and not asked(bias=np.zeros(128, np.float16)[::2])
    assert not asked(activation="gelu") and not asked(activation="hard_swish") and not asked(c=half.copy(), beta=1.0)


def test_batches(gpu):
    rng = np.random.default_rng(7)
    for lead_a, lead_b in (((3,), (3,)), ((3,), ())):
        a, b = (exact_integers((*lead, *z), "f16", 16, rng) for lead, z in ((lead_a, (8, 24)), (lead_b, (24, 16))))
        with forced():
            # transposed, or the batch would be one taller product where b has none
            out = numbaprims.gemm(to_device(store(a.swapaxes(-1, -2), "f16")), to_device(store(b, "f16")), trans_a=True)
        assert_exact(host(out), np.matmul(a, b), "f16")


def test_order_does_not_matter():
    """Any order of warps and blocks gives the same bits: the ring's barriers hold it together."""
    rng = np.random.default_rng(8)
    a, b = (from_float64(rng.standard_normal(shape), "f16") for shape in ((64, 400), (400, 128)))
    results = []
    for options in ({}, {"order": "random", "seed": 1}, {"order": "random", "seed": 2}):
        with driver.use(EmulatedDriver(**options)):
            out = to_device(np.full((64, 128), np.nan, np.float32))
            run("64x128", padded(to_float64(a, "f16"), "f16"), padded(to_float64(b, "f16"), "f16"), out)
            results.append(out.to_host())
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    expected = reference.gemm(to_float64(a, "f16"), to_float64(b, "f16"))
    assert_close(results[0], expected, k=400, max_abs=np.abs(expected).max() * 3)


def test_refusals_in_words():
    def why(a, b, target=H200):
        return Wgmma().why_not(PROBLEMS["gemm"](a, b), target)

    half = np.zeros((64, 64), np.float16)
    assert why(half, half) is None and why(half.T, half.T) is None
    assert "9.0" in why(half, half, A100)
    assert "tfloat32" in why(*[half.astype(np.float32)] * 2)
    assert "16 bytes" in why(half[:, :63].copy(), half[:63])
    byte = np.zeros((64, 64), np.int8)
    assert "int8" in why(byte, byte) and why(byte, byte.T) is None
    assert "one type" in why(byte.view(np.uint8), byte.T)
    wide = np.zeros((2, 3, 4, 16, 16), np.float16)
    assert "evenly" in why(wide[:, :1], wide[:1])


def test_choice():
    """Large halves are wgmma's on a 9.0, with the widest tile; the same on an A100 are mma's."""
    half = np.lib.stride_tricks.as_strided(np.zeros(1, np.float16), (8192, 8192), (16384, 2))
    problem = PROBLEMS["gemm"](half, half)
    assert 0.6 < problem.flops() / Wgmma().estimate(problem, H200) / H200.peak("f16") < 1.0
    assert all(tile.shared <= H200.shared_per_block for tile in TILES.values())
    for sizes, tile in (
        ((8192, 8192, 8192), "128x256"), ((2048, 2048, 2048), "128x256"), ((4096, 1024, 1024), "128x128"),
        ((1024, 1024, 1024), "64x128"), ((512, 512, 512), "64x64"), ((16, 4096, 4096), "64x64"),
    ):  # fmt: skip
        m, n, k = sizes
        a, b = (np.lib.stride_tricks.as_strided(half, shape, (2 * shape[1], 2)) for shape in ((m, k), (k, n)))
        assert next(iter(Wgmma().configs(PROBLEMS["gemm"](a, b), H100)))["tile"] == tile, sizes


MISTAKES = [
    ("128x256", "wait of wgmma", r"wgmma\.wait_group\.sync\.aligned 0;", ""),
    ("64x128", "wait for all but one", r"wgmma\.wait_group\.sync\.aligned 1;", "wgmma.wait_group.sync.aligned 2;"),
    ("64x128", "arrival at the empty stage", r"mbarrier\.arrive\.shared::cta\.b64 _, \[%r\d+\];", ""),
    ("64x128", "warp barrier of the end", r"bar\.warp\.sync 0xffffffff;", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    "tile, what, pattern, instead", MISTAKES, ids=[f"{tile}-{what}" for tile, what, *_ in MISTAKES]
)
def test_mutants(monkeypatch, tile, what, pattern, instead):
    """Without one of its barriers or waits the emulator names the mistake."""
    kernel = make_wgmma("f16", "f16", "f32", "k", "k", tile, "switch")
    ptx = kernel.ptx("sm_90a")
    rng = np.random.default_rng(9)
    m, n, k = 3 * TILES[tile].m, TILES[tile].n, 70 * TILES[tile].stages
    a, b = exact_integers((m, k), "f16", k, rng), exact_integers((k, n), "f16", k, rng)

    def outcome(text):
        image = kernel.image("sm_90a")
        monkeypatch.setitem(kernel._images, "sm_90a", image._replace(ptx=text))
        with driver.use(EmulatedDriver(target=SMALL)):
            out = to_device(np.full((m, n), np.nan, np.float32))
            run(tile, padded(a, "f16"), padded(b, "f16", True), out)
            np.testing.assert_array_equal(out.to_host(), reference.gemm(a, b))

    outcome(ptx)
    changed, count = re.subn(pattern, instead, ptx)
    assert count
    with pytest.raises(EmulatorError):
        outcome(changed)
