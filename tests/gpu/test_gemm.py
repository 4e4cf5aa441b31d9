"""gemm on a GPU without tensor cores: every kernel against the definition, in the emulator with all of its checks."""

import dataclasses
import gc
import itertools
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    assert_close,
    assert_exact,
    exact_integers,
    from_float64,
    in_library,
    lay_out,
    nan_filled,
    real_values,
    to_float64,
)
from ptx_emulator import DataRace, launch

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.gpu.gemm import SOLVERS
from numbaprims.gpu.gemm.arguments import batch_of, common_ints
from numbaprims.gpu.gemm.sizes import TILES
from numbaprims.gpu.gemm.solvers import Dmma, Dp4a, Naive, SplitK, Tiled
from numbaprims.gpu.gemm.tiled_kernel import make_tiled
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.target import A100, H100
from numbaprims.ops.gemm import PROBLEMS
from numbaprims.reference import gemm as reference

BENCH = Path(numbaprims.__file__).parent / "bench" / "shapes" / "gemm.toml"


def forced(solver):
    return numbaprims.config(algorithm={"gemm": solver})


def out_dtype_of(dtype):
    return "i32" if dtype in ("i8", "u8") else dtype


def storage_of(values, dtype):
    return values if dtype in ("i8", "u8", "i32") else from_float64(values, dtype)


def device(storage, dtype):
    """An array on the emulated GPU, with the strides of `storage`."""
    return to_device(storage if dtype in ("i8", "u8", "i32") else in_library(storage, dtype))


def host(x):
    """The storage of an array of the GPU."""
    result = x.to_host()
    return result.view(np.uint16) if result.itemsize == 2 else result


def check_exact(solver, dtype, m, n, k, trans_a, trans_b, layout="C", tile=None, b_dtype=None):
    """Integers whose sums are exact, over a result full of NaN, must come out bit for bit."""
    rng = np.random.default_rng(m * n + k)
    b_dtype = b_dtype or dtype
    a = exact_integers((k, m) if trans_a else (m, k), dtype, max(k, 1), rng)
    b = exact_integers((n, k) if trans_b else (k, n), b_dtype, max(k, 1), rng)
    expected = reference.gemm(a, b, trans_a=trans_a, trans_b=trans_b)
    x = device(lay_out(storage_of(a, dtype), layout), dtype)
    y = device(lay_out(storage_of(b, b_dtype), layout), b_dtype)
    out_dtype = out_dtype_of(dtype)
    out = device(nan_filled((m, n), out_dtype), out_dtype)
    call = {"trans_a": trans_a, "trans_b": trans_b, "out": out}
    if tile is None:
        with forced(solver):
            assert numbaprims.gemm(x, y, **call) is out
    else:
        run_tile(solver, tile, x, y, **call)
    assert_exact(host(out), expected, out_dtype, vacuous=not expected.any())


def run_tile(solver, tile, a, b, **call):
    """A tile that the cost model would not choose for so small a problem."""
    problem = PROBLEMS["gemm"](a, b, **call)
    launcher = solver.bind(problem, registry.target("emulated"), {"tile": tile})
    views = [arrays.enter(x, "x")[0] for x in (call["out"], a, b)]
    launcher(*views, f0=1.0)


TRANSPOSES = list(itertools.product((False, True), repeat=2))


@pytest.mark.parametrize("trans_a, trans_b", TRANSPOSES)
def test_transposes(gpu, trans_a, trans_b):
    """Rows that are aligned and rows that are not; one tile and several; less than one vector."""
    for m, n, k in ((33, 35, 19), (5, 3, 40), (1, 1, 1)):
        check_exact("tiled", "f32", m, n, k, trans_a, trans_b)


def test_vectors(gpu):
    """cp.async of 16 bytes for both operands, whole tiles and ragged ones."""
    for m, n, k in ((64, 32, 48), (36, 44, 17)):
        check_exact("tiled", "f32", m, n, k, True, False)


@pytest.mark.parametrize("layout", ["negative", "sliced"])
def test_any_strides(gpu, layout):
    check_exact("tiled", "f32", 37, 34, 21, False, False, layout)


@pytest.mark.parametrize("tile", ["128x128", "128x64_8x8", "128x16"])
def test_float32_tiles(gpu, tile):
    check_exact(Tiled(), "f32", 130, 140, 37, False, False, tile=tile)
    check_exact(Tiled(), "f32", 131, 12, 16, False, False, tile=tile)


