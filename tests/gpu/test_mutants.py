"""Mistakes planted in the kernels of each family: no barrier, wait, lane or address is wrong without being noticed."""

import numpy as np
import pytest
from gpu import mutants

import numbaprims

# A bound that no element of the problem meets exactly may be off by one unnoticed, and lanes whose sum nobody uses may
# get a wrong one; everything else must be caught.
TOLERATED = {"bound off by one", "half a warp"}
ADDRESSES = {"load off by one", "store off by one"}


def integers(rng, *shape, dtype=np.float32):
    return rng.integers(-4, 5, shape).astype(dtype)


#: The products within another primitive, whose k is shorter here than their ring of copies: hunted by their own tests.
PRODUCTS = "numbaprims_gemm_tiled"


def hunt(call, want, expected, same="no such line", most=2, elsewhere="no such kernel"):
    """All mutants but the tolerated ones are caught, and there are some of each expected kind.

    `same`: instructions whose mutants compute the same; `elsewhere`: kernels that other tests hunt.
    """

    def check(result):
        np.testing.assert_array_equal(np.asarray(result, float), want)

    with numbaprims.config(device="emulated"):
        caught, missed = mutants.hunt(call, check, most)
    missed = [mutant for mutant in missed if not mutant.entry.startswith(elsewhere)]
    unnoticed = [str(mutant) for mutant in missed if mutant.kind not in TOLERATED and same not in mutant.before]
    assert not unnoticed, "\n".join(unnoticed)
    assert {mutant.kind for mutant in caught} >= expected


def test_gemv_by_rows(rng):
    a, x = integers(rng, 37, 133), integers(rng, 133)
    hunt(lambda: numbaprims.gemv(a, x), a @ x, ADDRESSES | {"lane mask", "half a warp", "bound off by one"})


def test_gemv_by_columns(rng):
    a, x = integers(rng, 133, 40), integers(rng, 133)
    hunt(lambda: numbaprims.gemv(a.T, x), a.T @ x, ADDRESSES | {"barrier removed"})


def test_ger(rng):
    x, y = integers(rng, 33), integers(rng, 70)
    hunt(lambda: numbaprims.ger(x, y), np.outer(x, y), ADDRESSES | {"bound off by one"})


@pytest.mark.parametrize("size", [131, 1028])
def test_activation(rng, size):
    x = integers(rng, size)
    # six of each kind: most comparisons choose the function, or stop a thread that would repeat another's elements
    hunt(lambda: numbaprims.relu(x), np.maximum(x, 0), ADDRESSES | {"bound off by one"}, most=6)


def test_activation_of_slices(rng):
    x = integers(rng, 6, 140)[:, :132]
    # a thread past the end comes round to the first elements and computes them once more
    with numbaprims.config(algorithm={"activation": "rows"}):
        hunt(lambda: numbaprims.relu(x), np.maximum(x, 0), ADDRESSES)


@pytest.mark.parametrize("shape", [(3, 5, 7, 11), (130, 40)])
def test_channel_sums(rng, shape):
    dy, x = integers(rng, *shape), integers(rng, *shape)
    want = np.where(x > 0, 0, dy * x).sum(tuple(i for i in range(len(shape)) if i != 1))
    weight = np.zeros(shape[1], np.float32)
    more = {"lane mask"} if len(shape) > 2 else {"barrier removed"}
    hunt(lambda: numbaprims.prelu_backward(dy, x, weight)[1], want, ADDRESSES | more)


COPIES = {"wait for one group less", "commit removed", "barrier removed"}


def test_gemm_in_f32(rng):
    a, b = integers(rng, 40, 197), integers(rng, 197, 36)
    hunt(lambda: numbaprims.gemm(a, b), a @ b, ADDRESSES | COPIES)


@pytest.mark.parametrize("algorithm,copies", [("mma", COPIES), ("wgmma", {"barrier removed"})])
def test_gemm_on_tensor_cores(rng, algorithm, copies):
    a, b = (integers(rng, *shape, dtype=np.float16) for shape in ((40, 136), (136, 48)))
    # after the loop of mma only empty groups are left to wait for
    last = "cp.async.wait_group 0"
    with numbaprims.config(algorithm={"gemm": algorithm}):
        want = a.astype(float) @ b.astype(float)
        hunt(lambda: numbaprims.gemm(a, b, out_dtype="f32"), want, ADDRESSES | copies, last)


def test_gemm_in_chunks(rng):
    a, b = integers(rng, 20, 1030), integers(rng, 1030, 24)
    with numbaprims.config(algorithm={"gemm": "split_k"}):
        hunt(lambda: numbaprims.gemm(a, b), a @ b, ADDRESSES | COPIES)


def test_gemm_of_bytes(rng):
    a, b = integers(rng, 40, 100, dtype=np.int8), integers(rng, 100, 36, dtype=np.int8)
    with numbaprims.config(algorithm={"gemm": "dp4a"}):
        hunt(lambda: numbaprims.gemm(a, b), a.astype(int) @ b.astype(int), ADDRESSES | COPIES)


def test_steps_in_one_launch(rng):
    """A recurrent network whose blocks wait for one another, on states that are integers."""
    x, ih, hh = integers(rng, 3, 40, 4), integers(rng, 8, 4), rng.integers(-1, 2, (8, 8)).astype(np.float32)
    weights = numbaprims.RnnWeights.from_arrays("rnn_relu", ih, hh)
    with numbaprims.config(device="reference"):
        want = numbaprims.rnn(x, weights)[0]
    with numbaprims.config(algorithm={"rnn": "persistent"}):
        hunt(
            lambda: numbaprims.rnn(x, weights)[0], want, ADDRESSES | COPIES | {"lane mask", "release removed"},
            elsewhere=PRODUCTS,
        )  # fmt: skip
