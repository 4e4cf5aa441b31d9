"""Tensor cores: ldmatrix, stmatrix, movmatrix, mma.sync in every shape, wgmma, and the copies that feed it."""

import numpy as np
import pytest
from ptx_emulator import DataRace, Deadlock, Divergence, Tiled, UninitialisedRead, launch
from ptx_emulator.dtypes import bf16_to_f32, f32_to_bf16, f32_to_tf32
from ptx_emulator.tensor_map import TensorMap, decode, encode, swizzle

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
LANE = np.arange(32)
GROUP, MEMBER = LANE >> 2, LANE & 3


def text(body: str, pointers: int) -> str:
    parameters = ", ".join(f".param .u64 k_param_{n}" for n in range(pointers))
    loads = "".join(f"ld.param.u64 %p{n}, [k_param_{n}];" for n in range(pointers))
    return (
        f"{HEAD}.visible .entry k({parameters})\n{{ .reg .b64 %p<8>, %d<64>; .reg .b32 %r<32>, %a<8>, %b<8>; "
        ".reg .pred %q<4>;"
        ".reg .f32 %c<64>, %f<64>; .reg .f64 %g<16>;"
        ".shared .align 1024 .b8 tile[49152]; .shared .align 8 .b64 bar[2];\n"
        f"mov.u32 %r0, %tid.x; mov.u32 %r1, tile;\n{loads}\n{body}\nret;\n}}\n"
    )


def lines(*parts: str) -> str:
    return "\n".join(parts)


def vector(prefix: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"{prefix}{first + n}" for n in range(count)) + "}"


def halves(rng, shape, kind):
    x = rng.standard_normal(shape)
    return (x.astype(np.float16).view(np.uint16)) if kind == "f16" else f32_to_bf16(x)


def real(bits, kind):
    return bits.view(np.float16).astype(float) if kind == "f16" else bf16_to_f32(bits).astype(float)


TO_SHARED = "mul.wide.u32 %d0, %r0, 16; add.s64 %d1, %p0, %d0; shl.b32 %r2, %r0, 4; add.s32 %r2, %r2, %r1;" + lines(
    *(
        f"ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%d1+{512 * n}];"
        f"st.shared.v4.u32 [%r2+{512 * n}], {{%r4, %r5, %r6, %r7}};"
        for n in range(2)
    )
)


@pytest.mark.parametrize("kind,accumulator", [("f16", "f32"), ("bf16", "f32"), ("f16", "f16")])
def test_ldmatrix_feeds_mma(kind, accumulator, rng):
    """C = A B with A and B (both 16 x 16, rows contiguous) read by ldmatrix: its fragments are what mma takes."""
    a, b = halves(rng, (16, 16), kind), halves(rng, (16, 16), kind)
    out = np.zeros((16, 16), np.float32 if accumulator == "f32" else np.float16)
    row = "and.b32 %r3, %r0, 15; shl.b32 %r3, %r3, 5; shr.u32 %r4, %r0, 4; shl.b32 %r4, %r4, 4; add.s32 %r3, %r3, %r4;"
    mma = f"mma.sync.aligned.m16n8k16.row.col.{accumulator}.{kind}.{kind}.{accumulator}"
    size = 4 if accumulator == "f32" else 2
    place = (
        f"shr.u32 %r6, %r0, 2; mul.lo.u32 %r6, %r6, {16 * size}; and.b32 %r7, %r0, 3; mul.lo.u32 %r7, %r7, {2 * size};"
        "add.s32 %r6, %r6, %r7; cvt.u64.u32 %d2, %r6; add.s64 %d2, %p1, %d2;"
    )
    parts = [TO_SHARED, "bar.sync 0;", row, "add.s32 %r3, %r3, %r1;"]
    parts += ["ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%a0, %a1, %a2, %a3}, [%r3];"]
    parts += ["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%b0, %b1, %b2, %b3}, [%r3+512];", place]
    for half in range(2):
        if accumulator == "f32":
            zero, target = "{%c8, %c9, %c10, %c11}", "{%c0, %c1, %c2, %c3}"
            stores = [
                f"st.global.v2.f32 [%d2+{half * 32}], {{%c0, %c1}};",
                f"st.global.v2.f32 [%d2+{half * 32 + 512}], {{%c2, %c3}};",
            ]
        else:
            zero, target = "{%r20, %r21}", "{%r22, %r23}"
            stores = [f"st.global.u32 [%d2+{half * 16}], %r22;", f"st.global.u32 [%d2+{half * 16 + 256}], %r23;"]
        parts += [f"{mma} {target}, {{%a0, %a1, %a2, %a3}}, {{%b{2 * half}, %b{2 * half + 1}}}, {zero};", *stores]
    launch(text(lines(*parts), 2), 1, 32, np.concatenate([a, b]).reshape(-1), out)
    want = real(a, kind) @ real(b, kind)
    np.testing.assert_allclose(out, want, rtol=2e-3 if accumulator == "f16" else 1e-6, atol=1e-5)


