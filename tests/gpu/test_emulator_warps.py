"""Instructions that the lanes of a warp execute together, atomics, and barriers with reductions."""

import numpy as np
import pytest
from ptx_emulator import Divergence
from ptx_emulator.snippet import run

FULL = "0xffffffff"


def warps(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, 32)


def test_shuffles(rng):
    x = rng.integers(0, 2**32, 64, dtype=np.uint32)
    lane, rows = np.arange(32), warps(x)
    for mode, offset, clamp, source in (
        ("bfly", 5, 31, lane ^ 5),
        ("down", 3, 31, np.where(lane + 3 < 32, lane + 3, lane)),
        ("up", 4, 0, np.where(lane >= 4, lane - 4, lane)),
        ("idx", 7, 31, np.full(32, 7)),
        ("bfly", 1, 0x1C1F, lane ^ 1),  # in parts of four lanes
        ("idx", 2, 0x181F, (lane & 24) | 2),  # in parts of eight
        ("down", 3, 0x181F, np.where((lane & 7) + 3 < 8, lane + 3, lane)),
    ):
        code = f"shfl.sync.{mode}.b32 %o0|%p1, %i0, {offset}, {clamp}, {FULL}; selp.u32 %o1, 1, 0, %p1;"
        got, valid = run(code, [("u32", x)], ["u32", "u32"])
        np.testing.assert_array_equal(warps(got), rows[:, source])
        np.testing.assert_array_equal(warps(valid)[0], (source != lane) | (offset == 7) | (mode == "idx"))


def test_shuffle_by_a_register(rng):
    x, source = rng.integers(0, 2**32, 64, dtype=np.uint32), rng.integers(0, 32, 64, dtype=np.uint32)
    (got,) = run(f"shfl.sync.idx.b32 %o0, %i0, %i1, 31, {FULL};", [("u32", x), ("u32", source)], ["u32"])
    np.testing.assert_array_equal(warps(got), np.take_along_axis(warps(x), warps(source), 1))


def test_votes(rng):
    x = rng.integers(0, 3, 128, dtype=np.uint32)
    x[:32], x[32:64] = 0, 1
    bits = (warps(x) > 0).astype(np.uint64) << np.arange(32, dtype=np.uint64)
    (ballot,) = run(f"setp.gt.u32 %p0, %i0, 0; vote.sync.ballot.b32 %o0, %p0, {FULL};", [("u32", x)], ["u32"])
    np.testing.assert_array_equal(warps(ballot)[:, 0], bits.sum(1))
    for mode, function in (("any", np.any), ("all", np.all)):
        code = f"setp.gt.u32 %p0, %i0, 0; vote.sync.{mode}.pred %p1, %p0, {FULL}; selp.u32 %o0, 1, 0, %p1;"
        (got,) = run(code, [("u32", x)], ["u32"])
        np.testing.assert_array_equal(warps(got)[:, 0], function(warps(x) > 0, axis=1))


def test_match_reduce_elect(rng):
    x = rng.integers(0, 4, 64, dtype=np.uint32)
    (got,) = run(f"match.any.sync.b32 %o0, %i0, {FULL};", [("u32", x)], ["u32"])
    want = [sum(1 << k for k in range(32) if row[k] == value) for row in warps(x) for value in row]
    np.testing.assert_array_equal(got, want)
    for name, function in (("add", np.sum), ("min", np.min), ("max", np.max)):
        (got,) = run(f"redux.sync.{name}.s32 %o0, %i0, {FULL};", [("u32", x)], ["u32"])
        np.testing.assert_array_equal(warps(got)[:, 3], function(warps(x), axis=1))
    (got,) = run(f"elect.sync %t0|%p0, {FULL}; selp.u32 %o0, 1, 0, %p0;", [("u32", x)], ["u32"])
    np.testing.assert_array_equal(warps(got).sum(1), [1, 1])
    assert got[0] == got[32] == 1


def test_active_mask_in_a_branch():
    lane = np.arange(64, dtype=np.uint32)
    code = "mov.u32 %o0, 0; setp.lt.u32 %p0, %i0, 40; @!%p0 bra SKIP; activemask.b32 %o0; SKIP:"
    (got,) = run(code, [("u32", lane)], ["u32"])
    np.testing.assert_array_equal(got, np.where(lane < 32, 0xFFFFFFFF, np.where(lane < 40, 0xFF, 0)))


def test_shuffle_among_some_lanes(rng):
    """The lower half of a warp shuffles by itself, which its member mask says."""
    x = rng.integers(0, 100, 32, dtype=np.uint32)
    half = "mov.u32 %o0, %i0; setp.lt.u32 %p0, %laneid, 16; @!%p0 bra SKIP; "
    (got,) = run(half + "shfl.sync.bfly.b32 %o0, %i0, 8, 31, 0xffff; SKIP:", [("u32", x)], ["u32"])
    np.testing.assert_array_equal(got, np.r_[x[:16][np.arange(16) ^ 8], x[16:]])
    with pytest.raises(Divergence, match="reads lane 16, which does not take part"):
        run(half + "shfl.sync.bfly.b32 %o0, %i0, 16, 31, 0xffff; SKIP:", [("u32", x)], ["u32"])
    with pytest.raises(Divergence, match="no thread can go on"):
        run(half + f"shfl.sync.bfly.b32 %o0, %i0, 8, 31, {FULL}; SKIP:", [("u32", x)], ["u32"])
    with pytest.raises(Divergence, match="not in its own member mask"):
        run(half + "shfl.sync.bfly.b32 %o0, %i0, 8, 31, 0xff; SKIP:", [("u32", x)], ["u32"])


