"""gpu/launch.py: programs, their regions, and launchers inside of programs."""

import functools

import numpy as np
import pytest

import numbaprims
from numbaprims.dispatch import registry
from numbaprims.gpu.jit import block_index, gpu_kernel, thread_index, types
from numbaprims.gpu.launch import REGION, Loop, Nested, Part, Program, make_launcher, program_of, step
from numbaprims.gpu.memory import empty, storage_view, to_device

F32 = types.float32


@functools.cache
def make_add():
    """out = x + by, of 32 elements a block."""
    pointer = types.CPointer(F32)

    @gpu_kernel("test_add", types.void(pointer, pointer, F32), (), threads=32)
    def add(out, x, by):
        i = types.uint32(block_index() * 32 + thread_index())
        out[i] = x[i] + by

    return add


def added(out, x):
    """The step, from a region or an array to another."""

    def place(arrays, at, of):
        return at[of] if isinstance(of, str) else arrays[of].pointer

    return step(make_add(), 1, lambda arrays, floats, at: (place(arrays, at, out), place(arrays, at, x), floats[0]))


def views(*arrays):
    return [storage_view(each) for each in arrays]


def test_regions_by_name(gpu):
    """One allocation, whose parts begin at multiples of 256 bytes."""
    program = Program([added("a", 1), added("b", "a"), added(0, "b")], {"a": 130, "b": 128})
    assert program.offsets == {"a": 0, "b": REGION} and program.nbytes == REGION + 128
    x, out = np.arange(32, dtype=np.float32), empty((32,), np.float32)
    program.launcher()(*views(out, to_device(x)), f0=2.0)
    np.testing.assert_array_equal(out.to_host(), x + 6)
    assert str(program).splitlines() == ["test_add: 1 blocks of 32 threads"] * 3 + [
        "scratch: 130 bytes for a", "scratch: 128 bytes for b",
    ]  # fmt: skip
    with pytest.raises(KeyError, match="c"):
        make_launcher([added("c", 1)], {"a": 128})(*views(out, to_device(x)))


@functools.cache
def make_count():
    """out += 10**step."""

    @gpu_kernel("test_count", types.void(types.CPointer(types.int32), types.int32), (), threads=1)
    def count(out, step):
        by = types.int32(1)
        for _ in range(step):
            by = types.int32(by * 10)
        out[0] += by

    return count


def test_a_loop(gpu):
    """Its kernels get the number of the repetition, its launchers do not; all other values are made once."""
    made = []

    def values(arrays, floats, at):
        made.append(arrays[1])
        return (arrays[1].pointer,)

    inside = make_launcher([added("r", 0), added(0, "r")], {"r": 128})
    program = Program([Loop((step(make_count(), 1, values), Nested(inside, (Part(0),))), 3)])
    out, count = to_device(np.zeros(32, np.float32)), to_device(np.zeros(1, np.int32))
    program.launcher()(*views(out, count), f0=1.0)
    assert count.to_host() == 111 and len(made) == 1 and program.nbytes == 128
    np.testing.assert_array_equal(out.to_host(), np.full(32, 6, np.float32))
    assert str(program).splitlines()[0] == "3 times:"


def test_a_launcher_inside_of_a_program(gpu):
    """It gets parts of regions and of arrays, its own floats or those of the call; its scratch memory comes on top."""
    inside = make_launcher([added("r", 1), added(0, "r")], {"r": 128})
    program = Program(
        [
            Nested(inside, (Part("sum", 128), Part(1, 128)), (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
            Nested(inside, (Part(0), Part("sum", 128), None, Part(3))),
        ],
        {"sum": 256},
    )
    assert program.own == 256 and program.nbytes == 256 + 128
    x, out = np.arange(64, dtype=np.float32), empty((32,), np.float32)
    program.launcher()(*views(out, to_device(x)), f0=10.0)
    np.testing.assert_array_equal(out.to_host(), x[32:] + 2 + 20)
    assert str(program).splitlines()[:4] == [
        "into sum, of array 1:", "  test_add: 1 blocks of 32 threads", "  test_add: 1 blocks of 32 threads",
        "  scratch: 128 bytes for r",
    ]  # fmt: skip


@pytest.mark.parametrize("stem", ["gemm", "gemv", "ger", "activation", "conv", "softmax", "pooling"])
def test_what_a_solver_runs_is_listed(gpu, stem):
    """Each that takes a problem has a program, which says what scratch memory it needs and compiles nothing."""
    rng = np.random.default_rng(0)
    x, image, w = (to_device(rng.normal(size=s).astype(np.float32)) for s in ((96, 96), (1, 8, 9, 9), (8, 8, 3, 3)))
    calls = {
        "gemm": ("gemm", x, x), "gemv": ("gemv", x, x[0]), "ger": ("ger", x[0], x[1]), "activation": ("relu", x),
        "conv": ("conv", image, w), "softmax": ("softmax", x), "pooling": ("max_pool", image, 2),
    }  # fmt: skip
    name, *arguments = calls[stem]
    explained = numbaprims.explain(name, *arguments, phases=True)
    assert f"blocks of {explained.program.steps[0].kernel.threads} threads" in str(explained).partition("phases:\n")[2]
    target, seen = registry.target("emulated"), 0
    for solver in registry.solvers(explained.problem.stem, "cuda"):
        if solver.why_not(explained.problem, target) is None:
            config = next(iter(solver.configs(explained.problem, target)))
            launch = solver.bind(explained.problem, target, config)
            assert program_of(launch).nbytes == solver.workspace(explained.problem, target, config)
            assert str(program_of(launch)).count("blocks of") >= 1
            seen += 1
    assert seen >= 1 and not gpu.launches