def test_matrices_go_back_as_they_came(rng):
    """stmatrix undoes ldmatrix, with .trans on both sides and without; movmatrix transposes one of them."""
    x = rng.integers(0, 2**16, (32, 8), dtype=np.uint16)  # four matrices of 8 x 8, one after the other
    body = """
        mul.wide.u32 %d0, %r0, 16; add.s64 %d1, %p0, %d0; add.s64 %d2, %p1, %d0;
        shl.b32 %r2, %r0, 4; add.s32 %r2, %r2, %r1;
        ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d1]; st.shared.v4.u32 [%r2], {%r4, %r5, %r6, %r7};
        bar.warp.sync 0xffffffff;
        ldmatrix.sync.aligned.m8n8.x4.LOAD.shared.b16 {%a0, %a1, %a2, %a3}, [%r2];
        bar.warp.sync 0xffffffff;
        MOVE
        stmatrix.sync.aligned.m8n8.x4.STORE.shared.b16 [%r2], {%a0, %a1, %a2, %a3};
        bar.warp.sync 0xffffffff;
        ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2]; st.global.v4.u32 [%d2], {%r4, %r5, %r6, %r7};
    """
    tiles = x.reshape(4, 8, 8)
    moves = "".join(f"movmatrix.sync.aligned.m8n8.trans.b16 %a{n}, %a{n};" for n in range(4))
    for load, store, move, want in (
        ("", "", "", tiles),
        (".trans", ".trans", "", tiles),
        (".trans", "", "", tiles.transpose(0, 2, 1)),
        ("", "", moves, tiles.transpose(0, 2, 1)),
    ):
        out = np.zeros_like(x)
        code = body.replace(".LOAD", load).replace(".STORE", store).replace("MOVE", move)
        launch(text(code, 2), 1, 32, x, out)
        np.testing.assert_array_equal(out.reshape(4, 8, 8), want)


# shape -> (type of A and B, elements of a register, registers of A, of B, of C), from the figures of the PTX manual
SHAPES = [
    ("m16n8k8", "f16", 2, 2, 1), ("m16n8k8", "bf16", 2, 2, 1), ("m16n8k16", "f16", 2, 4, 2),
    ("m16n8k4", "tf32", 1, 2, 1), ("m16n8k8", "tf32", 1, 4, 2),
    ("m16n8k16", "s8", 4, 2, 1), ("m16n8k32", "s8", 4, 4, 2), ("m8n8k16", "s8", 4, 1, 1), ("m16n8k32", "u8", 4, 4, 2),
    ("m8n8k4", "f64", 1, 1, 1), ("m16n8k4", "f64", 1, 2, 1), ("m16n8k8", "f64", 1, 4, 2), ("m16n8k16", "f64", 1, 8, 4),
]  # fmt: skip


