"""The reduce engine across rows: what sums down columns and results share, and what is asked for before it is read."""

import dataclasses
import itertools

import numpy as np
import pytest
from assembly import named
from helpers import forced
from reduce_cases import case, check, launched, solver

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.rates import PROFILES
from numbaprims.cpu.reduce.solvers import STREAMS, sweeps
from numbaprims.cpu.reduce.variant import NEXT_ROW, WRITTEN_TOO
from numbaprims.formulas.reductions import FINISHED
from numbaprims.ops.batch_norm import PROBLEMS
from numbaprims.ops.tensor import PROBLEMS as OF_TENSORS


@pytest.mark.parametrize("dtype", ("f32", "bf16"))
@pytest.mark.parametrize("name", FINISHED)
def test_what_lies_across_is_finished_along(name, dtype, as_cpu):
    """Beyond the second-level cache: the bits of one phase; rows with gaps, too."""
    for memory in ("C", "gaps"):
        of = case(name, (37, 70), (0,), dtype, memory)
        for chosen in ("across", "split_across"):
            found = []
            for l2 in (1 << 40, 0):
                machine = dataclasses.replace(target.current(), l2=l2)
                as_cpu(machine)
                config = next(iter(solver(chosen).configs(of.problem, machine)))
                runs = solver(chosen).program(of.problem, machine, config).runs
                assert len(runs) == 1 + (l2 == 0)
                assert [each.back for each in runs[-1].phases] == [True] or len(runs) == 1
                launched(chosen, of)
                found.append([array.tobytes() for array, _ in of.results()])
            assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ("f32", "bf16"))
@pytest.mark.parametrize("name", ("total", "batch_norm_train_running", "batch_norm_backward"))
def test_sums_of_all_rows_side_by_side(name, dtype, as_cpu):
    """What no cache holds is walked in the order of memory: whole blocks of rows, and lanes that are left; one element
    of each at a time, or eight, whose next ones are asked for where the second-level cache holds them."""
    shapes = ((150, 70), (0,), "C"), ((2, 131, 256), (1,), "C"), ((2, 64, 300), (1,), "gaps")
    alone = target.current().rates._replace(share=1.0)  # of the last cache a core finds all again
    for (l1d, l2), (shape, axes, memory) in itertools.product(((1 << 15, 0), (1 << 8, 0), (1 << 8, 1 << 16)), shapes):
        machine = dataclasses.replace(target.current(), l1d=l1d, l2=l2, l3=1 << 15, measured=alone)
        as_cpu(machine)
        of = case(name, shape, axes, dtype, memory)
        assert sweeps(of.problem, machine, 64) == (1 if l1d > 1 << 8 else STREAMS)
        last = dataclasses.replace(machine, l2=3 * of.problem.bytes_moved())
        assert sweeps(of.problem, last, 64) == STREAMS  # of what the last cache holds, eight always
        program = solver("split_across").program(of.problem, machine, {"stores": "plain"})
        kernels = [phase.kernel.name for run in program.runs for phase in run.phases]
        assert any("sweep" in kernel for kernel in kernels) and not any("part" in kernel for kernel in kernels[:-1])
        check(of, ["split_across"])
    x = np.random.default_rng(0).standard_normal((150, 71)).astype(np.float32)
    x[70, 3] = np.nan
    with numbaprims.config(algorithm={"reduce": "split_across"}):
        np.testing.assert_array_equal(numbaprims.reduce(x, "argmax", axis=0), np.argmax(x, axis=0))
        np.testing.assert_array_equal(numbaprims.reduce(x, "max", axis=0), np.max(x, axis=0))