def test_float64(gpu):
    check_exact(Tiled(), "f64", 70, 134, 35, False, False, tile="128x64")


@pytest.mark.parametrize("tile", [name for name, size in TILES.items() if size.mma])
def test_float64_on_tensor_cores(gpu, tile):
    """Integers exactly, whatever order the sums have; ragged ends, and k that is not a multiple of a product's."""
    check_exact(Dmma(), "f64", 70, 134, 35, False, False, tile=tile)
    check_exact(Dmma(), "f64", 64, 66, 32, True, True, tile=tile)


def test_halves(gpu):
    """Half precisions are summed in float32 and rounded once; float16 is `test_float32_result_of_halves`."""
    pytest.importorskip("ml_dtypes")
    check_exact("tiled", "bf16", 33, 70, 40, True, False)


@pytest.mark.parametrize(
    "dtype, trans_a, trans_b, sizes",
    [
        ("i8", False, False, (40, 36, 44)),  # words as they lie, and 4 x 4 bytes turned
        ("i8", False, False, (70, 132, 136)),  # whole tiles of them, in several blocks of k, beside ragged ones
        ("u8", True, False, (132, 68, 132)),
        ("u8", False, True, (33, 70, 64)),
        ("i8", False, False, (33, 35, 19)),  # single bytes
    ],
)
def test_bytes(gpu, dtype, trans_a, trans_b, sizes):
    """The whole range of int8 and uint8, exactly."""
    check_exact("dp4a", dtype, *sizes, trans_a, trans_b, b_dtype="i8")


def test_turned_bytes_at_the_end(gpu):
    """The last three columns of a matrix whose rows are padded: nothing behind the array is read."""
    rng = np.random.default_rng(5)
    a, b = exact_integers((20, 32), "i8", 32, rng), exact_integers((32, 36), "i8", 32, rng)
    x, y = to_device(a), to_device(b[:, :35])
    with forced("dp4a"):
        out = numbaprims.gemm(x, y)
    assert_exact(host(out), reference.gemm(a, b[:, :35]), "i32")


@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_split_k(gpu, dtype):
    """Chunks of k, one of them shorter, and the kernel that adds them up; bias, c and relu come at the end."""
    solver = "split_k"
    for m, n, k in ((5, 33, 900), (9, 36, 520)):
        check_exact(solver, dtype, m, n, k, False, True)
    assert any("gemm_reduce" in run.entry for run in gpu.launches)


def test_split_k_is_the_same_everywhere():
    """Chunks, and with them the order of sums, follow from the problem alone."""
    a, b = np.ones((8, 100_000), np.float32), np.ones((100_000, 40), np.float32)
    problem, solver = PROBLEMS["gemm"](a, b), SplitK()
    chunks, chunk = solver._chunks(problem)
    assert chunks > 1 and (chunks - 1) * chunk < problem.k <= chunks * chunk and chunk % 64 == 0
    for gpu in (A100, H100):
        config = next(iter(solver.configs(problem, gpu)))
        assert solver.workspace(problem, gpu, config) == chunks * 8 * 40 * 4


@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_naive(gpu, dtype):
    check_exact("naive", dtype, 9, 35, 21, True, False, "sliced")
    check_exact("naive", dtype, 9, 35, 0, False, False)


@pytest.mark.parametrize("solver, m, k", [("tiled", 33, 19), ("split_k", 9, 520), ("naive", 33, 19)])
def test_epilogue(gpu, solver, m, k):
    """alpha, beta and c (out itself, too), bias of either axis, activations of the run-time switch."""
    rng = np.random.default_rng(7)
    n = 36
    a, b, c = real_values((m, k), "f32", rng), real_values((n, k), "f32", rng), real_values((m, n), "f32", rng)
    row, column = real_values((n,), "f32", rng), real_values((m, 1), "f32", rng)
    x, y = to_device(a), to_device(b)
    kinds = (None, "relu", ("clip", {"min": -1.0, "max": 2.0}), ("leaky_relu", {"negative_slope": 0.1}))
    for alpha, beta, bias, activation in ((-0.5, 0.0, row, kinds[1]), (2.0, 0.25, column, kinds[2]),
                                          (1.0, 1.0, None, kinds[3]), (1.0, 0.5, row, kinds[0])):  # fmt: skip
        expected = reference.gemm(
            *(to_float64(z, "f32") for z in (a, b)), c=to_float64(c, "f32"), alpha=alpha, beta=beta, trans_b=True,
            bias=None if bias is None else to_float64(bias, "f32"), activation=activation,
        )  # fmt: skip
        old = to_device(c)
        with forced(solver):
            numbaprims.gemm(
                x, y, trans_b=True, alpha=alpha, beta=beta, c=old, out=old, activation=activation,
                bias=None if bias is None else to_device(bias),
            )  # fmt: skip
        largest = np.abs(a).max() * np.abs(b).max() * abs(alpha) * np.sqrt(k) + 8
        assert_close(old.to_host(), expected, k=k + 4, max_abs=largest)


