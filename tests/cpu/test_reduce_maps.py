"""Maps, which are formulas without reductions, in the reduce engine: how their rows are walked and leave."""

import dataclasses

import numpy as np
import pytest
from reduce_cases import case, solver

import numbaprims
from numbaprims import libraries
from numbaprims.cpu import target
from numbaprims.cpu.reduce.prepared import joined
from numbaprims.ops.batch_norm import PROBLEMS
from numbaprims.ops.reduce import PROBLEMS as REDUCE
from numbaprims.ops.tensor import PROBLEMS as OF_TENSORS


def zen_4():
    facts = {"vector_bytes": 64, "l1d": 32 << 10, "l2": 1 << 20, "l3": 32 << 20, "measured": None}
    return dataclasses.replace(target.current(), name="znver4", triple="x86_64-linux-gnu", **facts)


def test_how_maps_are_walked_on_a_zen_4():
    """By half vectors; past the caches whole lines leave by stores that do not read them, whatever a row's length."""
    machine, rows, one = zen_4(), solver("rows"), np.ones(64, np.float32)

    def first(*shape):
        problem = PROBLEMS["batch_norm"](np.zeros(shape, np.float32), one, one, one, one)
        config = next(iter(rows.configs(problem, machine)))
        return rows.variant(problem, machine, config, "rows")

    near, past = first(1, 64, 7, 7), first(2048, 64, 8, 8)
    assert (near.W, near.run, near.stores) == (8, 7, "plain")
    assert (past.W, past.stores) == (16, "stream")
    for name, shape, W in (
        ("softmax_backward", (64, 400), 8), ("softmax_backward", (64, 128), 16), ("softmax", (64, 400), 16),
        ("softmax_backward", (8192, 400), 16), ("log_softmax_backward", (64, 400), 16),
        ("total", (64, 49), 8), ("total", (64, 16), 16), ("total", (64, 65), 16),
    ):  # fmt: skip
        problem = case(name, shape, (1,), "f32").problem
        assert rows.variant(problem, machine, {"stores": "plain"}, "rows").W == W, name


def test_how_maps_are_walked_on_a_zen_3():
    """Bytes by two registers; of two arrays nothing is asked for where both lie in the caches, or far beyond them."""
    machine, rows = dataclasses.replace(zen_4(), name="znver3", vector_bytes=32, l2=512 << 10), solver("rows")

    def of(op, n, second):
        problem = OF_TENSORS["binary"](np.zeros((n, 1024), np.float32), np.zeros(second, np.float32), op)
        return rows.variant(problem, machine, {"stores": "plain"}, "rows")

    found = [(op, of(op, n, (n, 1024))) for op in ("add", "less") for n in (300, 1024, 8192)]
    assert [(op, each.W, each.U) for op, each in found] == [
        ("add", 8, 4), ("add", 8, 4), ("add", 8, 4), ("less", 16, 2), ("less", 16, 2), ("less", 8, 4)
    ]  # fmt: skip
    assert [bool(each.ahead) for _, each in found] == [False, True, False, False, True, True]
    assert of("add", 300, 1024).ahead, "a row that all share is no second array"


@pytest.mark.parametrize("dtype", ("uint8", "float16", "float32", "float64"))
def test_rows_that_are_a_part_of_a_vector(rng, dtype):
    """Between others' elements; as many lanes as they need, without loops."""
    for n in (2, 3, 4, 5, 7, 8, 9, 15, 17):
        x, y = rng.integers(0, 99, (37, n + 2)).astype(dtype), np.full((37, n + 3), 7, dtype)
        out = y[:, 1 : n + 1]
        with numbaprims.config(algorithm={"tensor": "rows"}):
            numbaprims.binary(x[:, :n], x[0, 2:], "add", out=out)
        np.testing.assert_array_equal(out, x[:, :n] + x[0, 2:])
        assert (y[:, :1] == 7).all() and (y[:, n + 1 :] == 7).all()
    x = np.zeros((50, 6), np.float32)
    problem, machine = OF_TENSORS["cast"](x[:, :3], "f32", out=np.zeros((50, 5), np.float32)[:, :3]), zen_4()
    variant = solver("rows").variant(problem, machine, {"stores": "plain"}, "rows")
    assert (variant.W, variant.run) == (4, 1)
    assert solver("rows").estimate(problem, machine) < solver("blocks").estimate(problem, machine)


@pytest.mark.parametrize("name, side, run", [
    ("batch_norm", 7, 7), ("batch_norm", 14, 25), ("batch_norm", 17, 0), ("batch_norm_train", 7, 7),
    ("batch_norm_train", 10, 0),
])  # fmt: skip
def test_short_rows_are_written_out_by_avx2(name, side, run):
    """As far as 32 vectors of the rows side by side."""
    machine, one = dataclasses.replace(zen_4(), name="znver3", vector_bytes=32), np.ones(64, np.float32)
    more = (None, None) if name == "batch_norm_train" else (one, one)
    problem = PROBLEMS[name](np.zeros((2, 64, side, side), np.float32), one, one, *more)
    assert solver("rows").variant(problem, machine, {"stores": "plain"}, "rows").run == run