def test_lanes_meet_again_after_a_loop():
    """Lanes leave a loop at different times; the shuffle after it waits for all of them."""
    count = np.arange(1, 65, dtype=np.uint32)
    code = f"""
        mov.u32 %o0, 0; mov.u32 %t0, %i0;
        LOOP: add.u32 %o0, %o0, %t0; sub.u32 %t0, %t0, 1; setp.ne.u32 %p0, %t0, 0; @%p0 bra LOOP;
        shfl.sync.bfly.b32 %o0, %o0, 31, 31, {FULL};
    """
    want = warps(count * (count + 1) // 2)[:, ::-1].reshape(-1)
    for order in ("lowest", "random"):
        (got,) = run(code, [("u32", count)], ["u32"], order=order)
        np.testing.assert_array_equal(got, want)


ATOMICS = {
    "add": (np.add.reduce, 0), "max": (np.maximum.reduce, 0), "min": (np.minimum.reduce, 2**32 - 1),
    "or": (np.bitwise_or.reduce, 0), "xor": (np.bitwise_xor.reduce, 0), "and": (np.bitwise_and.reduce, 2**32 - 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(name, rng):
    function, start = ATOMICS[name]
    x = rng.integers(0, 2**32, 64, dtype=np.uint32)
    kind = "u32" if name in ("add", "max", "min") else "b32"
    sum_up = (
        f".shared .align 4 .b32 total; setp.ne.u32 %p0, %tid.x, 0; @!%p0 st.shared.u32 [total], {start}; bar.sync 0;"
        f"red.shared.{name}.{kind} [total], %i0; bar.sync 0; ld.shared.u32 %o0, [total];"
    )
    (got,) = run(sum_up, [("u32", x)], ["u32"])
    np.testing.assert_array_equal(got, np.full(64, function(x, dtype=np.uint32)))


def test_atomic_results_and_exchange(rng):
    x = np.arange(64, dtype=np.uint32)
    shared = ".shared .align 4 .b32 cell; setp.ne.u32 %p0, %tid.x, 0; @!%p0 st.shared.u32 [cell], 0; bar.sync 0;"
    (ticket,) = run(shared + "atom.shared.add.u32 %o0, [cell], 1;", [("u32", x)], ["u32"])
    np.testing.assert_array_equal(np.sort(ticket), x)
    (ticket,) = run(shared + "atom.shared.inc.u32 %o0, [cell], 9;", [("u32", x)], ["u32"])
    np.testing.assert_array_equal(ticket, x % 10)
    code = shared + "add.u32 %t0, %i0, 1; atom.shared.cas.b32 %o0, [cell], 0, %t0;"
    (seen,) = run(code, [("u32", x)], ["u32"])
    np.testing.assert_array_equal(seen, np.where(x == 0, 0, 1))
    x = rng.standard_normal(64).astype(np.float32)
    code = ".shared .align 4 .b32 cell; setp.ne.u32 %p0, %tid.x, 0; @!%p0 st.shared.u32 [cell], 0; bar.sync 0;"
    (total,) = run(
        code + "red.shared.add.f32 [cell], %i0; bar.sync 0; ld.shared.f32 %o0, [cell];", [("f32", x)], ["f32"]
    )
    np.testing.assert_allclose(total, x.sum(dtype=float), rtol=1e-5)


def test_barrier_reductions(rng):
    x = rng.integers(0, 2, 96, dtype=np.uint32)
    (count,) = run("setp.ne.u32 %p0, %i0, 0; bar.red.popc.u32 %o0, 0, %p0;", [("u32", x)], ["u32"])
    np.testing.assert_array_equal(count, x.sum())
    for name, function in (("and", np.all), ("or", np.any)):
        code = f"setp.ne.u32 %p0, %i0, 0; bar.red.{name}.pred %p1, 0, %p0; selp.u32 %o0, 1, 0, %p1;"
        (got,) = run(code, [("u32", x)], ["u32"])
        np.testing.assert_array_equal(got, function(x))


def test_special_registers():
    code = "mov.u32 %o0, %laneid; mov.u32 %o1, %ctaid.x; mov.u32 %o2, %lanemask_lt; mov.u32 %o3, %nctaid.x;"
    lane, block, mask, blocks = run(code, [("u32", np.arange(128))], ["u32"] * 4, threads=64)
    thread = np.arange(128)
    np.testing.assert_array_equal(lane, thread % 32)
    np.testing.assert_array_equal(block, thread // 64)
    np.testing.assert_array_equal(mask, (1 << thread % 32) - 1)
    np.testing.assert_array_equal(blocks, 2)