@pytest.mark.parametrize("dtype", ("f32", "bf16"))
@pytest.mark.parametrize("name", ("softmax", "softmax_backward", "log_softmax_backward"))
def test_results_of_all_rows_side_by_side(name, dtype, as_cpu):
    """They leave in the order of memory, where no cache holds them and chunks are enough for all cores."""
    for shape, axes, memory in ((150, 70), (0,), "C"), ((2, 131, 256), (1,), "C"), ((2, 64, 300), (1,), "gaps"):
        of, found = case(name, shape, axes, dtype, memory), []
        for l3, cores in ((1 << 12, 1), (1 << 12, 256), (1 << 30, 1)):
            machine = dataclasses.replace(target.current(), l2=1 << 12, l3=l3, cores_logical=cores)
            as_cpu(machine)
            program = solver("split_across").program(of.problem, machine, {"stores": "plain"})
            last = [phase.kernel.name for run in program.runs for phase in run.phases][-1]
            assert ("sweep" in last) == (l3 == 1 << 12 and cores == 1)
            check(of, ["split_across"])
            launched("split_across", of)
            found.append([array.tobytes() for array, _ in of.results()])
        assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "times", "wide"),
    [("softmax", 2, 1), ("softmax_backward", 4, 4), ("total", 4, 4), ("batch_norm_train_running", 2, 1)],
)
def test_more_rows_at_a_time(name, times, wide):
    """Where elements lie pages apart, which share the sets of the caches, and of sums that are all that leaves."""
    for columns, more in ((1024, times), (3104, wide)):
        for dtype, cpu, usual in (("f32", "znver5", 64), ("f32", "x86-64-v3", 32), ("f64", "znver5", 32)):
            of = case(name, (20, columns), (0,), dtype, "C")
            assert solver("across").vector(of.problem, named(cpu))[0] == usual * more
            if name == "softmax_backward" and columns != 1024:  # half of the second-level cache holds no row of a block
                assert solver("across").vector(of.problem, dataclasses.replace(named(cpu), l2=1 << 12))[0] == usual
        check(case(name, (20, columns), (0,), "f32", "C"), ["across"])


@pytest.mark.parametrize("dtype", ("f64", "f32", "bf16"))
@pytest.mark.parametrize("name", ("softmax", "log_softmax_backward"))
def test_lanes_hold_several_elements_of_few_rows(name, dtype):
    """As many as a vector has room for and the length of rows is a multiple of."""
    for shape, axis, f64, f32 in ((48, 3), 0, 2, 4), ((2, 250, 5), 1, 1, 2), ((4100, 2), 0, 4, 4), ((49, 3), 0, 1, 1):
        of, held = case(name, shape, (axis,), dtype, "C"), f64 if dtype == "f64" else f32
        assert solver("across").folded(of.problem, named("znver5")).kept[-1] == held * shape[-1]
        check(of, ["across", "split_across"])
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    x[:, 0], x[11, 1] = -np.inf, np.nan
    for name in "across", "split_across":
        with numbaprims.config(algorithm={"softmax": name}):
            found = numbaprims.softmax(x, axis=0)
        assert np.isnan(found[:, :2]).all()
        np.testing.assert_allclose(found[:, 2], np.exp(x[:, 2]) / np.exp(x[:, 2]).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "better"),
    [("log_softmax", (21, 262144), "across"), ("log_softmax", (300, 3000), "across"),
     ("log_softmax", (1000, 8192), "split_across"), ("log_softmax_backward", (300, 3000), "split_across")],
)  # fmt: skip
def test_few_pages_are_walked_down_where_the_third_level_waits(name, shape, better):
    """As timed on an Emerald Rapids: 0.3 to 0.9 of the other's time."""
    problem = case(name, shape, (0,), "f32", "C").problem
    seconds = {each: solver(each).estimate(problem, intel()) for each in ("across", "split_across")}
    assert min(seconds, key=seconds.__getitem__) == better, seconds


def intel(cores=2):
    """An Emerald Rapids."""
    facts = {"l1d": 48 << 10, "l2": 2 << 20, "l3": 260 << 20, "cores_logical": cores, "measured": None}
    return dataclasses.replace(named("sapphirerapids"), **facts)


@pytest.mark.parametrize(("rows", "side", "better"), [
    (784, 512, "split_across"), (3136, 1024, "split_across"), (196, 512, "across"),
])  # fmt: skip
def test_what_a_second_phase_reads_again_is_cut_into_chunks(rows, side, better):
    """As timed on an Emerald Rapids, behind the second level: 0.7 of the time by blocks of columns; else 0.9 of it."""
    x, one = np.empty((1, rows, 1, side), np.float32), np.empty(side, np.float32)
    problem = PROBLEMS["batch_norm_backward"](x, x.copy(), one, one, one, layout="NHWC")
    seconds = {each: solver(each).estimate(problem, intel()) for each in ("across", "split_across")}
    assert min(seconds, key=seconds.__getitem__) == better, seconds


def test_elements_a_page_apart_are_swept_behind_the_second_level_where_the_third_waits():
    for rows, side, swept in ((768, 2048, STREAMS), (196, 2048, 0), (3136, 768, 0)):
        problem = numbaprims.explain("reduce", np.empty((rows, side), np.float32), "sum", axis=0).problem
        assert sweeps(problem, intel(), 64) == swept
        assert sweeps(problem, dataclasses.replace(named("znver5"), l3=64 << 20), 64) == 0


