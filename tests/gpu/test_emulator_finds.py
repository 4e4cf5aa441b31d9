"""Planted mistakes: the emulator must name each of them, and must stay silent about their correct twins."""

import numpy as np
import pytest
from ptx_emulator import (
    Checks,
    DataRace,
    Deadlock,
    Divergence,
    MemoryFault,
    Trap,
    UninitialisedRead,
    Unsupported,
    launch,
)
from ptx_emulator.driver import EmulatedDriver
from ptx_emulator.memory import GlobalMemory

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
DECLARE = """
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .f32 %f<8>; .reg .b64 %rd<16>;
    .shared .align 16 .b8 tile[512];
    .shared .align 16 .b8 other[256];
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    mov.u32 %r2, tile;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    xor.b32 %r5, %r3, 252;
    add.s32 %r6, %r2, %r5;
"""


def kernel(body: str) -> str:
    """For 64 threads: %rd3 is this thread's place in the array, %r4 its place in the tile, %r6 that of its mirror."""
    return f"{HEAD}.visible .entry k(.param .u64 k_param_0)\n{{{DECLARE}{body}\n ret;\n}}\n"


def run(body: str, blocks: int = 1, threads: int = 64, size: int = 64, **options) -> np.ndarray:
    x = np.arange(size, dtype=np.uint32)
    launch(kernel(body), blocks, threads, x, **options)
    return x


LOAD, STORE = "ld.global.u32 %r7, [%rd3];", "st.global.u32 [%rd3], %r8;"
PUT, MIRROR, BARRIER = "st.shared.u32 [%r4], %r7;", "ld.shared.u32 %r8, [%r6];", "bar.sync 0;"


@pytest.mark.parametrize("order", ["lowest", "random"])
def test_barrier_between_write_and_read(order):
    x = run(LOAD + PUT + BARRIER + MIRROR + STORE, order=order)
    np.testing.assert_array_equal(x, np.arange(64)[::-1])
    with pytest.raises(DataRace, match=r"shared race: read of byte .* which thread \d+ wrote.*PTX line \d+: ld.shared"):
        run(LOAD + PUT + MIRROR + STORE, order=order)
    with pytest.raises(DataRace):  # the mirror image lies in the other warp
        run(LOAD + PUT + "bar.warp.sync 0xffffffff;" + MIRROR + STORE, order=order)
    run(LOAD + PUT + "bar.warp.sync 0xffffffff; xor.b32 %r6, %r4, 4;" + MIRROR + STORE, order=order)
    with pytest.raises(DataRace):
        run(LOAD + PUT + "xor.b32 %r6, %r4, 4;" + MIRROR + STORE, order=order)


def test_barrier_between_read_and_write():
    with pytest.raises(DataRace, match="write of byte .* read with nothing"):
        run(LOAD + PUT + BARRIER + MIRROR + "st.shared.u32 [%r4], %r8;")
    run(LOAD + PUT + BARRIER + MIRROR + BARRIER + "st.shared.u32 [%r4], %r8;" + STORE)


#: block 0's first thread writes word 1, block 1's reads it; both pass word 0, a counter, in between
TURN = (
    "setp.eq.u32 %p1, %ctaid.x, 0; setp.ne.u32 %p3, %r1, 0; @%p3 bra end; @!%p1 bra wait; st.global.u32 [%rd1+4], 77;"
)
ARRIVE = "red.release.gpu.global.add.u32 [%rd1], 1;"
WAIT = "wait: ld.acquire.gpu.global.u32 %r9, [%rd1]; setp.lt.u32 %p2, %r9, 1; @%p2 bra wait;"
TAKE = "@%p1 bra end; ld.global.u32 %r7, [%rd1+4]; st.global.u32 [%rd1+8], %r7; end:"


@pytest.mark.parametrize("order", ["lowest", "random"])
def test_blocks_that_wait_for_one_another(order):
    together = {"together": True, "blocks": 2, "order": order}
    assert run(TURN + ARRIVE + WAIT + TAKE, **together)[2] == 77
    with pytest.raises(Deadlock):  # block 1 alone would wait for ever, as would both
        run(TURN + WAIT + ARRIVE + TAKE, **together)
    with pytest.raises(DataRace, match="global race: read of byte 4"):
        run(
            TURN.replace("st.global.u32 [%rd1+4], 77;", "") + ARRIVE + "st.global.u32 [%rd1+4], 77;" + WAIT + TAKE,
            **together,
        )


