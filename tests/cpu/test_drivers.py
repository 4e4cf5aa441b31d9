"""The two drivers and launchers, on toy kernels whose every word is known."""

import gc
import struct
import sys
import threading
import weakref

import numba
import numpy as np
import pytest
from hypothesis import given, strategies as st
from toy_ranges import (
    BACK,
    DUMP,
    GUARD,
    INTS,
    ONCE,
    ORDER,
    THERE,
    TWICE,
    TYPES,
    make_clear,
    make_count,
    make_meet,
    make_reverse,
    mixed,
    program_of,
)

import numbaprims
from numbaprims import kernel_cache, workspace
from numbaprims.cpu import drivers, threads
from numbaprims.cpu.drivers import parallel_driver, serial_driver
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import PER_WORKER, Phase

MOST = numba.config.NUMBA_NUM_THREADS


# ---------------------------------------------------------------- tiles, phases, steps, workers


@given(
    first=st.tuples(st.integers(0, 300), st.integers(0, 40)),
    second=st.tuples(st.integers(0, 40), st.integers(1, 300)),
    steps=st.integers(0, 3),
    workers=st.integers(1, 8),
    parallel=st.booleans(),
)
def test_every_tile_is_done_once(first, second, steps, workers, parallel):
    program = program_of([], [(ONCE, *first), (TWICE, *second)], steps=steps, parallel=parallel)
    out, visits = np.zeros(300 + 2 * GUARD, np.int64), np.zeros(16, np.int64)
    with numbaprims.config(threads=workers):
        make_launcher(program)(out, visits)
    expected = np.zeros_like(out)
    expected[GUARD : GUARD + first[0]] += steps
    expected[GUARD : GUARD + second[0]] += 2 * steps
    np.testing.assert_array_equal(out, expected)
    assert not visits[workers:].any(), "a worker that was not asked for"
    if not parallel:
        assert visits[0] == steps * bool(first[0]) + steps * bool(second[0]), "all tiles of a phase in one call"


@pytest.mark.parametrize("tiles", [0, 1, 2])
@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_few_tiles(tiles, chunk, workers):
    """The smallest programs, through both drivers whatever the launcher would choose."""
    for driver in (serial_driver(), parallel_driver()):
        program = program_of([], [(ONCE, tiles, chunk)])
        out, visits = np.zeros(2 + 2 * GUARD, np.int64), np.zeros(16, np.int64)
        driver(program.address, workers, id(out), id(visits), *[0] * 7, *[0] * 6)
        assert len(driver.signatures) == 1, "ints for floats are converted, and nothing is compiled for them"
        np.testing.assert_array_equal(out[GUARD:-GUARD], [1] * tiles + [0] * (2 - tiles))
        assert not out[:GUARD].any() and not out[-GUARD:].any() and not visits[8:].any()


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("n, chunks, steps", [(8, (1, 1), 5), (97, (1, 10), 4), (4000, (60, 33), 7)])
def test_a_phase_waits_for_the_one_before_and_steps_are_counted(n, chunks, steps, workers):
    start = np.random.default_rng(n).integers(0, 1000, n)
    program = program_of([n, 0, 0], [(THERE, n, chunks[0]), (BACK, n, chunks[1])], steps=steps)
    run = make_launcher(program)
    for _ in range(5):
        out, a = np.empty(n, np.int64), start.copy()
        with numbaprims.config(threads=workers):
            run(out, a)
        np.testing.assert_array_equal(a, mixed(start, steps))


