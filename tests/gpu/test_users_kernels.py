"""The device functions inside a user's own `@cuda.jit`, whose arrays are Numba's: the example, run in the emulator."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest
from numba import cuda
from ptx_emulator.errors import EmulatorError

PATH = pathlib.Path(__file__).parents[2] / "examples" / "softmax_in_cuda_jit.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("softmax_in_cuda_jit", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ptx(example):
    return cuda.compile(example.softmax_rows.py_func, example.SIGNATURE, cc=(8, 0), device=False, abi="numba")[0]


def parameters(driver, array):
    """What numba-cuda passes for an array: meminfo, parent, elements, their size, address, shape, strides."""
    address = driver.alloc(array.nbytes, 0)
    driver.copy(address, array, array.nbytes, 0)
    return address, (0, 0, array.size, array.itemsize, address, array.size, array.itemsize)


def launch(gpu, ptx, example, x):
    """One block a row; the result as the emulated memory holds it."""
    entry = re.search(r"\.entry (\S+)\(", ptx)[1]
    kernel = gpu.load(ptx, b"", entry, 0)
    rows, columns = x.shape
    out_at, out = parameters(gpu, np.full(x.size, np.nan, np.float32))
    _, given = parameters(gpu, x.reshape(-1))
    values = (*out, *given, columns)
    gpu.launch(kernel, (rows, 1, 1), (example.THREADS, 1, 1), 0, 0, ("i64",) * 14 + ("i32",), values)
    result = np.empty(x.size, np.float32)
    gpu.copy(result, out_at, result.nbytes, 0)
    return result.reshape(x.shape)


@pytest.mark.parametrize("columns", (4, 260, 1536))
def test_the_example_is_a_softmax(gpu, ptx, example, columns):
    x = np.random.default_rng(columns).normal(0, 4, (3, columns)).astype(np.float32)
    got = launch(gpu, ptx, example, x)
    want = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=2e-6)
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-6)
    np.testing.assert_array_equal(got, launch(gpu, ptx, example, x))  # the order of the sums is fixed


def test_the_tools_see_a_barrier_that_is_missing(gpu, ptx, example):
    """The emulator would find the race: the same kernel without one of its barriers."""
    x = np.ones((1, 512), np.float32)
    lines = ptx.splitlines()
    barriers = [number for number, line in enumerate(lines) if "bar.sync" in line]
    assert len(barriers) == 4
    broken = "\n".join(line for number, line in enumerate(lines) if number != barriers[0])
    with pytest.raises(EmulatorError):
        launch(gpu, broken, example, x)


def test_vector_accesses_are_single_instructions(ptx):
    assert re.search(r"ld\.global(\.\w+)*\.v4", ptx) and re.search(r"st\.global(\.\w+)*\.v4", ptx)
    assert "call" not in ptx.replace("callseq", "")


def test_the_example_says_what_it_made_without_a_gpu(example, capsys):
    if cuda.is_available():
        pytest.skip("there is a GPU: the example runs its kernel")
    example.main()
    printed = capsys.readouterr().out
    assert "no GPU here" in printed and "lines of shfl" in printed