@pytest.mark.parametrize("shape,kind,per_register,count_a,count_b", SHAPES)
def test_mma_shapes(shape, kind, per_register, count_a, count_b, rng):
    m, _, k = (int(n) for n in shape.replace("m", "").replace("n", " ").replace("k", " ").split())
    accumulator = {"s8": "s32", "u8": "s32", "f64": "f64"}.get(kind, "f32")
    limits = {"s8": (-128, 128), "u8": (0, 256)}.get(kind, (-8, 9))
    a, b = rng.integers(*limits, (m, k)), rng.integers(*limits, (k, 8))
    c = rng.integers(-100, 100, (m, 8))

    def pack(values):  # (lanes, registers, elements)
        if kind == "f64":
            return values[..., 0].astype(float)
        if kind == "tf32":
            return f32_to_tf32(values[..., 0].astype(np.float32))
        if kind in ("s8", "u8"):
            return np.ascontiguousarray(values.astype(np.int64).astype(np.uint8)).view(np.uint32)[..., 0]
        words = f32_to_bf16(values) if kind == "bf16" else values.astype(np.float16).view(np.uint16)
        return np.ascontiguousarray(words).view(np.uint32)[..., 0]

    j = np.arange(per_register)
    left = np.zeros((32, count_a, per_register))
    for register in range(count_a):
        row = GROUP + (8 * (register & 1) if m == 16 else 0)
        step = register >> 1 if m == 16 else register
        left[:, register] = a[row[:, None], MEMBER[:, None] * per_register + 4 * per_register * step + j]
    right = np.zeros((32, count_b, per_register))
    for register in range(count_b):
        right[:, register] = b[MEMBER[:, None] * per_register + 4 * per_register * register + j, GROUP[:, None]]
    count_c = 4 if m == 16 else 2
    start = np.stack([c[GROUP + 8 * (n >> 1), MEMBER * 2 + (n & 1)] for n in range(count_c)], -1)
    start = start.astype({"s32": np.int32, "f64": np.float64}.get(accumulator, np.float32))
    result = np.zeros_like(start)

    wide = kind == "f64"
    size, regs = (8, ("%d", "%g")) if wide else (4, ("%a", "%b"))
    names_a = [f"{'%g' if wide else '%a'}{n}" for n in range(count_a)]
    names_b = [f"{'%g' if wide else '%b'}{8 + n if wide else n}" for n in range(count_b)]
    names_c = [f"%g{12 + n}" if wide else f"{'%r' if accumulator == 's32' else '%c'}{8 + n}" for n in range(count_c)]
    body = ["mov.u32 %r2, %tid.x;"]
    for pointer, names, kind_c in (
        (0, names_a, "f64" if wide else "u32"),
        (1, names_b, "f64" if wide else "u32"),
        (2, names_c, accumulator),
    ):
        body.append(f"mul.wide.u32 %d9, %r2, {size * len(names)}; add.s64 %d9, %p{pointer}, %d9;")
        body += [f"ld.global.{kind_c} {name}, [%d9+{size * n}];" for n, name in enumerate(names)]
    groups = ["{" + ", ".join(names) + "}" for names in (names_c, names_a, names_b, names_c)]
    body.append(f"mma.sync.aligned.{shape}.row.col.{accumulator}.{kind}.{kind}.{accumulator} {', '.join(groups)};")
    body.append(f"mul.wide.u32 %d9, %r2, {size * count_c}; add.s64 %d9, %p3, %d9;")
    body += [f"st.global.{accumulator} [%d9+{size * n}], {name};" for n, name in enumerate(names_c)]
    launch(text(lines(*body), 4), 1, 32, pack(left), pack(right), start, result)
    want = a @ b + c
    got = np.zeros((m, 8))
    for n in range(count_c):
        got[GROUP + 8 * (n >> 1), MEMBER * 2 + (n & 1)] = result[:, n]
    np.testing.assert_array_equal(got, want)


def test_mma_needs_the_whole_warp():
    c, a, b = (vector(name, count) for name, count in (("%c", 4), ("%a", 4), ("%b", 2)))
    mma = f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {c}, {a}, {b}, {c};"
    with pytest.raises(Divergence):
        launch(text(f"setp.lt.u32 %q0, %r0, 20; @!%q0 bra END; {mma} END:", 1), 1, 32, np.zeros(1))
    with pytest.raises(Divergence, match="fewer than 32"):
        launch(text(mma, 1), 1, 48, np.zeros(1))


# ---------------------------------------------------------------------- Hopper
INIT = """
    mov.u32 %r3, bar; setp.ne.u32 %q0, %r0, 0;
    @%q0 bra READY; mbarrier.init.shared::cta.b64 [%r3], 1; fence.proxy.async.shared::cta; READY:
    bar.sync 0;
"""
WAIT = """
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %q1, [%r3], 0;
    @!%q1 bra WAIT;
"""
BULK = """
    @%q0 bra SENT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%p0], 512, [%r3];
    SENT:
"""
READ = """
    mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %p1, %d0; shl.b32 %r4, %r0, 2; add.s32 %r4, %r4, %r1;
    ld.shared.u32 %r5, [%r4]; st.global.u32 [%d1], %r5;
"""


