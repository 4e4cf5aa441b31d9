"""Local response normalisation on an emulated GPU, held to its definition."""

import numpy as np
import pytest
from contract import CALLS, made
from helpers import assert_close, to_float64

import numbaprims
from numbaprims.gpu.memory import to_device

OURS = [call for call in CALLS if call.function.startswith("lrn") and call.label not in ("wide", "long")]


@pytest.mark.parametrize("call", OURS, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_results(gpu, call, dtype):
    args, words = made(call, dtype)
    device = [to_device(x) if isinstance(x, np.ndarray) else x for x in args]
    with numbaprims.config(device="reference"):
        wanted = getattr(numbaprims, call.function)(
            *(to_float64(x, dtype) if isinstance(x, np.ndarray) else x for x in args), **words
        )
    result = getattr(numbaprims, call.function)(*device, **words)
    assert_close(result.to_host(), wanted, k=call.k, dtype=dtype)


def test_a_view_and_float64(gpu):
    x = np.random.default_rng(0).standard_normal((3, 7, 10))
    view = to_device(x)[:, ::-1, ::2]
    want = numbaprims.lrn(np.ascontiguousarray(x[:, ::-1, ::2]), 3, alpha=0.5, beta=0.3)
    assert_close(numbaprims.lrn(view, 3, alpha=0.5, beta=0.3).to_host(), want, k=16, dtype="f64")