def test_compiled_activation(gpu):
    """A kind with mathematics in it is part of the kernel."""
    rng = np.random.default_rng(8)
    a, b = real_values((33, 20), "f32", rng), real_values((20, 36), "f32", rng)
    expected = reference.gemm(to_float64(a, "f32"), to_float64(b, "f32"), activation="gelu")
    with forced("tiled"):
        out = numbaprims.gemm(to_device(a), to_device(b), activation="gelu")
    assert_close(out.to_host(), expected, k=24, max_abs=np.abs(a).max() * np.abs(b).max() * 5)


def test_float32_result_of_halves(gpu):
    rng = np.random.default_rng(9)
    a, b = real_values((9, 50), "f16", rng), real_values((20, 50), "f16", rng)
    with forced("tiled"):
        out = numbaprims.gemm(device(a, "f16"), device(b, "f16"), trans_b=True, out_dtype="f32")
    expected = reference.gemm(to_float64(a, "f16"), to_float64(b, "f16"), trans_b=True)
    assert_close(out.to_host(), expected, k=50, max_abs=np.abs(expected).max() * 5)


@pytest.mark.parametrize("solver, k", [("tiled", 19), ("naive", 19), ("split_k", 520)])
def test_batches(gpu, solver, k):
    """Even strides, one operand broadcast, and broadcasts that need a table of offsets."""
    rng = np.random.default_rng(10)
    for lead_a, lead_b in (((3,), (3,)), ((3,), ()), ((2, 1), (3,)), ((2, 1, 2), (1, 3, 1))):
        a = exact_integers((*lead_a, 5, k), "f32", k, rng).astype(np.float32)
        b = exact_integers((*lead_b, 36, k), "f32", k, rng).astype(np.float32)
        with forced(solver):
            out = numbaprims.gemm(to_device(a), to_device(b), trans_b=True)
        assert_exact(out.to_host(), np.matmul(a.astype(np.float64), b.swapaxes(-1, -2).astype(np.float64)))


def test_offsets_outlive_their_launcher(gpu, monkeypatch):
    """A captured graph has their address, and is launched when the launcher is forgotten."""
    x, y = (to_device(np.ones(shape, np.float32)) for shape in ((2, 1, 4, 8), (1, 3, 8, 4)))
    out, freed = to_device(np.zeros((2, 3, 4, 4), np.float32)), []
    monkeypatch.setattr(gpu, "free", lambda pointer, streams: freed.append(pointer))
    numbaprims.gemm(x, y, out=out)
    numbaprims.dispatch.call.forget()
    gc.collect()
    assert not freed and (out.to_host() == 8).all()


def test_more_blocks_than_a_grid_has(gpu, monkeypatch):
    monkeypatch.setattr("numbaprims.gpu.gemm.solvers.INT32_MAX", 2)
    check_exact("naive", "f32", 25, 70, 19, False, True)
    assert gpu.launches[-1].grid == (2, 1, 1)


def test_sizes_of_more_than_32_bits(gpu):
    """The first block of a product of 2^32 + 1 rows and columns, every element of which it has."""
    a, b = (to_device(np.arange(size, dtype=np.float32).reshape(shape)) for size, shape in ((8, (8, 1)), (32, (1, 32))))
    out = to_device(np.full((8, 32), np.nan, np.float32))
    problem = dataclasses.replace(PROBLEMS["gemm"](a, b, out=out), m=2**32 + 1, n=2**32 + 1)
    able = [solver for solver in SOLVERS if solver.why_not(problem, H100) is None]
    assert [solver.name for solver in able] == ["naive"]
    kernel, grid, values = able[0].bind(problem, H100, {}).program().steps[0]
    views = [arrays.enter(x, "x")[0] for x in (out, a, b)]
    *given, _, _, _, terms = values((*views, None, None), (1.0, *[0.0] * 5), {})
    assert grid == (2**31 - 1, 1, 1) and kernel.kinds[6:9] == ("i64",) * 3
    gpu.launch(kernel.loaded(gpu), (1, 1, 1), kernel.block, 0, 0, kernel.kinds, (*given, 1, 1, 1, terms))
    assert_exact(out.to_host(), np.outer(np.arange(8.0), np.arange(32.0)))


