"""The two drivers, programs and launchers, on toy kernels whose every word is known."""

import gc
import struct
import threading
import weakref

import numba
import numpy as np
import pytest
from hypothesis import given, strategies as st

import numbaprims
from numbaprims import kernel_cache, workspace
from numbaprims.cpu import drivers, threads
from numbaprims.cpu.drivers import parallel_driver, serial_driver
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import MOST_WORDS, PER_WORKER, Bind, Block, Part, Phase, Program, Run, array, join, scratch
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    atomic_add_word,
    float_bits,
    load_scalar,
    load_word,
    store_scalar,
    store_word,
)

ARRAYS = ("out", "a", "b", "c", "d", "e", "f", "scratch")
ARGS = Arguments(arrays=ARRAYS, floats=("p", "q", "r", "s", "t", "u"), ints=("n", "m", "k"))
TYPES = ARGS.types(out="i64", a="i64")
GUARD = 48
MOST = numba.config.NUMBA_NUM_THREADS


def program_of(ints, phases, **more):
    return Program.of(ARGS, dict(zip(ARGS.ints, ints, strict=False)), phases, **more)


def make_count(times: int) -> RangeKernel:
    """out[tile + GUARD] += times, a[worker] += 1: atomically, so that nothing done twice is lost."""

    @range_kernel("test_count", TYPES, spec=(times,))
    def count(args, worker, lo, hi):
        atomic_add_word(address_of(args.a) + 8 * worker, 1)
        for tile in range(lo, hi):
            atomic_add_word(address_of(args.out) + 8 * (tile + GUARD), times)

    return count


def make_dump() -> RangeKernel:
    """Everything that a kernel is given, as bits."""

    @range_kernel("test_dump", TYPES, spec=())
    def dump(args, worker, lo, hi):
        out = args.out
        store_scalar(out, 0, address_of(args.out))
        store_scalar(out, 1, address_of(args.a))
        store_scalar(out, 2, address_of(args.b))
        store_scalar(out, 3, address_of(args.c))
        store_scalar(out, 4, address_of(args.d))
        store_scalar(out, 5, address_of(args.e))
        store_scalar(out, 6, address_of(args.f))
        store_scalar(out, 7, address_of(args.scratch))
        store_scalar(out, 8, float_bits(args.p))
        store_scalar(out, 9, float_bits(args.q))
        store_scalar(out, 10, float_bits(args.r))
        store_scalar(out, 11, float_bits(args.s))
        store_scalar(out, 12, float_bits(args.t))
        store_scalar(out, 13, float_bits(args.u))
        store_scalar(out, 14, args.n)
        store_scalar(out, 15, args.m)
        store_scalar(out, 16, args.k)

    return dump


@helper
def wrapped(i, n):
    return i - n if i >= n else i


def make_mix(back: bool) -> RangeKernel:
    """out from a, or a from out: a neighbour's value times 3 (5 on the way back) plus the step, modulo 1000003."""
    factor, far = (5, 7) if back else (3, 1)

    @range_kernel("test_mix", TYPES, spec=(back,))
    def mix(args, worker, lo, hi):
        for i in range(lo, hi):
            j = wrapped(i + far, args.n)
            if back:
                store_scalar(args.a, i, (load_scalar(args.out, j) * factor + args.step) % 1000003)
            else:
                store_scalar(args.out, i, (load_scalar(args.a, j) * factor + args.step) % 1000003)

    return mix


def make_meet() -> RangeKernel:
    """Fill this worker's scratch with the tile's number, wait for k workers, and see whether the number is there still.

    out[tile]: 1 if it was, -1 if not, -2 if the others did not come.  a[worker] counts visits.  n and m are the
    words of the shared part and of each worker's; word 0 of the shared part counts the workers.
    """

    @range_kernel("test_meet", TYPES, spec=())
    def meet(args, worker, lo, hi):
        shared = address_of(args.scratch)
        own = shared + 8 * (args.n + args.m * worker)
        atomic_add_word(address_of(args.a) + 8 * worker, 1)
        for tile in range(lo, hi):
            for i in range(args.m):
                store_word(own, i, tile)
            atomic_add_word(shared, 1)
            waited = 0
            while atomic_add_word(shared, 0) < args.k and waited < 1 << 27:
                waited += 1
            found = 1
            for i in range(args.m):
                if load_word(own, i) != tile:
                    found = -1
            store_scalar(args.out, tile, -2 if waited == 1 << 27 else found)

    return meet