@pytest.mark.parametrize("rows, n, wide, stores", [
    (6272, 512, 1024, "stream"), (6272, 512, 512, "plain"), (200, 512, 1024, "plain"), (50176, 32, 4096, "plain"),
])  # fmt: skip
def test_a_part_of_a_wider_array_leaves_as_the_whole_does(rows, n, wide, stores):
    problem = OF_TENSORS["cast"](np.empty((rows, n), "f"), "f32", out=np.empty((rows, wide), "f")[:, :n])
    assert next(iter(solver("rows").configs(problem, zen_4())))["stores"] == stores


@pytest.mark.parametrize("threads, rows, op, stores", [
    (2, 1100, "scale", "plain"), (1, 1100, "scale", "stream"), (2, 1300, "scale", "stream"), (2, 750, "add", "stream"),
])  # fmt: skip
def test_what_is_written_stays_in_the_caches_of_several_cores(threads, rows, op, stores):
    """Where it is half of 34 to 40 MiB; of a sum it is a third, and what is read again stays."""
    x = np.empty((rows, 4096), np.float32)
    problem = OF_TENSORS["binary"](x, x.copy(), op) if op == "add" else OF_TENSORS["scale"](x, 2.0)
    machine = dataclasses.replace(zen_4(), name="znver5", cores_logical=2)
    with numbaprims.config(threads=threads):
        assert next(iter(solver("split").configs(problem, machine)))["stores"] == stores


def test_one_block_of_columns_is_not_cut_for_little_work():
    """What is cut is merged again: of 64 columns two threads take 9.5 us where one takes 8.2 (Zen 4)."""
    for rows, chosen in ((3136, "across"), (30_000, "split_across")):
        problem = REDUCE["reduce"](np.zeros((rows, 64), np.float32), "sum", 0)
        taken = {name: solver(name).estimate(problem, zen_4()) for name in ("across", "split_across")}
        assert min(taken, key=taken.__getitem__) == chosen, taken


def test_what_is_not_merged_is_cut_for_little_work():
    """A cast of 64 x 3136 floats in one piece takes 14.8 us on two threads, in several 8.5 (Zen 4)."""
    for n, chosen in ((1 << 15, "rows"), (64 * 3136, "split")):
        problem = OF_TENSORS["cast"](np.zeros(n, np.float32), "float16")
        taken = {name: solver(name).estimate(problem, zen_4()) for name in ("rows", "split")}
        assert min(taken, key=taken.__getitem__) == chosen, taken


@pytest.mark.parametrize("dtype", ("f32", "f16"))
def test_runs_in_the_order_of_the_source(dtype, rng, as_cpu):
    """What no cache holds is read in the order of memory, wherever its runs go."""
    machine, axes = dataclasses.replace(target.current(), l2=1 << 10, l3=1 << 10), (3, 0, 2, 1, 4)
    x = rng.standard_normal((2, 3, 5, 4, 48)).astype(np.float16 if dtype == "f16" else np.float32)
    posed = OF_TENSORS["transform"](x, axes)
    far = dataclasses.replace(machine, l2=1 << 30, l3=1 << 30)
    for ahead in (0, 4096):  # a core that has to be asked does so from the second-level cache on
        rates = machine.rates._replace(ahead=ahead)
        near = dataclasses.replace(far, l2=1 << 10, measured=rates)
        assert (solver("rows").by_source(posed, near) is posed) == (not ahead)
    for cpu, kept in ((far, (4, 2, 5, 3)), (machine, (2, 3, 5, 4))):
        as_cpu(cpu)
        assert solver("rows").by_source(posed, cpu).kept == kept
        streams = next(iter(solver("rows").configs(posed, cpu)))["stores"] == "stream"
        assert streams == (dtype == "f32" and cpu is machine)  # 96 bytes are no whole lines
        with numbaprims.config(algorithm={"tensor": "rows"}):
            np.testing.assert_array_equal(numbaprims.transform(x, axes), x.transpose(axes))
    repeated = np.broadcast_to(x[:, :1], x.shape)
    other = OF_TENSORS["binary"](x.transpose(axes), np.zeros((4, 2, 5, 3, 48), x.dtype), "add")
    for posed in (OF_TENSORS["transform"](repeated, axes), other):
        assert solver("rows").by_source(posed, machine) is posed


