"""Pads, elements by indices and their gradients on an emulated GPU, held to their definitions."""

import numpy as np
import pytest
from contract import CALLS, made
from helpers import assert_close, to_float64

import numbaprims
from numbaprims.gpu.memory import to_device

NAMES = ("gather", "gather_backward", "embedding_backward", "one_hot", "pad", "pad_backward", "split")
OURS = [call for call in CALLS if call.function in NAMES and not call.label.endswith(("long", "long-int64"))]
HALVES = ("constant-rows", "reflect-often", "wrap-often", "rows-int64", "mean", "sections")


@pytest.mark.parametrize("call", OURS, ids=str)
def test_results(gpu, call):
    check(call, "f32")


@pytest.mark.parametrize("call", [call for call in OURS if call.label in HALVES], ids=str)
def test_halves(gpu, call):
    check(call, "f16")


def check(call, dtype):
    args, words = made(call, dtype)
    device = [to_device(x) if isinstance(x, np.ndarray) else x for x in args]
    with numbaprims.config(device="reference"):
        exact = (to_float64(x, dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in args)
        wanted = getattr(numbaprims, call.function)(*exact, **words)
    result = getattr(numbaprims, call.function)(*device, **words)
    results, all_wanted = (result, wanted) if isinstance(result, tuple) else ((result,), (wanted,))
    for have, want in zip(results, all_wanted, strict=True):
        assert_close(have.to_host(), want, k=call.k, dtype="f32" if call.function == "one_hot" else dtype)


def test_views_and_other_types(gpu):
    x = np.arange(3 * 4 * 5, dtype=np.int8).reshape(3, 4, 5)
    view, host = to_device(x)[:, ::-1, ::2], x[:, ::-1, ::2]
    pads = ((0, 2), (-1, 3), (4, 1))
    for mode in ("constant", "reflect", "edge", "wrap"):
        np.testing.assert_array_equal(numbaprims.pad(view, pads, mode).to_host(), numbaprims.pad(host, pads, mode))
    indices = np.int32([[2, -3], [0, 1]])
    have = numbaprims.gather(view, to_device(indices), 1).to_host()
    np.testing.assert_array_equal(have, np.take(host, indices, 1))


def test_an_index_out_of_range(gpu):
    x, indices = to_device(np.ones((4, 300), np.float32)), np.arange(1000) % 4
    indices[[700, 900]] = 4, -5
    out = to_device(np.full((1000, 300), 7, np.float32))
    with pytest.raises(IndexError, match=r"indices\[700\] is 4; of 4 elements the indices are -4 to 3"):
        numbaprims.gather(x, to_device(indices), out=out)
    assert (out.to_host() == 7).all()
    host = np.full((1000, 300), 7, np.float32)
    with numbaprims.config(device="cuda"):
        with pytest.raises(IndexError, match=r"indices\[700\] is 4; of 4 elements the indices are -4 to 3"):
            numbaprims.gather(x.to_host(), indices, out=host)
        assert (host == 7).all()
        with pytest.raises(IndexError, match=r"indices\[700\] is 4"):
            numbaprims.gather_backward(host, indices, 4, out=host[:4])
        assert (host == 7).all()