def test_views_that_begin_anywhere(gpu):
    """The same shapes and strides at other addresses: the launcher must look at each call."""
    rng = np.random.default_rng(11)
    a = exact_integers((40, 36), "f32", 32, rng).astype(np.float32)
    b = exact_integers((40, 36), "f32", 32, rng).astype(np.float32)
    x, y = to_device(a), to_device(b)
    out = to_device(np.full((36, 36), np.nan, np.float32))
    for first in (0, 1, 2):
        part = slice(first, first + 32)
        with forced("tiled"):
            numbaprims.gemm(x[:, part], y[:, part], trans_a=True, out=out[first : first + 32, part])
        assert_exact(out.to_host()[first : first + 32, part], a[:, part].T.astype(np.float64) @ b[:, part])


def test_nothing_to_sum(gpu):
    """K = 0: the end alone; empty results launch nothing."""
    bias = np.arange(5, dtype=np.float32)
    a, b = to_device(np.empty((3, 0), np.float32)), to_device(np.empty((5, 0), np.float32))
    with forced("tiled"):
        out = numbaprims.gemm(a, b, trans_b=True, bias=to_device(bias))
    assert_exact(out.to_host(), np.broadcast_to(bias, (3, 5)))
    before = len(gpu.launches)
    assert numbaprims.gemm(to_device(np.ones((0, 4), np.float32)), to_device(np.ones((4, 5), np.float32))).shape == (
        0,
        5,
    )
    assert len(gpu.launches) == before


def test_plan(gpu):
    """A plan keeps its own B on the device until `update`."""
    rng = np.random.default_rng(14)
    a, b = (exact_integers(shape, "f32", 20, rng).astype(np.float32) for shape in ((33, 20), (36, 20)))
    y = to_device(b)
    plan = numbaprims.gemm.plan(y, trans_b=True, activation="relu")
    with forced("tiled"):
        assert_exact(plan(to_device(a)).to_host(), np.maximum(a @ b.T, 0))
        plan.update(to_device(-b))
        assert_exact(plan(to_device(a)).to_host(), np.maximum(a @ -b.T, 0))


def test_nan_and_infinity(gpu):
    """They go through as IEEE says, and c is not read where beta is 0."""
    a, b = np.ones((3, 20), np.float32), np.ones((20, 5), np.float32)
    a[1, 3], b[5, 2] = np.nan, np.inf
    with forced("tiled"):
        out = numbaprims.gemm(to_device(a), to_device(b), c=to_device(np.full((3, 5), np.nan, np.float32)),
                              activation="relu").to_host()  # fmt: skip
    assert_exact(out, np.maximum(a @ b, 0), vacuous=True)


def test_order_of_blocks_does_not_matter():
    """Random scheduling of threads and blocks gives the same bits."""
    from ptx_emulator.driver import EmulatedDriver

    from numbaprims.gpu import driver

    rng = np.random.default_rng(12)
    a, b = real_values((9, 520), "f32", rng), real_values((36, 520), "f32", rng)
    results = []
    for options in ({}, {"order": "random", "seed": 3}):
        with driver.use(EmulatedDriver(**options)), forced("split_k"):
            results.append(numbaprims.gemm(to_device(a), to_device(b), trans_b=True).to_host())
    np.testing.assert_array_equal(*results)


# ---------------------------------------------------------------- planted mistakes