def make_clear() -> RangeKernel:
    """The first word of the scratch memory becomes 0."""

    @range_kernel("test_clear", TYPES, spec=())
    def clear(args, worker, lo, hi):
        store_word(address_of(args.scratch), 0, 0)

    return clear


def make_reverse(back: bool) -> RangeKernel:
    """The shared scratch from a; then out from the shared scratch, back to front."""

    @range_kernel("test_reverse", TYPES, spec=(back,))
    def reverse(args, worker, lo, hi):
        shared = address_of(args.scratch)
        for i in range(lo, hi):
            if back:
                store_scalar(args.out, i, load_word(shared, args.n - 1 - i))
            else:
                store_word(shared, i, load_scalar(args.a, i))

    return reverse


ONCE, TWICE, DUMP = make_count(1), make_count(2), make_dump()
THERE, BACK = make_mix(False), make_mix(True)


def mixed(a, steps):
    """What `steps` steps of THERE and BACK make of a."""
    for step in range(steps):
        out = (np.roll(a, -1) * 3 + step) % 1000003
        a = (np.roll(out, -7) * 5 + step) % 1000003
    return a


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


@pytest.mark.parametrize("one_queue", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("tiles, chunk", [(3, 1), (40, 1), (41, 2), (1000, 7)])
def test_every_tile_once_with_more_workers_than_queues_or_chunks(tiles, chunk, workers, one_queue):
    program = program_of([], [Phase(ONCE, tiles, chunk, one_queue)])
    out, visits = np.zeros(tiles + 2 * GUARD, np.int64), np.zeros(64, np.int64)
    parallel_driver()(program.address, workers, id(out), id(visits), *[0] * 7, *[0] * 6)
    assert (out[GUARD:-GUARD] == 1).all() and not out[:GUARD].any() and not out[-GUARD:].any()
    assert visits.sum() == -(-tiles // chunk) and not visits[workers:].any()


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
INTS = [2**62, -(2**63), 2**53 + 1]


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


# ---------------------------------------------------------------- bound words, further arrays, joined programs

MANY = tuple(f"x{i}" for i in range(11))
WIDE = Arguments(arrays=("out", *MANY), floats=("p",), ints=tuple(f"i{i}" for i in range(60)))


def make_wide():
    """out[step] = the sum of the first elements of all arrays, each times its number, the last integer, and p."""

    @range_kernel("test_wide", WIDE.types(out="i64", **{name: "i64" for name in MANY}), spec=())
    def wide(args, worker, lo, hi):
        for i in range(lo, hi):
            total = load_scalar(args.x0, i) + 2 * load_scalar(args.x1, i) + 3 * load_scalar(args.x2, i)
            total += 4 * load_scalar(args.x3, i) + 5 * load_scalar(args.x4, i) + 6 * load_scalar(args.x5, i)
            total += 7 * load_scalar(args.x6, i) + 8 * load_scalar(args.x7, i) + 9 * load_scalar(args.x8, i)
            total += 10 * load_scalar(args.x9, i) + 11 * load_scalar(args.x10, i)
            store_scalar(args.out, i, total + 1000 * args.i59 + int(args.p) + 100000 * args.step)

    return wide


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_arrays_and_integers_without_limit_bound_word_by_word(workers):
    """Eleven inputs and sixty integers; out and the first input move on with each step."""
    n, steps = 30, 3
    binds = {"out": Bind(0, stride=8 * n), "x0": array(1)._replace(stride=8), "p": Bind(8)}
    binds |= {name: array(2 + i, 8 * (i == 4)) for i, name in enumerate(MANY[1:])}
    block = Block(WIDE, {"i59": 7, "i3": 1}, binds)
    program = Program((Run((Phase(make_wide(), n, 4),), (block,), steps),))
    rng = np.random.default_rng(0)
    arrays, out = [rng.integers(0, 100, n + steps) for _ in MANY], np.zeros((steps, n), np.int64)
    with numbaprims.config(threads=workers):
        make_launcher(program)(out, *arrays[:6], f0=5.0, more=arrays[6:])
    moved = [x[1:] if i == 5 else x for i, x in enumerate(arrays)]
    for step in range(steps):
        first = arrays[0][step : step + n]
        rest = sum((i + 1) * x[:n] for i, x in enumerate(moved) if i)
        np.testing.assert_array_equal(out[step], first + rest + 7005 + 100000 * step)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="7 floats; a kernel takes at most 6"):
        Arguments(arrays=("out",), floats=tuple("abcdefg"))
    with pytest.raises(ValueError, match="must differ"):
        Arguments(arrays=("out", "step"))
    blocks = (Block(ARGS, {}),) * (MOST_WORDS // ARGS.words + 1)
    with pytest.raises(ValueError, match=f"words of arguments; a run has at most {MOST_WORDS}"):
        Program((Run((Phase(ONCE, 1, 1),), blocks),))
    with pytest.raises(ValueError, match="40 arrays; a program takes at most 31"):
        make_launcher(program_of([], [(ONCE, 1, 1)], shared=8))(*[np.zeros(1)] * 7, more=[np.zeros(1)] * 33)
    with pytest.raises(KeyError):
        program_of([], [(ONCE, 1, 1)], steps=1).of(ARGS, {"unknown": 1}, [(ONCE, 1, 1)])


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_joined_programs_run_one_after_another(workers):
    """Each on arrays of its own choice, handing on through scratch memory, with scratch memory of their own behind."""
    n = 97
    there, back = (program_of([n], [(make_reverse(b), n, 9)], shared=8 * n) for b in (False, True))
    both = program_of([n], [(make_reverse(False), n, 9), (make_reverse(True), n, 9)], shared=8 * n)
    mix = program_of([n], [(THERE, n, 5), (BACK, n, 5)], steps=2)
    a = np.random.default_rng(1).integers(0, 1000, n)
    first, second = a.copy(), a.copy()
    out = np.zeros(n, np.int64)
    joined = join(
        [
            Part(mix, [array(0), array(1)], []),
            Part(both, [scratch(8), array(1)], []),  # an element into what they hand on
            Part(both, [array(0), scratch(8)], []),
            Part(mix, [array(2), array(0)], []),
        ],
        shared=8 * n + 8,
    )
    assert joined.shared >= 2 * 8 * n and len(joined.runs) == 4
    with numbaprims.config(threads=workers):
        make_launcher(joined)(out, first, np.zeros(n, np.int64))
    want = mixed(second, 2)
    np.testing.assert_array_equal(first, want)
    np.testing.assert_array_equal(out, mixed(want, 2))
    with numbaprims.config(threads=workers):
        make_launcher(join([Part(there, [None, array(1)], []), Part(back, [array(0)], [])]))(out, a)
    np.testing.assert_array_equal(out, a[::-1])


def test_floats_of_a_part_are_constants_or_those_of_the_call():
    dump = program_of(INTS, [(DUMP, 1, 1)])
    out = np.full(17, -1)
    arrays = [array(0), array(2), None, array(1, 16)]
    make_launcher(join([Part(dump, arrays, [0.5, 3, 0])]))(out, out[3:], out[5:], f0=1.5, f3=2.5)
    start = out.ctypes.data
    assert out[:8].tolist() == [start, start + 40, 0, start + 24 + 16, 0, 0, 0, 0]
    assert out[8:14].tobytes() == struct.pack("=6d", 0.5, 2.5, 1.5, 0, 0, 0) and out[14:].tolist() == INTS


def test_a_program_prints_what_it_runs():
    program = program_of([], [(ONCE, 10, 3), Phase(TWICE, 1, PER_WORKER)], steps=2, shared=64)
    assert str(program).splitlines() == [
        "2 times:", "  test_count: 10 tiles, 3 at a time", "  test_count: once for all workers",
        "scratch: 64 bytes shared, 0 a worker",
    ]  # fmt: skip
    assert str(program_of([], [(ONCE, 1, 1)])) == "test_count: 1 tiles\nin the calling thread"


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