def test_two_threads_write_one_place():
    with pytest.raises(DataRace, match="write of byte 0 .* wrote"):
        run(LOAD + "st.shared.u32 [%r2], %r7;")
    run("st.shared.u32 [%r2], 7;")  # all of them write the same: defined
    with pytest.raises(DataRace, match="global race: write of byte 0 of argument 0"):
        run("st.global.u32 [%rd1], %r1;")
    # halves of one word are two places
    run("add.s32 %r4, %r2, %r1; add.s32 %r4, %r4, %r1; cvt.u16.u32 %rs1, %r1; st.shared.u16 [%r4], %rs1;".replace(
        "cvt", ".reg .b16 %rs<2>; cvt", 1))  # fmt: skip


def test_named_barriers_order_their_own_threads_only():
    """Each warp has a barrier of its own, which does not order the mirror image in the other warp."""
    own = "shr.u32 %r10, %r1, 5; add.u32 %r10, %r10, 1; bar.sync %r10, 32;"
    with pytest.raises(DataRace):
        run(LOAD + PUT + own + MIRROR + STORE)
    run(LOAD + PUT + own + "xor.b32 %r6, %r4, 124;" + MIRROR + STORE)
    x = run(LOAD + PUT + "bar.sync 1, 64;" + MIRROR + STORE)
    np.testing.assert_array_equal(x, np.arange(64)[::-1])


def test_producer_announces_itself():
    """Warp 0 writes and only arrives; warp 1 waits, then reads."""
    body = f"""
        {LOAD} mov.u32 %r8, %r7; setp.gt.u32 %p1, %r1, 31; @%p1 bra CONSUMER;
        {PUT} bar.arrive 1, 64; bra END;
        CONSUMER: WAIT {MIRROR} {STORE}
        END:
    """
    x = run(body.replace("WAIT", "bar.sync 1, 64;"))
    np.testing.assert_array_equal(x, np.r_[:32, 31:-1:-1])
    with pytest.raises((DataRace, UninitialisedRead)):
        run(body.replace("WAIT", ""))


def test_divergent_barriers():
    with pytest.raises(Deadlock, match="32 of 64 threads of block 0 are at barrier 1, PTX line"):
        run("setp.lt.u32 %p1, %r1, 32; @!%p1 bra END; bar.sync 1, 64; END:")
    with pytest.raises(Divergence, match="other threads of this block wait at another barrier"):
        run("setp.lt.u32 %p1, %r1, 32; @!%p1 bra ELSE; bar.sync 0; bra END; ELSE: bar.sync 0; END:")
    with pytest.raises(Divergence, match="not whole warps"):
        run("bar.sync 1, 48;")
    run("setp.lt.u32 %p1, %r1, 32; @!%p1 ret; bar.sync 0;")  # who has exited does not count


@pytest.mark.parametrize("size", [0, 1, 31, 33, 63])
def test_global_bounds_are_exact(size):
    with pytest.raises(
        MemoryFault, match=rf"byte {4 * size} of argument 0 \({4 * size} bytes\); .*thread \({size},0,0\)"
    ):
        run(LOAD, size=size)
    with pytest.raises(MemoryFault, match="global write out of bounds"):
        run("st.global.u32 [%rd3], 0;", size=size)


def test_wild_addresses():
    with pytest.raises(MemoryFault, match="byte -4 of argument 0"):
        run("ld.global.u32 %r7, [%rd3+-4];")
    with pytest.raises(MemoryFault, match="near no allocation"):
        run("mov.u64 %rd3, 0; ld.global.u32 %r7, [%rd3];")
    with pytest.raises(MemoryFault, match="byte 256 of argument 0"):  # half of the vector
        run("ld.global.v2.u32 {%r7, %r8}, [%rd1+256];")
    with pytest.raises(MemoryFault, match="misaligned 16-byte global read"):
        run("ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%rd1+8];")
    with pytest.raises(MemoryFault, match="misaligned"):
        run("ld.shared.u64 %rd4, [tile+4];")