@pytest.mark.parametrize("order", ["lowest", "random"])
def test_bulk_copy_and_mbarrier(order, rng):
    x, out = rng.integers(0, 2**32, 128, dtype=np.uint32), np.zeros(128, np.uint32)
    launch(text(INIT + BULK + WAIT + READ, 2), 1, 128, x, out, order=order)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(DataRace):  # reads before the copy is known to be complete
        launch(text(INIT + BULK + "bar.sync 0;" + READ, 2), 1, 128, x, out, order=order)
    with pytest.raises(Deadlock, match="mbarrier phase that never completes"):
        launch(
            text(INIT + BULK.replace("_, [%r3], 512", "_, [%r3], 1024") + WAIT + READ, 2), 1, 128, x, out, order=order
        )
    with pytest.raises((DataRace, UninitialisedRead)):
        launch(text(INIT.replace("bar.sync 0;", "") + BULK + WAIT + READ, 2), 1, 128, x, out, order=order)


TMA = """
    @%q0 bra SENT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%p0, {X, Y}], [%r3];
    SENT:
"""
TMA_STORE = """
    fence.proxy.async.shared::cta; bar.sync 0; @%q0 bra DONE;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%p2, {X, Y}], [%r1];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; DONE:
"""


@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize("x,y", [(0, 0), (16, 3), (-8, -2), (40, 8)])
def test_tensor_copies(span, x, y, rng):
    """A box of 512 bytes there, swizzled, with zeros outside; and back into an array that keeps the rest."""
    wide = (span or 32) // 2
    source = rng.integers(1, 2**16, (9, 48), dtype=np.uint16)
    box = (256 // wide, wide)
    code = (INIT + TMA + WAIT + READ + TMA_STORE).replace("{X, Y}", f"{{{x}, {y}}}")
    raw, back = np.zeros(128, np.uint32), np.zeros_like(source)
    launch(text(code, 3), 1, 128, Tiled(source, box, span), raw, Tiled(back, box, span))
    want, kept = np.zeros(box, np.uint16), np.zeros_like(source)
    for i in range(box[0]):
        for j in range(box[1]):
            if 0 <= y + i < 9 and 0 <= x + j < 48:
                want[i, j] = kept[y + i, x + j] = source[y + i, x + j]
    chunks = raw.view(np.uint16).reshape(-1, 8)
    np.testing.assert_array_equal(chunks[swizzle(16 * np.arange(32), span) // 16], want.reshape(-1, 8))
    np.testing.assert_array_equal(back, kept)


def operand_image(matrix: np.ndarray, span: int) -> np.ndarray:
    """Rows of 16-bit elements as wgmma wants them in shared memory, K contiguous."""
    rows, depth = matrix.shape
    image = np.zeros(rows * depth, np.uint16)
    row, k = np.indices(matrix.shape)
    if span:  # rows of `span` bytes, chunks of 16 bytes permuted
        assert 2 * depth == span
        place = swizzle(row * span + 2 * k, span)
    else:  # cores of 8 rows of 16 bytes, one after the other along k, then along the rows
        place = row // 8 * (16 * depth) + k // 8 * 128 + row % 8 * 16 + k % 8 * 2
    image[place // 2] = matrix
    return image


def wgmma_kernel(depth: int, span: int, image_words: int) -> str:
    """64 x 8 of A B^T, by 128 threads; A lies at the front of the tile, B at byte 8192."""
    code = {0: 0, 128: 1, 64: 2, 32: 3}[span]
    leading, stride = (0, 8 * span) if span else (128, 16 * depth)
    constant = code << 62 | stride >> 4 << 32 | leading >> 4 << 16
    parts = ["mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %p0, %d0; shl.b32 %r2, %r0, 2; add.s32 %r2, %r2, %r1;"]
    parts += [f"ld.global.u32 %r3, [%d1+{at}]; st.shared.u32 [%r2+{at}], %r3;" for at in range(0, 4 * image_words, 512)]
    parts += ["FENCE bar.sync 0;"]
    parts += ["shr.u32 %r4, %r1, 4; cvt.u64.u32 %d2, %r4;", f"add.s64 %d3, %d2, {constant}; add.s64 %d4, %d3, 512;"]
    parts += ["wgmma.fence.sync.aligned; setp.ne.u32 %q1, 0, 0;"]
    for step in range(depth // 16):
        parts.append(
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%c0, %c1, %c2, %c3}, %d3, %d4, %q1, 1, 1, 0, 0;"
        )
        along = 2 if span else 16  # units of 16 bytes to the next 16 of k
        parts.append(f"add.s64 %d3, %d3, {along}; add.s64 %d4, %d4, {along}; setp.eq.u32 %q1, 0, 0;")
        del step
    parts.append("wgmma.commit_group.sync.aligned; WAIT AFTER")
    parts.append("mul.wide.u32 %d0, %r0, 16; add.s64 %d1, %p1, %d0; st.global.v4.f32 [%d1], {%c0, %c1, %c2, %c3};")
    return text(lines(*parts), 2)


@pytest.mark.parametrize("depth,span", [(16, 32), (32, 64), (64, 128), (16, 0), (64, 0)])
def test_wgmma(depth, span, rng):
    a, b = halves(rng, (64, depth), "bf16"), halves(rng, (8, depth), "bf16")
    image = np.zeros(4096 + 8 * 64, np.uint16)
    image[: a.size] = operand_image(a, span)
    image[4096 : 4096 + b.size] = operand_image(b, span)
    kernel = wgmma_kernel(depth, span, len(image) // 2)
    good = kernel.replace("FENCE", "fence.proxy.async.shared::cta;").replace("WAIT", "wgmma.wait_group.sync.aligned 0;")
    out = np.zeros((128, 4), np.float32)
    launch(good.replace("AFTER", ""), 1, 128, image, out)
    thread, register = np.arange(128)[:, None], np.arange(4)[None, :]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register // 2)
    want = (real(a, "bf16") @ real(b, "bf16").T)[row, thread % 4 * 2 + register % 2]
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)


def test_wgmma_mistakes(rng):
    image, out = np.zeros(4096 + 8 * 64, np.uint16), np.zeros((128, 4), np.float32)
    kernel = wgmma_kernel(64, 128, len(image) // 2)
    fence, wait = "fence.proxy.async.shared::cta;", "wgmma.wait_group.sync.aligned 0;"
    overwrite = "bar.sync 0; st.shared.u32 [%r2], %r0;"

    def run(fence, wait, after):
        launch(kernel.replace("FENCE", fence).replace("WAIT", wait).replace("AFTER", after), 1, 128, image, out)

    run(fence, wait, overwrite)
    with pytest.raises(DataRace, match="stored without fence.proxy.async"):
        run("", wait, "")
    with pytest.raises(DataRace):  # the stores are not ordered before the product
        launch(
            kernel.replace("FENCE bar.sync 0;", fence).replace("WAIT", wait).replace("AFTER", ""), 1, 128, image, out
        )
    with pytest.raises(DataRace):  # the product may still read what is overwritten
        run(fence, "bar.sync 0;", overwrite.replace("bar.sync 0;", "") + wait)
    with pytest.raises(Divergence):  # three warps of four
        branch = "setp.lt.u32 %q2, %r0, 96; @!%q2 bra END;"
        broken = kernel.replace("FENCE", fence).replace("wgmma.fence.sync.aligned;", branch)
        launch(broken.replace("WAIT", wait).replace("AFTER", "END:"), 1, 128, image, out)


def test_swizzle_is_its_own_inverse_and_stays_in_its_rows():
    chunk = 16 * np.arange(1024)
    for span in (0, 32, 64, 128):
        moved = swizzle(chunk, span)
        np.testing.assert_array_equal(np.sort(moved), chunk)
        np.testing.assert_array_equal(swizzle(moved, span), chunk)
        np.testing.assert_array_equal(moved // max(span, 16), chunk // max(span, 16))
    assert list(swizzle(np.array([0, 128, 1024 - 128]), 128)) == [0, 128 + 16, 1024 - 128 + 112]


def test_tensor_maps():
    tensor = TensorMap(0x7000_0000_0100, 2, (40, 9), (80,), (16, 4), 32)
    assert decode(encode(tensor.address, 2, (40, 9), (80,), (16, 4), 32)) == tensor
    assert decode(np.zeros(128, np.uint8)) is None
    for wrong in (dict(strides=(81,)), dict(box=(7, 4)), dict(box=(512, 4)), dict(box=(64, 4), swizzle_bytes=64)):
        good = dict(address=0x100, item=2, shape=(40, 9), strides=(80,), box=(16, 4))
        with pytest.raises(ValueError):
            encode(**(good | wrong))