def test_the_last_chunks_come_first_behind_a_pass():
    """Of long rows that workers share; where the first pass is the only one, they come in order."""
    for name, backs in (("softmax", [False, False, True]), ("total", [False, False])):
        of = case(name, (4, 70000), (1,), "f32", "C")
        program = solver("split").program(of.problem, target.current(), {"stores": "plain"})
        assert [phase.back for run in program.runs for phase in run.phases] == backs


@pytest.mark.parametrize(("threads", "cores", "op", "megabytes", "stores"), [
    (1, 2, "add", 5, "stream"), (1, 2, "add", 3, "plain"), (2, 2, "add", 5, "plain"), (2, 2, "add", 10, "stream"),
    (1, 2, "scale", 30, "plain"), (1, 1, "images", 5, "stream"), (1, 2, "images", 5, "plain"),
    (2, 2, "images", 5, "plain"), (1, 2, "images", 10, "stream"), (2, 2, "images", 10, "stream"),
])  # fmt: skip
def test_what_reads_several_arrays_leaves_past_the_caches_where_the_third_level_waits(
    threads, cores, op, megabytes, stores
):
    """Sums of rows that are summed up in another order past them do so for all numbers of threads alike."""
    x = np.empty((megabytes * 10**6 // (49 * 64 * 12), 64, 7, 7), np.float32)
    one = np.empty(64, np.float32)
    if op == "images":
        x = np.empty((x.shape[0] // 4, 64, 14, 14), np.float32)
        problem = PROBLEMS["batch_norm_backward"](x, x.copy(), one, one, one)
    else:
        problem = OF_TENSORS["binary"](x, x.copy(), op) if op == "add" else OF_TENSORS["scale"](x, 2.0)
    with numbaprims.config(threads=threads):
        assert next(iter(solver("rows").configs(problem, intel(cores))))["stores"] == stores
        amd = dataclasses.replace(named("znver5"), l3=64 << 20)
        assert next(iter(solver("rows").configs(problem, amd)))["stores"] == "plain"


@pytest.mark.parametrize(("times", "shared"), [(2.2, True), (1.0, False)])
def test_work_that_is_mostly_writing_is_shared_out(times, shared):
    """A fill of 393 KB takes 8.3 us on an Emerald Rapids, 6.1 in two threads; as much reading took 3."""
    machine = dataclasses.replace(intel(), measured=intel().rates._replace(stores=times))
    problem = OF_TENSORS["fill"](np.empty((128, 768), np.float32), 1.0)
    assert (solver("rows").program(problem, machine, {"stores": "plain"}).worth >= 1) == shared
    larger = OF_TENSORS["fill"](np.empty((1024, 768), np.float32), 1.0)  # the third level is waited for either way
    assert solver("rows").estimate(larger, machine) == solver("rows").estimate(larger, intel())


def test_short_rows_that_wait_leave_past_the_caches_where_the_third_level_waits():
    """They wait in scratch memory then, not in the result; long ones, and those that the caches keep, in the result."""
    for machine, rows, columns, stores in (
        (intel(), 36864, 384, "stream"), (intel(), 4096, 4096, "plain"), (intel(), 4096, 384, "plain"),
        (dataclasses.replace(named("znver5"), l1d=48 << 10, l2=1 << 20, l3=32 << 20), 36864, 384, "plain"),
    ):  # fmt: skip
        problem = numbaprims.explain("softmax", np.empty((rows, columns), np.float32)).problem
        assert next(iter(solver("rows").configs(problem, machine)))["stores"] == stores


def test_nothing_is_asked_for_behind_a_row_that_nobody_reads(rng, as_cpu):
    """Of a part of an array: the same place of the next row comes, from memory; the same bits."""
    machine = dataclasses.replace(target.current(), l2=1 << 14, l3=1 << 30, measured=PROFILES["haswell"])
    far = dataclasses.replace(machine, l3=1 << 14)

    def ahead(x, machine):
        problem = numbaprims.explain("reduce", x, "sum", axis=1).problem
        return solver("rows").variant(problem, machine, {"stores": "plain"}, "rows").ahead

    x = np.ones((20, 20000), np.float32)
    for part, near, beyond in (
        (x[:, :768], 0, NEXT_ROW), (x[:, 768:3000], 0, NEXT_ROW), (x[:, :16000], 4096, 4096), (x, 4096, 4096),
        (x[:1, :8000], 4096, 4096), (x[:, :8000].copy(), 4096, 4096),
    ):  # fmt: skip
        assert (ahead(part, machine), ahead(part, far)) == (near, beyond), part.shape
    assert ahead(x[:, :768], dataclasses.replace(far, measured=machine.rates._replace(ahead=0))) == 0
    x = rng.standard_normal((37, 3000)).astype(np.float32)
    want = numbaprims.reduce(x[:, 5:905], "sum", axis=1), numbaprims.layer_norm(x[3:, :800])
    as_cpu(far)
    np.testing.assert_array_equal(numbaprims.reduce(x[:, 5:905], "sum", axis=1), want[0])
    np.testing.assert_array_equal(numbaprims.layer_norm(x[3:, :800]), want[1])


def test_what_is_asked_for_before_it_is_read(rng, as_cpu):
    """The next channel's planes, where these are no line of addresses of their own; the same bits."""
    machine = dataclasses.replace(target.current(), l2=1 << 14, l3=1 << 30, measured=PROFILES["haswell"])

    def posed(*shape):
        return PROBLEMS["batch_norm_train"](
            *(np.ones(each, np.float32) for each in (shape, *shape[1:2] * 2)), None, None
        )

    def ahead(problem, machine):
        return solver("rows").variant(problem, machine, {"stores": "plain"}, "rows").ahead

    assert ahead(posed(4, 8, 14, 14), machine) == NEXT_ROW
    assert ahead(posed(4, 8, 14, 14), dataclasses.replace(machine, l2=1 << 20)) == 0
    slow = machine.rates._replace(l3=1.2 * machine.rates.memory)  # a third level from which a core waits as for memory
    assert ahead(posed(4, 8, 14, 14), dataclasses.replace(machine, measured=slow)) == WRITTEN_TOO
    for other in (posed(1, 64, 14, 14), posed(4, 2, 32, 33)):  # one run, or long ones, which the last cache holds
        assert ahead(other, machine) == 0
    for follows, asked in ((True, NEXT_ROW), (False, WRITTEN_TOO)):  # results too, past the last cache
        rates = machine.rates._replace(ahead=4096, follows=follows)
        of = dataclasses.replace(machine, l3=1 << 14, measured=rates)
        assert ahead(posed(4, 2, 32, 33), of) == asked
    assert ahead(posed(4, 2, 32, 33), dataclasses.replace(of, measured=rates._replace(ahead=0))) == NEXT_ROW
    for other in (posed(1, 64, 14, 14), posed(4, 2, 128, 128)):
        assert ahead(other, dataclasses.replace(machine, l3=1 << 14)) == machine.rates.ahead
    for name, asked in (("log_softmax_backward", NEXT_ROW), ("softmax_backward", machine.rates.ahead)):
        for n in (5, 1100):  # a step of memory reaches past short columns; some cores follow long ones by themselves
            problem = case(name, (7, n, 80), (1,), "f32").problem
            for across, (follows, l3) in itertools.product((False, True), ((0, 30), (1, 30), (1, 10))):
                of = dataclasses.replace(machine, l3=1 << l3, measured=machine.rates._replace(follows=bool(follows)))
                usual, way = asked if n > 5 or asked == NEXT_ROW else 0, solver("across" if across else "split_across")
                itself = across * (n < 64) * NEXT_ROW
                found = way.variant(problem, of, {"stores": "plain"}, "rows" if across else "part").ahead
                assert found == (itself if follows and (across or l3 == 30) else usual)
    x, one = rng.standard_normal((4, 8, 14, 13)).astype(np.float32), np.ones(8, np.float32)
    with forced("batch_norm", "rows"):
        by_rows = numbaprims.batch_norm_train(x, one, one)
    want = numbaprims.batch_norm_train(x, one, one), numbaprims.softmax(x, axis=1)
    rates = machine.rates._replace(ahead=4096, follows=False, share=1.0)
    asking = dataclasses.replace(machine, l3=1 << 16, measured=rates)
    assert ahead(posed(4, 8, 14, 13), asking) == WRITTEN_TOO
    as_cpu(asking)
    with forced("batch_norm", "rows"):
        asked_for = numbaprims.batch_norm_train(x, one, one)
    as_cpu(machine)
    pairs = zip((*asked_for, *numbaprims.batch_norm_train(x, one, one)), (*by_rows, *want[0]), strict=True)
    for found, before in pairs:
        np.testing.assert_array_equal(found, before)
    np.testing.assert_array_equal(numbaprims.softmax(x, axis=1), want[1])