def test_shared_bounds():
    with pytest.raises(MemoryFault, match="shared write out of bounds"):
        run("add.s32 %r4, %r4, 4096; st.shared.u32 [%r4], 1;")
    with pytest.raises(MemoryFault, match="byte 512 of shared memory belongs to no array"):
        run("st.shared.u32 [tile+512], 1;")
    with pytest.raises(MemoryFault, match="local read out of bounds"):
        run(".local .align 4 .b8 spill[8]; ld.local.u32 %r7, [spill+16];")


def test_dynamic_shared_memory_has_the_size_of_the_launch():
    body = "st.shared.u32 [dynamic+1020], 1;"
    text = kernel(body).replace(".visible .entry", ".extern .shared .align 16 .b8 dynamic[];\n.visible .entry")
    launch(text, 1, 32, np.zeros(64, np.uint32), shared=1024)
    with pytest.raises(MemoryFault):
        launch(text, 1, 32, np.zeros(64, np.uint32), shared=1008)
    with pytest.raises(ValueError, match="bytes of shared memory, the device has"):
        launch(text, 1, 32, np.zeros(64, np.uint32), shared=232 * 1024)


def test_uninitialised_reads():
    with pytest.raises(UninitialisedRead, match="read of uninitialised byte 0 of shared memory"):
        run("ld.shared.u32 %r7, [tile];")
    with pytest.raises(UninitialisedRead, match="read of uninitialised local memory"):
        run(".local .align 4 .b8 spill[8]; ld.local.u32 %r7, [spill];")
    with pytest.raises(UninitialisedRead, match="byte 0 of argument 0"):
        run(LOAD, uninitialised=(0,))
    run("st.global.u32 [%rd3], 5;" + LOAD, uninitialised=(0,))
    run("ld.shared.u32 %r7, [tile];", checks=Checks(uninitialised=False))


COPY = "shl.b32 %r9, %r1, 2; xor.b32 %r6, %r4, 252; cp.async.ca.shared.global [%r4], [%rd3], 4; cp.async.commit_group;"


def test_asynchronous_copies():
    wait = "cp.async.wait_group 0;"
    x = run(COPY + wait + BARRIER + MIRROR + STORE)
    np.testing.assert_array_equal(x, np.arange(64)[::-1])
    with pytest.raises(DataRace, match="while an asynchronous copy into it has not completed"):
        run(COPY + BARRIER + MIRROR)
    with pytest.raises(DataRace, match="asynchronous copy into it has not completed"):
        run(COPY + "cp.async.wait_group 1;" + BARRIER + MIRROR)
    with pytest.raises(DataRace, match="shared race: read"):  # complete for the thread itself only
        run(COPY + wait + MIRROR)
    with pytest.raises(DataRace):  # copies over what others may still read
        run(LOAD + PUT + BARRIER + MIRROR + COPY)
    with pytest.raises(DataRace, match="asynchronous copy into it has not completed"):
        run(COPY + COPY)
    with pytest.raises(DataRace):  # a group that nobody committed
        run(COPY.replace("cp.async.commit_group;", "") + wait + BARRIER + MIRROR)
    run(COPY.replace("cp.async.commit_group;", "") + "cp.async.wait_all;" + BARRIER + MIRROR + STORE)


def test_two_groups_in_flight():
    two = COPY + COPY.replace("[%r4]", "[%r4+256]")
    run(two + "cp.async.wait_group 1;" + BARRIER + MIRROR)
    with pytest.raises(DataRace):
        run(two + "cp.async.wait_group 1;" + BARRIER + "ld.shared.u32 %r8, [%r6+256];")


def test_zero_fill_reads_no_more_than_it_says():
    body = """
        shl.b32 %r9, %r1, 4; add.s32 %r4, %r2, %r9; mul.wide.u32 %rd2, %r1, 16; add.s64 %rd4, %rd1, %rd2;
        setp.eq.u32 %p1, %r1, 0; selp.b32 %r10, 16, 0, %p1; setp.eq.u32 %p2, %r1, 1; selp.b32 %r10, 4, %r10, %p2;
        cp.async.cg.shared.global [%r4], [%rd4], 16, %r10; cp.async.wait_all; bar.sync 0;
        shl.b32 %r3, %r1, 2; add.s32 %r4, %r2, %r3; ld.shared.u32 %r8, [%r4]; bar.sync 0;
        setp.lt.u32 %p3, %r1, 5; @%p3 st.global.u32 [%rd3], %r8;
    """
    # 16 bytes of thread 0, 4 of thread 1, none of the others: 5 words are enough
    np.testing.assert_array_equal(run(body, threads=32, size=5), np.arange(5))
    with pytest.raises(MemoryFault):
        run(body, threads=32, size=4)


