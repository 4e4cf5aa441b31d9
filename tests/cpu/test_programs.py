"""Programs: words that are bound, arrays without limit, programs that are joined, what they print."""

import dataclasses
import struct

import numpy as np
import pytest
from toy_ranges import ARGS, BACK, DUMP, INTS, ONCE, THERE, TWICE, make_reverse, mixed, program_of

import numbaprims
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import MOST_WORDS, PER_WORKER, Bind, Block, Part, Phase, Program, Run, array, join, scratch
from numbaprims.cpu.simd import Arguments, load_scalar, store_scalar

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
    with pytest.raises(ValueError, match="140 arrays; a program takes at most 127"):
        make_launcher(program_of([], [(ONCE, 1, 1)], shared=8))(*[np.zeros(1)] * 7, more=[np.zeros(1)] * 133)
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


@pytest.mark.parametrize("worth, wakes", [((0.4, 0.5), False), ((0.6, 0.5), False), ((0.7, 0.6), True)])
def test_joined_programs_wake_threads_for_what_all_of_them_do(worth, wakes):
    programs = [dataclasses.replace(program_of([], [(ONCE, 8, 1)]), parallel=False, worth=each) for each in worth]
    assert join([Part(each, [], []) for each in programs]).parallel is wakes


def test_floats_of_a_part_are_constants_or_those_of_the_call():
    dump = program_of(INTS, [(DUMP, 1, 1)])
    out = np.full(17, -1)
    arrays = [array(0), array(2), None, array(1, 16)]
    make_launcher(join([Part(dump, arrays, [0.5, 3, 0])]))(out, out[3:], out[5:], f0=1.5, f3=2.5)
    start = out.ctypes.data
    assert out[:8].tolist() == [start, start + 40, 0, start + 24 + 16, 0, 0, 0, 0]
    assert out[8:14].tobytes() == struct.pack("=6d", 0.5, 2.5, 1.5, 0, 0, 0) and out[14:].tolist() == INTS


def test_a_program_prints_what_it_runs():
    phases = [Phase(ONCE, 10, 3, back=True), Phase(TWICE, 1, PER_WORKER)]
    program = program_of([], phases, steps=2, shared=64)
    assert str(program).splitlines() == [
        "2 times:", "  test_count: 10 tiles, 3 at a time, the last ones first", "  test_count: once for all workers",
        "scratch: 64 bytes shared, 0 a worker",
    ]  # fmt: skip
    assert str(program_of([], [(ONCE, 1, 1)])) == "test_count: 1 tiles\nin the calling thread"
