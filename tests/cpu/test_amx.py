"""AMX's tiles: what an instruction rounds to, bit for bit, wherever the tests run; the instructions of a named CPU."""

import ctypes
from unittest import mock

import numpy as np
import pytest
from assembly import kernel_assembly
from helpers import forced, from_float64, in_library

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.gemm.amx import BLOCK, EDGE, make_multiply_tiles, make_pack_rows
from numbaprims.cpu.gemm.arguments import MULTIPLY, PACK
from numbaprims.cpu.gemm.vnni import make_pack_groups
from numbaprims.cpu.simd import amx_feature, lanes

W = lanes("f32", target.current().vector_bytes)
BYTES = {"s8s8": (np.int8, "i8"), "u8s8": (np.uint8, "u8"), "bf16": (np.uint16, "bf16")}
pytestmark = pytest.mark.cpu


def call(kernel, slots, arrays, **ints):
    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [array.ctypes.data for array in arrays]
    for name, value in ints.items():
        words[slots.slot(name)] = value
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)(words.ctypes.data, 0, 0, 1)


def normal(x):
    """Float32 with subnormal numbers as zeros of their sign."""
    x = np.asarray(x, np.float32)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def fma(x, y, z):
    """A longdouble holds a product of two bf16 exactly, and the sum is rounded once more at most."""
    return normal((x.astype(np.longdouble) * y + z).astype(np.float32))