@pytest.mark.parametrize("order", [{}, {"one_queue": True}, {"back": True}], ids=["own", "one", "back"])
@pytest.mark.parametrize("workers", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("tiles, chunk", [(3, 1), (40, 1), (41, 2), (1000, 7)])
def test_every_tile_once_with_more_workers_than_queues_or_chunks(tiles, chunk, workers, order):
    program = program_of([], [Phase(ONCE, tiles, chunk, **order)])
    out, visits = np.zeros(tiles + 2 * GUARD, np.int64), np.zeros(64, np.int64)
    parallel_driver()(program.address, workers, id(out), id(visits), *[0] * 7, *[0] * 6)
    assert (out[GUARD:-GUARD] == 1).all() and not out[:GUARD].any() and not out[-GUARD:].any()
    assert visits.sum() == -(-tiles // chunk) and not visits[workers:].any()


@pytest.mark.parametrize("tiles, chunk", [(1, 1), (5, 1), (23, 4), (24, 4), (9, 20)])
def test_the_last_chunk_first(tiles, chunk):
    """By a worker of several too, of what is its own."""
    program = program_of([], [Phase(ORDER, tiles, chunk, back=True), Phase(ORDER, tiles, chunk)])
    starts = list(range(0, tiles, chunk))
    for driver, forwards in ((serial_driver(), [0]), (parallel_driver(), starts)):  # alone all at once
        begun, count = np.full(64, -1), np.zeros(1, np.int64)
        driver(program.address, 1, id(begun), id(count), *[0] * 7, *[0] * 6)
        assert begun[: count[0]].tolist() == [*starts[::-1], *forwards]


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_phase_for_the_workers_is_one_call_that_names_them_all(workers):
    for driver, found in ((serial_driver(), 1), (parallel_driver(), workers)):
        program = program_of([], [(ONCE, 1, PER_WORKER), (ONCE, 5, 1)], steps=2)
        out, visits = np.zeros(8 + 2 * GUARD, np.int64), np.zeros(64, np.int64)
        driver(program.address, workers, id(out), id(visits), *[0] * 7, *[0] * 6)
        expected = 2 * ((np.arange(8) < found).astype(int) + (np.arange(8) < 5))
        np.testing.assert_array_equal(out[GUARD:-GUARD], expected)


def test_a_phase_for_the_workers_has_one_tile():
    with pytest.raises(ValueError, match="there is one"):
        program_of([], [(ONCE, 2, PER_WORKER)])


def test_as_many_workers_as_chunks_at_most():
    assert program_of([], [(ONCE, 10, 3), (ONCE, 4, 1)]).most_workers == 4
    assert program_of([], [(ONCE, 10, 0)]).most_workers == 10
    assert program_of([], []).most_workers == 1


@pytest.mark.parametrize(
    "threads_allowed, phases, options, calls",
    [
        (8, [(4, 4), (3, 8)], {}, 2),  # one chunk each
        (8, [(4, 4)], {"worker": 64}, 1),
        (8, [(4, 1)], {"parallel": False}, 1),
        (8, [(4, 1)], {"parallel": False, "shared": 64}, 1),
        (1, [(4, 1)], {}, 1),
        (1, [(4, 1)], {"worker": 64}, 1),
        (2, [(4, 1), (4, 3), (2, 2)], {}, 4 + 2 + 1),
        (2, [(4, 1)], {"worker": 64}, 4),
    ],
)
def test_threads_are_woken_for_more_than_one_chunk_only(threads_allowed, phases, options, calls):
    """The serial driver gives a kernel all tiles in one call, the parallel one a chunk in each."""
    out, visits = np.zeros(12 + GUARD, np.int64), np.zeros(8, np.int64)
    program = program_of([], [(ONCE, tiles, chunk) for tiles, chunk in phases], **options)
    if threads_allowed > MOST:
        pytest.skip("Numba was started with fewer threads")
    with numbaprims.config(threads=threads_allowed):
        make_launcher(program)(out, visits)
    assert visits.sum() == calls and out.sum() == sum(tiles for tiles, _ in phases)


def test_the_users_number_of_threads_is_left_as_it_was():
    out, visits = np.zeros(50 + GUARD, np.int64), np.zeros(8, np.int64)
    try:
        numba.set_num_threads(min(3, MOST))
        with numbaprims.config(threads=2):
            make_launcher(program_of([], [(ONCE, 50, 1)]))(out, visits)
        assert numba.get_num_threads() == min(3, MOST)
    finally:
        numba.set_num_threads(MOST)


@pytest.mark.parametrize("direct", [True, False])
def test_regions_are_begun_by_openmp_or_by_numba(monkeypatch, direct):
    """The same tiles by the same workers."""
    if direct and (sys.platform != "linux" or threads.layer()[0] != "omp"):
        pytest.skip("its regions are begun by Numba")
    assert threads.direct() or not direct
    monkeypatch.setattr(threads, "direct", lambda: direct)
    driver = parallel_driver.__wrapped__()
    assert ("_direct" in driver.py_func.__name__) == direct
    for workers in (1, 2, min(5, MOST)):
        program = program_of([], [(ONCE, 40, 1), (ONCE, 1, PER_WORKER), (TWICE, 7, 1)], steps=3)
        out, visits = np.zeros(40 + 2 * GUARD, np.int64), np.zeros(64, np.int64)
        driver(program.address, workers, id(out), id(visits), *[0] * 7, *[0] * 6)
        at = np.arange(40)
        expected = 3 * (1 + (at < workers).astype(int) + 2 * (at < 7))
        np.testing.assert_array_equal(out[GUARD:-GUARD], expected)
        assert not visits[workers:].any()


def test_eight_threads_at_once():
    """One launcher, with scratch memory of its own for each call, from eight Python threads."""
    n, steps, runs = 300, 3, 15
    mix = make_launcher(program_of([n, 0, 0], [(THERE, n, 20), (BACK, n, 20)], steps=steps))
    there, back = make_reverse(False), make_reverse(True)
    reverse = make_launcher(program_of([n, 0, 0], [(there, n, 20), (back, n, 20)], shared=8 * n))
    barrier, failed = threading.Barrier(8), []

    def work(seed):
        start = np.random.default_rng(seed).integers(0, 1000, n)
        expected, out = mixed(start, steps), np.empty(n, np.int64)
        barrier.wait()
        try:
            with numbaprims.config(threads=1 + seed % 4):
                for _ in range(runs):
                    a = start.copy()
                    mix(out, a)
                    np.testing.assert_array_equal(a, expected)
                    reverse(out, a)
                    np.testing.assert_array_equal(out, a[::-1])
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failed, failed[0]


# ---------------------------------------------------------------- scratch memory


@pytest.mark.parametrize("workers", [1, 3])
def test_scratch_is_borrowed_for_as_many_workers_as_run(monkeypatch, workers):
    asked = []
    borrow = workspace.borrow
    monkeypatch.setattr(workspace, "borrow", lambda size: asked.append(size) or borrow(size))
    out, visits = np.zeros(20 + GUARD, np.int64), np.zeros(8, np.int64)
    with numbaprims.config(threads=workers):
        make_launcher(program_of([], [(ONCE, 20, 1)], shared=1000, worker=300))(out, visits)
        make_launcher(program_of([], [(ONCE, 20, 1)]))(out, visits)
    assert asked == [1000 + 300 * min(workers, MOST)]


def test_scratch_of_workers_is_their_own_and_the_shared_part_is_common():
    workers = min(4, MOST)
    if workers < 2:
        pytest.skip("Numba was started with one thread")
    with numbaprims.config(threads=workers):
        assert threads.count() == workers
        shared, own = 64, 1024  # words: 8 KiB a worker, which is more than the block is rounded up by
        phases = [(make_clear(), 1, 1), (make_meet(), workers, 1)]
        program = program_of([shared, own, workers], phases, shared=8 * shared, worker=8 * own)
        out, visits = np.zeros(workers, np.int64), np.zeros(8, np.int64)
        make_launcher(program)(out, visits)
    # each waits for all, so no worker can have had two tiles
    assert out.tolist() == [1] * workers, "-1: another worker wrote into it; -2: the others did not come"
    assert visits[:workers].tolist() == [1] * workers and not visits[workers:].any()


# ---------------------------------------------------------------- what kernels are given

FLOATS = [
    struct.unpack("<d", struct.pack("<Q", bits))[0]
    for bits in (
        0x7FF8_0000_DEAD_BEEF,  # NaN with a payload
        0xFFFC_1234_5678_9ABC,  # the same, negative
        0x8000_0000_0000_0000,  # -0.0
        0x0000_0000_0000_0001,  # the smallest subnormal
        0xFFF0_0000_0000_0000,  # -inf
        0x3FB9_9999_9999_999A,  # 0.1
    )
]


def given_arrays():
    """Arrays of many kinds: the address that counts is that of the first element."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = np.ones(3, np.int8)
    frozen.flags.writeable = False
    scalar, part = np.array(3.0), np.asfortranarray(base)[1:, 2:]
    return [base[::-1, ::-2], frozen, scalar, part, np.ones((2, 2), np.uint16)]


@pytest.mark.parametrize("kind", ["serial", "scratch", "parallel"])
def test_arguments_arrive_bit_for_bit(kind):
    tiles = 2 if kind == "parallel" else 1
    run = make_launcher(program_of(INTS, [(DUMP, tiles, 1)], shared=4096 if kind == "scratch" else 0))
    arrays, out = given_arrays(), np.full(17, -1)
    assert kind != "parallel" or run.program.most_workers == 2
    with numbaprims.config(threads=2):
        run(out, *arrays[:2], None, *arrays[2:], *FLOATS)
    pointers = [out, *arrays[:2], None, *arrays[2:]]
    expected = [0 if x is None else x.__array_interface__["data"][0] for x in pointers]
    assert out[:7].tolist() == expected
    assert out[7] % 4096 == 0 and (out[7] != 0) == (kind == "scratch")
    assert out[8:14].tobytes() == struct.pack("=6d", *FLOATS)
    assert out[14:].tolist() == INTS


def test_what_is_not_given_is_null_and_zero():
    for program in (program_of([1, 2, 3], [(DUMP, 1, 1)]), program_of([1, 2, 3], [(DUMP, 2, 1)])):
        out = np.full(17, -1)
        with numbaprims.config(threads=2):
            make_launcher(program)(out)
        assert out[1:].tolist() == [0] * 13 + [1, 2, 3]


def test_other_scalars_are_converted_and_compile_nothing():
    run = make_launcher(program_of(INTS, [(DUMP, 1, 1)]))
    both = make_launcher(program_of(INTS, [(DUMP, 2, 1)]))
    with numbaprims.config(threads=2):
        for launcher in (run, both):
            out = np.full(17, -1)
            launcher(out, f0=2, f1=np.float32(0.1), f2=True, f3=np.int8(-3), f4=np.float64(0.1))
            expected = [2.0, float(np.float32(0.1)), 1.0, -3.0, 0.1, 0.0]
            assert out[8:14].tobytes() == struct.pack("=6d", *expected)
            before = out.copy()
            for wrong in ("x", None, 1j, [1.0]):
                with pytest.raises((TypeError, ValueError)):
                    launcher(out, f0=wrong)
            np.testing.assert_array_equal(out, before)
    assert len(serial_driver().signatures) == len(parallel_driver().signatures) == 1


def test_the_data_pointer_of_an_array_is_found_where_it_is():
    assert drivers.data_word() in range(2, 8)
    x = np.arange(10.0)[3:]
    words = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int64 * 8).from_address(id(x)))
    assert words[drivers.data_word()] == x.ctypes.data


@pytest.mark.parametrize("parallel, room", [(True, 0), (False, 0), (False, 64)])
def test_a_launcher_keeps_its_program_alive(parallel, room):
    table = np.arange(5)
    program, kept = program_of([], [(ONCE, 4, 1)], keep=(table,), parallel=parallel, shared=room), weakref.ref(table)
    run = make_launcher(program)
    del program, table
    gc.collect()
    assert kept() is not None
    del run
    gc.collect()
    assert kept() is None


# ---------------------------------------------------------------- kernels


@pytest.mark.parametrize(
    "value",
    [np.ones(3), np.int64(3), [1, 2], {"a": 1}, len, lambda: 0, (1, np.ones(1)), (1, [2])],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_factories_close_over_plain_values_only(value):
    def make():
        @range_kernel("test_closure", TYPES, spec=())
        def kernel(args, worker, lo, hi):
            print(value)

    message = "(?s)test_closure closes over .*; a factory may close over ints, floats, strings and tuples of them only"
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("value", [3, 0.5, "f32", True, None, (1, "f32", 0.5), ()])
def test_plain_closures_are_taken(value):
    @range_kernel("test_closure", TYPES, spec=(value,))
    def kernel(args, worker, lo, hi):
        print(value)

    assert kernel.name == "test_closure" and str(value) in kernel.function.__name__


def test_assembly_is_there_for_a_kernel_that_comes_from_the_cache():
    first, second = make_count(3), make_count(3)
    assert first.address, "compiled and kept"
    hits = kernel_cache.statistics()["hits"]
    assert second.address
    assert kernel_cache.statistics()["hits"] == hits + 1
    asm = second.inspect_asm()
    assert "test_count_3" in asm and "ret" in asm
    assert asm != make_count(4).inspect_asm(), "what a factory closes over is in the code"