def test_columns_that_all_rows_share_a_part_at_a_time(rng, as_cpu):
    """The same bits; only of maps, where what is shared and a row are more than the first-level cache."""
    machine = dataclasses.replace(target.current(), l1d=4096)
    x, (scale, shift, mean, var) = rng.standard_normal((20, 512)).astype(np.float32), rng.random((4, 512), np.float32)
    want = numbaprims.batch_norm(x, scale, shift, mean, var), numbaprims.binary(x, shift, "add")
    as_cpu(machine)
    found = numbaprims.batch_norm(x, scale, shift, mean, var), numbaprims.binary(x, shift, "add")
    for mine, before in zip(found, want, strict=True):
        np.testing.assert_array_equal(mine, before)
    posed = OF_TENSORS["binary"](x, shift, "add")
    parts = [
        solver("rows").columns_at_a_time(posed, cpu) for cpu in (machine, dataclasses.replace(machine, l1d=1 << 15))
    ]
    assert [(each.kept, each.reduced) for each in parts] == [((4, 20), (128,)), ((20,), (512,))]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_row_that_all_share_is_read_once_for_two(dtype, rng, as_cpu):
    """The same bits; only of maps from memory, where that row alone is more than the first-level cache."""
    machine = dataclasses.replace(target.current(), l1d=1024, l2=2048, l3=4096)
    x, row = (rng.standard_normal(shape).astype(dtype) for shape in ((5, 512), (512,)))
    y = libraries.aligned_empty(x.shape, x.dtype)
    want = numbaprims.binary(x, row, "add")
    posed = OF_TENSORS["binary"](x, row, "add")
    others = [dataclasses.replace(machine, **more) for more in ({"l1d": 4096}, {"l3": 1 << 20})]
    for cpu, stores, wanted in ((machine, "stream", 2), *((other, "stream", 1) for other in others)):
        assert solver("rows").variant(posed, cpu, {"stores": stores}, "rows").together == wanted
    norm = case("softmax", (5, 512), (1,), "f32").problem
    assert solver("rows").variant(norm, machine, {"stores": "stream"}, "rows").together == 1
    as_cpu(machine)
    np.testing.assert_array_equal(numbaprims.binary(x, row, "add", out=y), want)


def test_several_rows_that_all_share_are_read_once_for_four(rng, as_cpu):
    """The same bits; of maps whose shared rows take three quarters of the first-level cache, which are not cut then."""
    small, large = (dataclasses.replace(target.current(), l1d=size) for size in (8192, 16384))
    x, parameters = rng.standard_normal((99, 512)).astype(np.float32), rng.random((4, 512), np.float32) + 1
    rows, parts, plain = solver("rows"), [], {"stores": "plain"}

    def make(part, last):
        parts.append(part)
        return rows.program(part, large, plain)

    joined(PROBLEMS["batch_norm"](x, *parameters), make)
    assert [rows.variant(parts[-1], cpu, plain, "rows").together for cpu in (small, large)] == [4, 1]
    assert rows.columns_at_a_time(parts[-1], small) is parts[-1]
    want = numbaprims.batch_norm(x, *parameters)
    as_cpu(small)
    np.testing.assert_array_equal(numbaprims.batch_norm(x, *parameters), want)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "bool"])
def test_long_runs_of_copies_by_string_instructions(dtype, rng, as_cpu):
    """Where the core's rates have them, of one type; between others' elements, in any order, as parts of a row."""
    machine = target.current()
    if machine.isa == "neon":
        pytest.skip("string instructions are x86's")
    machine = dataclasses.replace(machine, l1d=512, measured=machine.rates._replace(strings=256))
    x = rng.integers(0, 2 if dtype == "bool" else 99, (5, 4, 700)).astype(dtype)
    as_cpu(machine)
    for name in ("rows", "split"):
        out = np.full((4, 5, 703), 7).astype(dtype)
        with numbaprims.config(algorithm={"tensor": name}):
            numbaprims.transform(x[:, :, 1:600], (1, 0, 2), out=out[:, :, 2:601])
            long = np.concatenate([x.ravel()] * 24)
            np.testing.assert_array_equal(numbaprims.cast(long, dtype), long)
        np.testing.assert_array_equal(out[:, :, 2:601], x[:, :, 1:600].transpose(1, 0, 2))
        np.testing.assert_array_equal(np.delete(out, np.s_[2:601], 2), np.full((4, 5, 104), 7).astype(dtype))
        posed = OF_TENSORS["transform"](x[:, :, 1:600], (1, 0, 2), out=out[:, :, 2:601])
        assert next(iter(solver(name).configs(posed, machine)))["stores"] == "string"
    for other, cpu in (
        (OF_TENSORS["transform"](x[:, :, :9], (1, 0, 2)), machine), (OF_TENSORS["cast"](x, "f64"), machine),
        (posed, dataclasses.replace(machine, measured=machine.rates._replace(strings=0))),
        (posed, dataclasses.replace(machine, l1d=1 << 20)),
    ):  # fmt: skip
        assert {"stores": "string"} not in solver("rows").configs(other, cpu)
