"""AMX's tiles: what an instruction rounds to, bit for bit, wherever the tests run; the instructions of a named CPU."""

import ctypes
import re
from unittest import mock

import numpy as np
import pytest
from assembly import kernel_assembly
from helpers import forced, from_float64, in_library, to_float64

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.attention.kernels import make_forward
from numbaprims.cpu.conv.vnni import amx as vnni
from numbaprims.cpu.conv.weight_gradient import amx as weight
from numbaprims.cpu.gemm.arguments import MULTIPLY, PACK
from numbaprims.cpu.gemm.pieces import BLOCK, EDGE, make_pack_pieces
from numbaprims.cpu.gemm.tiles import make_multiply_tiles, make_pack_rows
from numbaprims.cpu.gemm.vnni import make_pack_groups
from numbaprims.cpu.rates import FAMILIES
from numbaprims.cpu.simd import amx_feature, lanes
from numbaprims.cpu.simd.tiles.amx import piece_count, pieces

W = lanes("f32", target.current().vector_bytes)
BYTES = {
    "s8s8": (np.int8, "i8"), "u8s8": (np.uint8, "u8"), "bf16": (np.uint16, "bf16"), "f16": (np.float16, "f16"),
    "x4": (np.float16, "f16"), "x3": (np.float32, "f32"), "x6": (np.float32, "f32"),
}  # fmt: skip
EXACT = ("s8s8", "u8s8")
#: What makes the kernels that multiply by tiles: of products, convolutions, and gradients of weights.
FACTORIES = (make_multiply_tiles, vnni.make_multiply, weight.make_multiply)
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


