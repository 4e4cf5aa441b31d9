"""CTC on the emulated GPU against the definition."""

import numpy as np
import pytest
from ctc_cases import draw
from helpers import assert_close

import numbaprims
from numbaprims.gpu.memory import to_device


def both(function, *args, **words):
    """(on the GPU, by definition in float64)."""
    with numbaprims.config(device="cuda"):
        found = getattr(numbaprims, function)(*args, **words)
    wide = [x.astype(np.float64) if getattr(x, "dtype", np.dtype(int)).kind == "f" else x for x in args]
    with numbaprims.config(device="reference"):
        return found, getattr(numbaprims, function)(*wide, **words)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("blank", [0, 3])
def test_the_loss_and_its_gradient(gpu, rng, dtype, blank):
    given = draw(rng, 19, 4, 5, 6, blank, dtype, repeats=True)
    for reduction in ("none", "mean"):
        for zero in (False, True):
            loss, wanted = both("ctc_loss", *given, blank=blank, reduction=reduction, zero_infinity=zero)
            assert_close(np.asarray(loss), wanted, k=128, vacuous=not np.isfinite(wanted).all())
    for logits in (False, True):
        dy = rng.standard_normal(4).astype(dtype)
        dx, wanted = both("ctc_loss_backward", dy, *given, blank=blank, logits=logits)
        assert_close(dx, wanted, k=128)


def test_integers_on_the_device(gpu, rng):
    x, *more = draw(rng, 6, 3, 7, 2, 0, np.float32)
    there = [to_device(np.asarray(each)) for each in (x, *more)]
    assert_close(numbaprims.ctc_loss(*there).to_host(), both("ctc_loss", x, *more)[1], k=128)


def test_any_strides(gpu, rng):
    x, *more = draw(rng, 6, 3, 7, 2, 0, np.float32)
    x = np.repeat(x.transpose(1, 0, 2), 2, 2).transpose(1, 0, 2)[..., ::2]
    loss, wanted = both("ctc_loss", x, *more)
    assert_close(loss, wanted, k=128)
    dx, wanted = both("ctc_loss_backward", np.float32(0.5)[None].repeat(3), x, *more)
    assert_close(dx, wanted, k=128)


def test_more_states_than_threads(gpu, rng):
    given = draw(rng, 75, 1, 150, 70, 0, np.float32)
    loss, wanted = both("ctc_loss", *given)
    assert_close(loss, wanted, k=128)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_decoding(gpu, rng, dtype):
    x, _, lengths, _ = draw(rng, 7, 3, 5, 2, 2, dtype)
    for function, words in (("ctc_greedy_decode", {}), ("ctc_beam_search_decode", {"beam_width": 4, "paths": 2})):
        found, wanted = both(function, x, lengths, blank=2, **words)
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[1], wanted[1])
        assert_close(found[2], wanted[2], k=128)