def test_races_between_blocks():
    with pytest.raises(DataRace, match="global race: write of byte 0 of argument 0 .*, which block 1 thread 0 wrote"):
        run("mov.u32 %r7, %ctaid.x; st.global.u32 [%rd3], %r7;", blocks=2)
    shifted = "mov.u32 %r7, %ctaid.x; mul.wide.u32 %rd4, %r7, 256; add.s64 %rd3, %rd3, %rd4; st.global.u32 [%rd3], %r7;"
    run(shifted, blocks=2, size=128)
    with pytest.raises(DataRace, match="global race: read"):
        run(shifted + "ld.global.u32 %r7, [%rd1];", blocks=2, size=128)
    with pytest.raises(DataRace):  # the same with the blocks one after the other
        run(shifted + "ld.global.u32 %r7, [%rd1];", blocks=2, size=128, batch_threads=64)
    run(shifted + "ld.global.u32 %r7, [%rd1];", blocks=2, size=128, checks=Checks(global_races=False))
    # a counter tells the last block that the others are done
    last = "bar.sync 0; membar.gl; atom.global.add.u32 %r8, [%rd1+512], 1; ld.global.u32 %r7, [%rd1];"
    run(shifted + last, blocks=2, size=129)


def test_races_in_global_memory_within_a_block():
    mirror = "sub.s64 %rd4, %rd1, %rd2; ld.global.u32 %r8, [%rd4+252];"
    with pytest.raises(DataRace, match="global race: read"):
        run("st.global.u32 [%rd3], %r1;" + mirror)
    run("st.global.u32 [%rd3], %r1;" + BARRIER + mirror)


def test_endless_loops_end():
    with pytest.raises(Deadlock, match="an endless loop"):
        run("LOOP: bra LOOP;", checks=Checks(max_steps=1000))


def test_traps_and_unknown_instructions():
    with pytest.raises(Trap, match=r"thread \(5,0,0\)"):
        run("setp.eq.u32 %p1, %r1, 5; @%p1 trap;")
    with pytest.raises(Unsupported, match="not modelled.*PTX line .*: tex.1d"):
        run("tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];")
    run("setp.eq.u32 %p1, %r1, 99; @!%p1 bra END; tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [%rd1, {%r1}]; END:")


def test_freed_memory_is_no_memory():
    memory = GlobalMemory()
    kept, gone = memory.allocate(64), memory.allocate(64, data=np.zeros(64, np.uint8))
    memory.free(gone)
    assert memory.find(gone) is None and memory.find(kept) is not None
    with pytest.raises(ValueError, match="do not lie in one allocation"):
        memory.read(gone, 4)
    with pytest.raises(ValueError, match="not the start of an allocation"):
        memory.free(gone)
    with pytest.raises(ValueError):
        memory.read(kept + 60, 8)


def test_empty_allocations_hold_nothing():
    with pytest.raises(MemoryFault):
        run(LOAD, size=0)
    run("setp.lt.u32 %p1, %r1, 0; @%p1 ld.global.u32 %r7, [%rd3];", size=0)


def test_kernels_cannot_use_what_was_freed():
    """Through the driver seam: memory of `alloc` starts unwritten, and is gone after `free`."""
    emulated = EmulatedDriver()
    entry = emulated.load(kernel(LOAD), b"", "k", 0)
    write = emulated.load(kernel("st.global.u32 [%rd3], %r1;"), b"", "k", 0)
    pointer = emulated.alloc(256, 0)

    def start(function) -> None:
        emulated.launch(function, (1, 1, 1), (64, 1, 1), 0, 0, ("p",), (pointer,))

    with pytest.raises(UninitialisedRead):
        start(entry)
    start(write)
    start(entry)
    result = np.zeros(64, np.uint32)
    emulated.copy(result, pointer, 256, 0)
    np.testing.assert_array_equal(result, np.arange(64))
    emulated.free(pointer, [0])
    with pytest.raises(MemoryFault):
        start(entry)
    with pytest.raises(ValueError):
        emulated.copy(result, pointer, 256, 0)
    assert [launched.grid for launched in emulated.launches] == [(1, 1, 1)] * 4