def tiled_arguments(m, n, k, tile):
    rng = np.random.default_rng(13)
    a, b = rng.integers(-3, 4, (m, k)).astype(np.float32), rng.integers(-3, 4, (n, k)).astype(np.float32)
    problem = PROBLEMS["gemm"](a, b, trans_b=True)
    tiles = -(-m // TILES[tile].bm), -(-n // TILES[tile].bn)
    none = np.zeros(1, np.float32)
    out = np.full((m, n), np.nan, np.float32)
    values = (
        out, a, b, none, none, np.zeros(4, np.int64), *common_ints(problem, batch_of(problem)), 0, 1.0, 0.0, 0.0, 0.0,
        0.0, none, *tiles, 1, 1 << 20, 0,
    )  # fmt: skip
    return values, tiles[0] * tiles[1], a @ b.T


def test_mutants(gpu):
    """Without any one of its barriers the kernel is a race, which the emulator names; with all it is right."""
    kernel = make_tiled("f32", "f32", "f32", "32x32", "k", "k", "switch", False)
    ptx = kernel.ptx("sm_90a")
    values, blocks, expected = tiled_arguments(33, 33, 70, "32x32")
    launch(ptx, blocks, kernel.threads, *values, shared=kernel.shared)
    np.testing.assert_array_equal(values[0], expected)
    barriers = [found.span() for found in re.finditer(r"bar\.sync\s+0;|barrier\.sync[^;]*;", ptx)]
    assert len(barriers) == 4
    for first, last in barriers:
        values, _, _ = tiled_arguments(33, 33, 70, "32x32")
        with pytest.raises(DataRace):
            launch(ptx[:first] + ptx[last:], blocks, kernel.threads, *values, shared=kernel.shared)
    # data that is read before it has arrived
    values, _, _ = tiled_arguments(33, 33, 70, "32x32")
    early = re.sub(r"cp\.async\.wait_group\s+\d+;", "", ptx)
    assert early != ptx
    with pytest.raises(Exception, match="asynchronous copy"):
        launch(early, blocks, kernel.threads, *values, shared=kernel.shared)


# ---------------------------------------------------------------- the choice


def bench_problems():
    """Every shape of the benchmark as a problem; arrays of stride 0 take no memory."""
    groups = tomllib.loads(BENCH.read_text())
    for group in groups.values():
        for suffix, (trans_a, trans_b) in {"nn": (0, 0), "tn": (1, 0), "nt": (0, 1)}.items():
            for shape in group.get(suffix, ()):
                yield *(int(size) for size in shape.split("x")), bool(trans_a), bool(trans_b)


def imagined(shape, dtype):
    """An array of C strides over no memory to speak of; nothing reads it."""
    storage = arrays.DTYPES[dtype].storage
    strides = (shape[1] * storage.itemsize, storage.itemsize)
    base = np.empty(1, storage)
    return np.lib.stride_tricks.as_strided(base.view(np.float16) if dtype == "f16" else base, shape, strides)


@pytest.mark.parametrize("target", [A100, H100], ids=lambda target: target.name)
def test_naive_is_never_chosen(target):
    """For no shape of the benchmark in any type; and the estimates are not constants."""
    seconds = set()
    for m, n, k, trans_a, trans_b in set(bench_problems()):
        for dtype in ("f32", "f64", "f16", "i8"):
            a = imagined((k, m) if trans_a else (m, k), dtype)
            b = imagined((n, k) if trans_b else (k, n), dtype)
            problem = PROBLEMS["gemm"](a, b, trans_a=trans_a, trans_b=trans_b)
            able = [s for s in (Dp4a(), Tiled(), SplitK(), Naive()) if s.why_not(problem, target) is None]
            estimates = [solver.estimate(problem, target) for solver in able]
            best = able[estimates.index(min(estimates))]
            assert best.name != "naive", (problem, dict(zip(able, estimates, strict=True)))
            least = max(problem.flops() / target.peak(dtype), problem.bytes_moved() / target.bandwidth)
            assert min(estimates) > least
            seconds.add(min(estimates))
    assert len(seconds) > 100


def test_choices():
    """A large square takes large tiles; few rows and a long k are cut; a layer's few rows take flat tiles."""

    def best(m, n, k):
        problem = PROBLEMS["gemm"](imagined((m, k), "f32"), imagined((k, n), "f32"))
        able = [s for s in (Tiled(), SplitK()) if s.why_not(problem, H100) is None]
        solver = min(able, key=lambda s: s.estimate(problem, H100))
        return solver.name, next(iter(solver.configs(problem, H100)))["tile"]

    assert best(4096, 4096, 4096) == ("tiled", "128x128")
    assert best(16, 512, 500_000) == ("split_k", "16x128")
    assert best(64, 64, 10_000)[0] == "split_k"
    assert best(32, 32, 32)[0] == "tiled"