def definition(kind, a, b, c):
    """TDPBF16PS and TDPBSSD of Intel's manual, a step of 32 or 64 of k after another."""
    if kind != "bf16":
        return (c + a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    a, b = (normal((x.astype(np.uint32) << 16).view(np.float32)) for x in (a, b))
    for k in range(0, a.shape[1], 32):
        even, odd = np.zeros_like(c), np.zeros_like(c)
        for g in range(k, min(k + 32, a.shape[1]), 2):
            even = fma(a[:, g : g + 1], b[g], even)
            if g + 1 < a.shape[1]:
                odd = fma(a[:, g + 1 : g + 2], b[g + 1], odd)
        c = normal(normal(c) + normal(even + odd))
    return c


def product(kind, feature, a, b, c, first):
    """One panel of rows times one of columns, packed by the kernels."""
    dtype, steps = BYTES[kind][1], -(-a.shape[1] // (32 if kind == "bf16" else 64))
    panels = [np.full(steps * BLOCK + 64, -1, np.int32) for _ in "ab"]
    (m, k), n = a.shape, b.shape[1]
    sizes = {"k": k, "width_step": a.strides[0] // a.itemsize, "k_step": a.strides[1] // a.itemsize}
    call(make_pack_rows(dtype, W), PACK, (panels[0], a), width=m, **sizes)
    other = dtype if kind == "bf16" else "i8"
    pack = make_pack_groups(other, EDGE, W, 2 if kind == "bf16" else 4, 0, kind != "bf16", "portable", 16)
    call(
        pack,
        PACK,
        (panels[1], b),
        k=k,
        width=n,
        width_step=b.strides[1] // b.itemsize,
        k_step=b.strides[0] // b.itemsize,
    )
    call(
        make_multiply_tiles(kind, feature, W), MULTIPLY, (*panels, c), rows=m, columns=n, k=k, first=int(first),
        total_step=c.shape[1],
    )  # fmt: skip
    return c[:, :n]


def operands(kind, m, n, k, rng):
    if kind == "bf16":
        # half of what is added is far below the rest, some of it subnormal
        scale = np.exp2(rng.choice([-68.0, -60.0, 0.0, 3.0], (1, k)))
        a, b = rng.standard_normal((m, k)) * scale, rng.standard_normal((k, n)) * scale.T
        a[0], b[:, 0] = a[0] * 1e-38, 1e-3
        return [(x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    return [
        rng.integers(info.min, info.max, shape, endpoint=True).astype(info.dtype)
        for info, shape in ((np.iinfo(BYTES[kind][0]), (m, k)), (np.iinfo(np.int8), (k, n)))
    ]


def features(kind):
    return ["portable"] + ["amx"] * (amx_feature(kind) == "amx")


@pytest.mark.skipif(not target.current().has_fma, reason="needs fused multiply-adds")
@pytest.mark.parametrize("kind", list(BYTES))
@pytest.mark.parametrize(("m", "n", "k"), [(32, 32, 192), (17, 5, 33), (1, 32, 3), (32, 16, 100)])
def test_bits(kind, m, n, k, rng):
    """Every form of a product, added to sums and not, from rows, columns and anything else."""
    a, b = operands(kind, m, n, k, rng)
    acc = np.float32 if kind == "bf16" else np.int32
    start = rng.integers(-100, 100, (m, n)).astype(acc)
    for first in (True, False):
        expected = definition(kind, a, b, np.zeros_like(start) if first else start)
        assert np.unique(expected).size > min(20, expected.size // 2)
        for feature in features(kind):
            for left in (a, np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2]):
                for right in (b, np.asfortranarray(b)):
                    c = np.full((m, n + 3), 7, acc)
                    c[:, :n] = start
                    np.testing.assert_array_equal(product(kind, feature, left, right, c, first), expected)
                    assert (c[:, n:] == 7).all(), "it wrote behind a row"


@pytest.mark.parametrize(("kind", "opcode"), [("bf16", "tdpbf16ps"), ("s8s8", "tdpbssd"), ("u8s8", "tdpbusd")])
def test_assembly(kind, opcode):
    """A step is four loads of tiles and four products, in this order, and no vector of the loop is on the stack."""
    text = kernel_assembly("sapphirerapids", make_multiply_tiles, kind, "amx", 16)
    body = [line.split()[0] for line in text.splitlines() if "%tmm" in line]
    step = ["tileloaddt1", "tileloadd", opcode, "tileloadd", opcode, "tileloaddt1", opcode, opcode]
    found = [at for at in range(len(body)) if body[at : at + len(step)] == step]
    assert len(found) >= 2
    assert text.count("ldtilecfg") == 1
    assert text.count("tilerelease") >= 1
    assert "call" not in text.partition("ldtilecfg")[2].partition("tilerelease")[0]


def test_names_of_cpus():
    for name, has in (("sapphirerapids", True), ("graniterapids", True), ("icelake-server", False), ("znver5", False)):
        found = target.described("x86_64-unknown-linux-gnu", name)
        assert ("amx-bf16" in found.features) == has
        assert ("amx-int8" in found.family_fingerprint) == has
    # a hypervisor's name, and what the CPU says itself
    assert "amx-tile" in target.described("x86_64-unknown-linux-gnu", "rocketlake", "+amx-tile,+amx-int8").features


@pytest.mark.parametrize("answer", [0, -1, OSError("no such call")])
def test_permission(answer):
    """Tiles are used where the system grants them, whatever the CPU has."""
    spr = target.described("x86_64-unknown-linux-gnu", "sapphirerapids")
    library = mock.Mock()
    library.syscall.side_effect = [answer]
    target.tiles_granted.cache_clear()
    try:
        with (
            mock.patch.object(target, "current", lambda: spr),
            mock.patch("ctypes.CDLL", return_value=library),
            mock.patch("sys.platform", "linux"),
            mock.patch("platform.machine", return_value="x86_64"),
        ):
            assert {amx_feature("bf16") for _ in range(3)} == {"amx" if answer == 0 else "portable"}
        assert library.syscall.call_count == 1, "asked once"
    finally:
        target.tiles_granted.cache_clear()


def test_it_runs_where_it_is_asked_for(rng):
    a, b = (rng.integers(-128, 127, shape).astype(np.int8) for shape in ((70, 200), (200, 90)))
    found = numbaprims.explain("gemm", a, b)["amx"]
    if amx_feature("s8s8") == "portable":
        assert "no tiles (AMX)" in found.refusal
    with forced("gemm", "amx"):
        np.testing.assert_array_equal(numbaprims.gemm(a, b), a.astype(np.int64) @ b)
        with pytest.raises(ValueError, match="tiles multiply bf16 and bytes"):
            numbaprims.gemm(a.astype(np.float32), b.astype(np.float32))


@pytest.mark.parametrize("dtype", ["u8", "i8", "bf16"])
def test_plans(dtype, rng):
    """One copy of B for every number of rows, in the panels of tiles: the bits of calls."""
    if dtype == "bf16":
        a, b = (in_library(from_float64(rng.standard_normal(s), dtype), dtype) for s in ((70, 700), (700, 90)))
    else:
        a, b = (
            rng.integers(0, 127, (70, 3000)).astype("uint8" if dtype == "u8" else "int8"),
            rng.integers(-128, 127, (3000, 90)),
        )
        b = b.astype(np.int8)
    with forced("gemm", "amx"), mock.patch("numbaprims.cpu.gemm.amx.by_tiles_here", lambda problem: True):
        plan = numbaprims.gemm.plan(b)
        for rows in (1, 33, 70):
            want = numbaprims.gemm(a[:rows], b)
            assert plan(a[:rows]).tobytes() == want.tobytes() and want.any()
