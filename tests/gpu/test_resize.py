"""Resizing on an emulated GPU, held to its definition."""

import numpy as np
import pytest
from contract import CALLS, made
from helpers import assert_close, to_float64

import numbaprims
from numbaprims.gpu.memory import to_device

OURS = [call for call in CALLS if call.function.startswith("resize") and call.label not in ("double", "half")]


@pytest.mark.parametrize("call", OURS, ids=str)
def test_results(gpu, call):
    dtype = "f16" if call.label in ("row", "nearest", "corners") else "f32"
    args, words = made(call, dtype)
    with numbaprims.config(device="reference"):
        wanted = getattr(numbaprims, call.function)(to_float64(args[0], dtype), *args[1:], **words)
    result = getattr(numbaprims, call.function)(to_device(args[0]), *args[1:], **words)
    assert_close(result.to_host(), wanted, k=call.k, dtype=dtype)


def test_a_view_float64_and_bytes(gpu):
    x = np.random.default_rng(0).standard_normal((2, 7, 10))
    view = to_device(x)[:, ::-1, ::2]
    want = numbaprims.resize(np.ascontiguousarray(x[:, ::-1, ::2]), scale=1.7, mode="linear", align_corners=True)
    assert_close(
        numbaprims.resize(view, scale=1.7, mode="linear", align_corners=True).to_host(), want, k=16, dtype="f64"
    )
    x = np.random.default_rng(0).integers(0, 256, (1, 2, 5, 7), np.uint8)
    found = numbaprims.resize(to_device(x), (9, 4), mode="linear").to_host()
    assert np.abs(found.astype(int) - numbaprims.resize(x, (9, 4), mode="linear")).max() <= 1