def cut(x, count):
    """x as so many bf16, each the nearest to what the others leave, halves away from zero."""
    found, rest = [], np.asarray(x, np.float32)
    for _ in range(count):
        found.append(((rest.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32))
        rest = rest - found[-1]
    return found


def definition(kind, a, b, c):
    """TDPBF16PS, TDPFP16PS and TDPBSSD of Intel's manual, a step of 32 or 64 of k after another."""
    if kind in EXACT:
        return (c + a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    if kind == "bf16":
        a, b = ((x.astype(np.uint32) << 16).view(np.float32) for x in (a, b))
    a, b = ([normal(p) for p in (cut(x, piece_count(kind)) if piece_count(kind) > 1 else [x])] for x in (a, b))
    # of numbers in pieces the sums begin anew
    total = np.zeros_like(c) if len(a) > 1 else c
    for k in range(0, a[0].shape[1], 32):
        for i, j in pieces(kind):
            even, odd = np.zeros_like(c), np.zeros_like(c)
            for g in range(k, min(k + 32, a[i].shape[1]), 2):
                even = fma(a[i][:, g : g + 1], b[j][g], even)
                if g + 1 < a[i].shape[1]:
                    odd = fma(a[i][:, g + 1 : g + 2], b[j][g + 1], odd)
            total = normal(normal(total) + normal(even + odd))
    return c + total if len(a) > 1 else total


def product(kind, feature, a, b, c, first):
    """One panel of rows times one of columns, packed by the kernels."""
    dtype, steps, count = BYTES[kind][1], -(-a.shape[1] // (64 if kind in EXACT else 32)), piece_count(kind)
    panels = [np.full(steps * BLOCK * count + 64, -1, np.int32) for _ in "ab"]
    (m, k), n = a.shape, b.shape[1]
    sizes = {"k": k, "width_step": a.strides[0] // a.itemsize, "k_step": a.strides[1] // a.itemsize}
    if count > 1:
        pack_a, pack = (make_pack_pieces(dtype, side, count, W) for side in "ab")
    else:
        pack_a, whole = make_pack_rows(dtype, W), kind in EXACT
        pack = make_pack_groups("i8" if whole else dtype, EDGE, W, 4 if whole else 2, 0, whole, "portable", 16)
    call(pack_a, PACK, (panels[0], a), width=m, **sizes)
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
    if kind not in EXACT:
        # some of them subnormal float16, whose pieces and products are normal
        a, b = (
            rng.standard_normal(shape) * np.exp2(rng.choice([-20.0, 0.0, 5.0], shape)) for shape in ((m, k), (k, n))
        )
        return [x.astype(BYTES[kind][0]) for x in (a, b)]
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
    acc = np.int32 if kind in EXACT else np.float32
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


def aligned(array, row, offset=0):
    """A copy whose rows begin `row` elements apart, the first `offset` elements behind a line."""
    room = np.zeros(array.shape[0] * row + 128, array.dtype)
    room = room[-(room.ctypes.data // array.itemsize) % (64 // array.itemsize) + offset :]
    placed = np.lib.stride_tricks.as_strided(room, array.shape, (row * array.itemsize, array.itemsize))
    placed[...] = array
    return placed


@pytest.mark.skipif(not target.current().has_fma, reason="needs fused multiply-adds")
@pytest.mark.parametrize("kind", ["bf16", "s8s8"])
@pytest.mark.parametrize(("m", "n", "k"), [(70, 40, 192), (600, 33, 128), (33, 70, 100)])
def test_tiles_take_rows_of_a_where_they_lie(kind, m, n, k, rng):
    """The same bits from rows that begin lines, from others, and from what is packed; from one block and several."""
    a, b = operands(kind, m, n, k, rng)
    dtype = BYTES[kind][1]
    expected = definition(kind, a, b, np.zeros((m, n), np.int32 if kind in EXACT else np.float32))
    with forced("gemm", "amx"):
        for row, offset in ((256, 0), (256, 2), (192, 0), (200, 0), (2048, 0), (4096, 0)):
            placed = in_library(aligned(a, row, offset), dtype)
            for wanted in (dtype, "f32") if kind == "bf16" else ("i32",):
                got = to_float64(numbaprims.gemm(placed, in_library(b, dtype), out_dtype=wanted))
                rounded = expected if wanted != "bf16" else from_float64(expected, wanted)
                np.testing.assert_array_equal(got, to_float64(rounded, wanted), str((row, offset, wanted)))


@pytest.mark.parametrize("kind", ["bf16", "x4", "x3", "x6"])
@pytest.mark.parametrize(
    ("channels", "filters", "size", "kernel"),
    [(40, 70, (9, 11), (1, 1)), (3, 33, (8, 8), (3, 3)), (35, 5, (6, 7), (2, 3))],
)
def test_bits_of_gradients_of_weights(kind, channels, filters, size, kernel, rng):
    """A box of pixels: for each 32 of them what the instruction rounds to, pixels in the order of rows."""
    stored, dtype = BYTES[kind]
    out = [n - r + 1 for n, r in zip(size, kernel, strict=True)]
    x, dy = (
        from_float64(rng.standard_normal((c, *s)), dtype).view(stored) for c, s in ((channels, size), (filters, out))
    )
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, (1, 2))  # channel, pixel, tap
    columns = windows.transpose(1, 2, 0, 3, 4).reshape(out[0] * out[1], -1)
    a = dy.reshape(filters, -1)
    expected = definition(kind, a, columns, np.zeros((filters, columns.shape[1]), np.float32))
    solver = "weight_gemm_amx" + ("" if kind == "bf16" else f"_{kind}")
    with numbaprims.config(algorithm=f"conv:{solver}", accuracy="fast"):
        dy, x = (in_library(v[None], dtype) for v in (dy, x))
        for layout in ("NCHW", "NHWC"):
            given = [v if layout == "NCHW" else np.ascontiguousarray(v.transpose(0, 2, 3, 1)) for v in (dy, x)]
            got = numbaprims.conv_backward_weight(*given, (filters, channels, *kernel), layout=layout)
            np.testing.assert_array_equal(
                to_float64(got).reshape(filters, -1), to_float64(from_float64(expected, dtype), dtype)
            )


@pytest.mark.skipif(not target.current().has_fma, reason="needs fused multiply-adds")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("images", "channels", "filters", "size", "kernel", "window"),
    [
        (2, 64, 70, (9, 11), (3, 3), {"padding": 1}),
        (1, 32, 200, (30, 17), (1, 3), {"padding": (0, 1)}),
        (3, 64, 33, (7, 14), (1, 1), {}),
        (1, 128, 40, (8, 8), (1, 1), {"stride": 2}),
        (2, 64, 32, (12, 31), (3, 3), {"stride": 2, "padding": 1}),
        (1, 128, 64, (9, 9), (3, 3), {"dilation": 2, "groups": 2}),
        (2, 64, 40, (4, 5, 6), (2, 3, 3), {"padding": 1}),
    ],
)
def test_convolutions_take_rows_of_the_copy(images, channels, filters, size, kernel, window, layout, rng):
    """The bits of gathered windows, from lines of one tile and of several, between lines, from x itself."""
    layout = layout.replace("HW", "DHW") if len(size) == 3 else layout
    shape = (images, channels, *size) if layout[1] == "C" else (images, *size, channels)
    w = (filters, channels // window.get("groups", 1), *kernel)
    for dtype in ("bf16", "i8"):
        if dtype == "bf16":
            args = [from_float64(rng.standard_normal(each), dtype) for each in (shape, w)]
            run, args = numbaprims.conv, [in_library(x, dtype) for x in args]
        else:
            args = [rng.integers(-128, 127, each, np.int8, endpoint=True) for each in (shape, w)]
            run = numbaprims.conv_integer
        with forced("conv", "implicit_gemm_amx"):
            got = run(*args, layout=layout, **window)
            # bound anew, for a result of other strides
            with mock.patch.object(vnni.ImplicitGemmAmx, "there", return_value=0) as gathers:
                out = np.zeros((*got.shape[:-1], 2 * got.shape[-1]), got.dtype)[..., ::2]
                expected = run(*args, layout=layout, out=in_library(out, dtype) if dtype == "bf16" else out, **window)
            assert gathers.called
        assert got.tobytes() == expected.tobytes() and got.any(), dtype


@pytest.mark.parametrize("kind", ["x4", "x3", "x6"])
def test_gradients_of_weights_with_what_has_no_pieces(kind, rng):
    dtype = BYTES[kind][0]
    dy, x = (rng.standard_normal((2, c, 9, 9)).astype(dtype) for c in (40, 35))
    dy[0, 3, 2, 2], dy[1, 39, 8, 0], x[1, 7, 4, 4], x[0, 34, 0, 0] = np.inf, np.nan, -np.inf, np.finfo(np.float16).max
    window = {"padding": 1}
    with np.errstate(all="ignore"), numbaprims.config(accuracy="fast"):
        # padding is multiplied, too: so does `weight_gemm`
        expected = numbaprims.conv_backward_weight(
            *(v.astype(np.float64) for v in (dy, x)), (40, 35, 3, 3), algorithm="weight_gemm", **window
        )
        got = numbaprims.conv_backward_weight(dy, x, (40, 35, 3, 3), algorithm=f"weight_gemm_amx_{kind}", **window)
        got, expected = got.astype(np.float64), expected.astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(got[np.isinf(expected)], expected[np.isinf(expected)])
    assert np.isnan(expected).sum() > 300 and np.isinf(expected).sum() > 300 and np.isfinite(expected).sum() > 5000
    np.testing.assert_allclose(got, expected, rtol=2.0**-9 if kind == "x4" else 2.0**-13, atol=0.02)


@pytest.mark.skipif(not target.current().has_fma, reason="needs fused multiply-adds")
@pytest.mark.parametrize(("rows", "keys", "width", "values"), [(70, 100, 40, 33), (5, 300, 64, 17), (33, 7, 3, 64)])
def test_attention(rows, keys, width, values, rng):
    """Scores as the instruction rounds them, exponentials as bf16 in the second product and as they are in sums."""
    q, k, v = (
        from_float64(rng.standard_normal(shape), "bf16") for shape in ((rows, width), (keys, width), (keys, values))
    )
    scores = definition("bf16", q, k.T, np.zeros((rows, keys), np.float32)) * np.float32(width**-0.5)
    scores, values_of = scores.astype(np.float64), to_float64(v, "bf16")
    exact = np.exp(scores - scores.max(1, keepdims=True))
    wanted = np.zeros((rows, values))
    for at in range(0, keys, 128):  # a block's are those above the maximum so far
        most = scores[:, : at + 128].max(1, keepdims=True)
        (e,) = cut(np.exp(scores[:, at : at + 128] - most), 1)
        wanted += e.astype(np.float64) @ values_of[at : at + 128] * np.exp(most - scores.max(1, keepdims=True))
    wanted /= exact.sum(1, keepdims=True)
    with forced("attention", "flash_amx"):
        out, lse = numbaprims.attention_train(
            *(in_library(x[None, None], "bf16") for x in (q, k, v)), scale=width**-0.5
        )
    np.testing.assert_allclose(lse[0, 0], np.log(exact.sum(1)) + scores.max(1), rtol=1e-6, atol=1e-6)
    # an exponential off by 1e-7 may round to another bf16: 2^-8 of one weight
    off = np.abs(to_float64(out)[0, 0] - wanted)
    assert (off <= 2.0**-8 * np.abs(wanted) + 2e-5).mean() > 0.99 and off.max() < 2.0**-7 * np.abs(wanted).max()
    plain = exact @ values_of / exact.sum(1, keepdims=True)
    assert np.abs(plain - wanted).max() > 1e-4, "the weights of this test are not rounded"


def between(text):
    """What may run from the configuration of tiles until they are given back, along every jump."""
    lines = [line.partition("#")[0].strip() for line in text.partition("\ncfunc.")[0].splitlines()]
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
    (start,) = (at for at, line in enumerate(lines) if line.startswith("ldtilecfg"))
    ways, seen = [start + 1], set()
    while ways:
        at = ways.pop()
        while at not in seen and not lines[at].startswith("tilerelease"):
            seen.add(at)
            if lines[at].startswith("j"):
                ways.append(labels[lines[at].split()[1]])
            if lines[at].startswith("jmp"):
                break
            at += 1
    found = [lines[at] for at in sorted(seen)]
    assert sum("%tmm" in line for line in found) >= 16 and not any(line.startswith("ret") for line in found)
    return found


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda each: each.__module__.split(".", 2)[2])
@pytest.mark.parametrize(
    ("kind", "opcode"), [("bf16", "tdpbf16ps"), ("s8s8", "tdpbssd"), ("u8s8", "tdpbusd"), ("f16", "tdpfp16ps")]
)
def test_assembly(kind, opcode, factory):
    """A step is four loads of tiles and four products, in this order, and no vector of the loop is on the stack."""
    if factory is not make_multiply_tiles and kind != "bf16":
        pytest.skip("the same text as gemm's, of which one type shows what becomes of it")
    text = kernel_assembly("graniterapids" if kind == "f16" else "sapphirerapids", factory, kind, "amx", 16)
    body = [line.split()[0] for line in text.splitlines() if "%tmm" in line]
    step = ["tileloaddt1", "tileloadd", opcode, "tileloadd", opcode, "tileloaddt1", opcode, opcode]
    found = [at for at in range(len(body)) if body[at : at + len(step)] == step]
    assert len(found) >= 1 + (factory is make_multiply_tiles)
    assert text.count("ldtilecfg") == 1
    assert text.count("tilerelease") >= 1
    assert not any("call" in line for line in between(text))


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda each: each.__module__.split(".", 2)[2])
@pytest.mark.parametrize(("kind", "loads"), [("x3", 8), ("x4", 10), ("x6", 14)])
def test_assembly_of_pieces(kind, loads, factory):
    """A tile stays where the next product needs it again; infinities are looked for without a call."""
    text = kernel_assembly("sapphirerapids", factory, kind, "amx", 16)
    body = [line.split()[0] for line in text.splitlines() if "%tmm" in line]
    products = 4 * len(pieces(kind))
    runs = [body[at : at + products + loads] for at in range(len(body))]
    assert any(r.count("tdpbf16ps") == products and r[0] == "tileloaddt1" and "tilestored" not in r for r in runs)
    assert not any("call" in line for line in between(text))


@pytest.mark.parametrize("mask", ["", "bool"])
def test_assembly_of_attention(mask):
    """Both products in one configuration, exponentials between them: no vector of them on the stack, and no call."""
    args = ("bf16", "f32", mask, EDGE, EDGE, 2, 16, "bf16", "amx")
    lines = between(kernel_assembly("sapphirerapids", make_forward, *args))
    body = [line.split()[0] for line in lines if "%tmm" in line]
    step = ["tileloaddt1", "tileloadd", "tdpbf16ps", "tileloadd", "tdpbf16ps", "tileloaddt1", "tdpbf16ps", "tdpbf16ps"]
    assert sum(body[at : at + len(step)] == step for at in range(len(body))) >= 2
    assert not any("call" in line for line in lines)
    assert not any(re.match(r"vmov\w+\s+%zmm\d+, .*\(%r[sb]p\)", line) for line in lines)


def test_names_of_cpus():
    for name, has in (("sapphirerapids", True), ("graniterapids", True), ("icelake-server", False), ("znver5", False)):
        found = target.described("x86_64-unknown-linux-gnu", name)
        assert ("amx-bf16" in found.features) == has
        assert ("amx-int8" in found.family_fingerprint) == has


@pytest.mark.parametrize(
    ("name", "listed", "core"),
    [
        ("rocketlake", "+amx-tile,+avx512fp16,+prefetchi", "graniterapids"),
        ("rocketlake", "+avx512fp16", "sapphirerapids"),
        ("rocketlake", "", "rocketlake"),
        ("emeraldrapids", "+avx512fp16,+prefetchi", "emeraldrapids"),
        ("znver5", "+prefetchi", "znver5"),
    ],
)
def test_a_hypervisor_s_name_and_what_the_cpu_says_itself(name, listed, core):
    found = target.described("x86_64-unknown-linux-gnu", name, listed)
    assert set(listed.replace("+", "").split(",")) - {""} <= found.features
    assert (found.name, found.microarchitecture) == (name, core)
    assert FAMILIES.get(core, core) in found.rates.source


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


@pytest.mark.parametrize(("dtype", "solver"), [("u8", "amx"), ("i8", "amx"), ("bf16", "amx"), ("f16", "amx_x4")])
def test_plans(dtype, solver, rng):
    """One copy of B for every number of rows, in the panels of tiles: the bits of calls."""
    kind = {"u8": "u8s8", "i8": "s8s8", "f16": "x4"}.get(dtype, dtype)
    if dtype in ("bf16", "f16"):
        a, b = (in_library(from_float64(rng.standard_normal(s), dtype), dtype) for s in ((70, 700), (700, 90)))
    else:
        a, b = (
            rng.integers(0, 127, (70, 3000)).astype("uint8" if dtype == "u8" else "int8"),
            rng.integers(-128, 127, (3000, 90)),
        )
        b = b.astype(np.int8)
    with forced("gemm", solver), mock.patch("numbaprims.cpu.gemm.amx.plan_kind", lambda problem: kind):
        plan = numbaprims.gemm.plan(b)
        for rows in (1, 33, 70):
            want = numbaprims.gemm(a[:rows], b)
            assert plan(a[:rows]).tobytes() == want.tobytes() and want.any()


@pytest.mark.parametrize(
    ("solver", "dtype", "bound"),
    [("amx_x4", np.float16, 0.0), ("amx_x3", np.float32, 2.0**-15), ("amx_x6", np.float32, 2.0**-23.9)],
)
def test_pieces_of_floats(solver, dtype, bound, rng):
    """The bound of the terms, and of the sums of float32; infinities, NaN and the largest numbers as they are."""
    m, n, k = 70, 45, 300
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))

    def run(a, b):
        with numbaprims.config(algorithm=f"gemm:{solver}", accuracy="fast" if dtype == np.float32 else "standard"):
            return numbaprims.gemm(a, b, out_dtype=np.float32)

    def off(got, a, b):
        a, b = a.astype(np.float64), b.astype(np.float64)
        return np.abs(got - a @ b), np.abs(a) @ np.abs(b)

    # chains of 16 products, the sum of two, and as many sums as products of 32 of k
    rounded = (18 + len(pieces(solver[-2:])) * -(-k // 32)) * 2.0**-24
    error, size = off(run(a, b), a, b)
    assert (error <= (bound + rounded) * size).all()
    assert bound == 0 or dtype != np.float32 or (error > 2.0**-30 * size).any()

    a[3, 5], a[3, 7], a[40, 0], b[299, 44], b[0, 3] = np.inf, -np.inf, np.nan, np.inf, 0
    # a subnormal float32 is zero to the instruction, a subnormal float16 is not
    a[50, 1], b[1, 30] = np.inf, 2.0**-24 if dtype == np.float16 else 2.0**-126
    a[60] = 0
    a[60, 9], b[9] = np.finfo(dtype).max, 0.5
    with np.errstate(all="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
        got = run(a, b)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        infinite = np.isinf(expected)
        np.testing.assert_array_equal(got[infinite], expected[infinite])
        assert infinite.sum() > 60 and np.isnan(expected).sum() > 60
        np.testing.assert_allclose(got[60, :44], np.float64(np.finfo(dtype).max) / 2, rtol=2.0**-15)
        finite = np.isfinite(expected)
        error, size = off(got, a, b)
    assert (error[finite] <= (bound + rounded) * size[finite]).all()


@pytest.mark.parametrize(("channels", "groups", "layout"), [(37, 1, "NCHW"), (64, 2, "NHWC")])
@pytest.mark.parametrize("kind", ["x4", "x3", "x6"])
def test_windows_in_pieces(kind, channels, groups, layout, rng):
    """Convolutions by products of pieces: as exact as their terms and sums are, with what has no pieces."""
    dtype, bound = BYTES[kind][0], {"x4": 0.0, "x3": 2.0**-15, "x6": 2.0**-23.9}[kind]
    x = rng.standard_normal((2, channels, 9, 10)).astype(dtype)
    w = rng.standard_normal((40, channels // groups, 3, 3)).astype(dtype)
    x[0, 0, 2, 2], x[0, channels - 1, 6, 6], x[1, 1, 4, 4] = np.inf, np.nan, np.finfo(np.float16).max
    w[3, 0, 1, 1], w[7, 1, 0, 0], w[39, 0, 1, 1] = 0, 2.0**-24, -np.inf  # padding is multiplied, too

    def run(x, w, solver):
        x = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        how = {"padding": 1, "groups": groups, "layout": layout, "algorithm": solver}
        if x.dtype == np.float64:
            return numbaprims.conv(x, w, **how)
        plan = numbaprims.conv.plan(x.shape, w, **how)
        assert plan(x).tobytes() == numbaprims.conv(x, w, **how).tobytes()
        return numbaprims.conv(x, w, out_dtype=np.float32, **how)

    with np.errstate(all="ignore"), numbaprims.config(accuracy="standard" if kind == "x4" else "fast"):
        expected = run(x.astype(np.float64), w.astype(np.float64), "naive")
        size = run(np.abs(x).astype(np.float64), np.abs(w).astype(np.float64), "naive")
        got = run(x, w, f"implicit_gemm_amx_{kind}")
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        np.testing.assert_array_equal(got[~finite], expected[~finite].astype(np.float32))
        rounds = 18 + len(pieces(kind)) * -(-channels // groups * 9 // 32)
        off = np.abs(got - expected)[finite]
        assert (off <= (bound + rounds * 2.0**-24) * size[finite]).all()
        assert kind != "x3" or (off > 2.0**-24 * size[finite]).any()
    assert np.isinf(expected).sum() > 100 and np.isnan(expected).sum() > 100 and finite.sum() > 1000
