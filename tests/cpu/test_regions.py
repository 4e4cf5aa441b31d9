"""Scratch memory by name, and the records that drivers fill for the kernels that they call."""

import numpy as np
import pytest
from numba.core.errors import NumbaError

import numbaprims
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import Part, Program, Region, array, join
from numbaprims.cpu.regions import LINE, Regions
from numbaprims.cpu.simd import (
    Arguments,
    Record,
    address_of,
    call_range,
    copy_fields,
    load_scalar,
    record_at,
    stack_record,
    store_scalar,
)

CALLER = Arguments(
    arrays=("out", "x"), floats=("p",), ints=("n", "rows", "callee"), shared=("turned", "more"), own=("line", "two"),
)  # fmt: skip
CALLED = Arguments(arrays=("out", "x"), floats=("p", "q"), ints=("n", "add", "many"))
ROWS = Record("from_", "factor")
SIZES = Regions({"turned": 8 * 50, "more": 1}, {"line": 24, "two": 8 * 50})


def make_called():
    """out[i] = x[i] * p + q + add, over n of them."""

    @range_kernel("test_called", CALLED.types(out="i64", x="i64"), spec=())
    def called(args, worker, lo, hi):
        for i in range(args.n):
            store_scalar(args.out, i, int(load_scalar(args.x, i) * args.p + args.q) + args.add)

    return called


def make_caller():
    """A row's part of x into the worker's own region, by another kernel, and turned into the shared one."""
    types = CALLER.types(out="i64", x="i64", turned="i64", line="i64", two="i64")

    @range_kernel("test_caller", types, spec=())
    def caller(args, worker, lo, hi):
        two, block = args.two[worker], stack_record(CALLED)
        block.q = 0.5
        copy_fields(block, args, "p n")
        for row in range(lo, hi):
            store_scalar(args.line[worker], 0, row)  # in a line of its own: does not touch `two`
            block.x = address_of(args.x) + 8 * record_at(ROWS, args.rows, row).from_
            block.out = address_of(two)
            block.add = record_at(ROWS, args.rows, row).factor + load_scalar(args.line[worker], 0)
            call_range(args.callee, block, worker, 0, 1)
            for i in range(args.n):
                store_scalar(args.turned, row * args.n + i, load_scalar(two, args.n - 1 - i))

    return caller


def make_out():
    """out = turned."""

    @range_kernel("test_turned_out", CALLER.types(out="i64", turned="i64"), spec=())
    def out(args, worker, lo, hi):
        for i in range(lo, hi):
            store_scalar(args.out, i, load_scalar(args.turned, i))

    return out


def program_and_want(n=5, rows=10):
    table = ROWS.table(*({"factor": 100 * row, "from_": 3 * row} for row in range(rows)))
    x = np.arange(3 * rows + n) ** 2
    ints = {"n": n, "rows": int(table.ctypes.data), "callee": make_called().address}
    phases = [(make_caller(), rows, 1), (make_out(), n * rows, 7)]
    program = Program.of(CALLER, ints, phases, regions=SIZES, keep=(table,))
    want = [[2 * x[3 * row + i] + 100 * row + row for i in range(n)][::-1] for row in range(rows)]
    return program, x, np.array(want).ravel()


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_kernels_read_regions_and_fill_blocks_by_name(workers):
    program, x, want = program_and_want()
    out = np.zeros(want.size, np.int64)
    with numbaprims.config(threads=workers):
        make_launcher(program)(out, x, f0=2.0)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("workers", [1, 8])
def test_joined_programs_hand_on_by_name(workers):
    """The parts' regions lie behind what they share, in one place for all."""
    program, x, want = program_and_want()
    out, back = np.zeros(want.size, np.int64), np.zeros(want.size, np.int64)
    parts = [
        Part(program, [Region("second", 8), array(1)], [2.0]),
        Part(program, [array(0), Region("second", 8)], [1.0]),
        Part(program, [array(2), array(1)], [0]),
    ]
    joined = join(parts, shared={"first": 3, "second": 8 + 8 * want.size})
    assert joined.shared == 2 * LINE + 8 * want.size // LINE * LINE + SIZES.shared_bytes
    assert joined.worker == SIZES.own_bytes
    with numbaprims.config(threads=workers):
        make_launcher(joined)(out, x, back, f0=2.0)
    np.testing.assert_array_equal(back, want)
    again = [[want[3 * row + i] + 101 * row for i in range(5)][::-1] for row in range(10)]
    np.testing.assert_array_equal(out, np.ravel(again))


def test_places_follow_one_another_at_lines():
    assert SIZES.places == {"turned": 0, "more": 448, "line": 512, "two": 576, "worker_bytes": 512}
    assert (SIZES.shared_bytes, SIZES.own_bytes, SIZES.nbytes) == (512, 512, 1024)
    assert Regions({"empty": 0, "one": 1}).places == {"empty": 0, "one": 0}
    assert Regions().nbytes == 0 and not Regions().places
    with pytest.raises(ValueError, match="two regions have the name a"):
        _ = Regions({"a": 1}, {"a": 1}).places


def test_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="must differ"):
        Arguments(arrays=("out", "a"), shared=("a",))
    with pytest.raises(ValueError, match="must differ"):
        Arguments(arrays=("out", "workspace"), own=("a",))
    with pytest.raises(ValueError, match=r"\['line'\] are no regions that workers share"):
        Program.of(CALLER, {}, [], regions=Regions({"line": 8}))
    with pytest.raises(ValueError, match=r"\['line', 'more'\] are not in both"):
        ROWS.table({"from_": 1, "factor": 1, "line": 1, "more": 2})
    with pytest.raises(ValueError, match="differ from one another"):
        Record("a", "a")

    @range_kernel("test_misspelt", CALLER.types(), spec=("set",))
    def misspelt(args, worker, lo, hi):
        block = stack_record(CALLED)
        block.adds = 1

    @range_kernel("test_misspelt", CALLER.types(), spec=("copied",))
    def not_there(args, worker, lo, hi):
        copy_fields(stack_record(CALLED), args, "n many")

    for kernel in (misspelt, not_there):
        with pytest.raises((NumbaError, ValueError), match=r"adds|many is not in both"):
            _ = kernel.address
