"""Depthwise convolutions of small planes, turned to blocks of channels, against the definition."""

import numpy as np
import pytest
from conv_cases import call_and_plan_agree
from fuzzing.guard import Guarded
from helpers import NUMPY_FLOATS, from_float64, in_library, printed_with_threads

import numbaprims
from numbaprims.cpu.conv.depthwise import work
from numbaprims.cpu.simd import lanes
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of

DEPTHWISE = {"conv": "depthwise"}
LAST = {"f64": 1e-14, "f32": 2e-6, "f16": 4e-3, "bf16": 3e-2}
#: (images, channels, height, width), window, words of the call; results of 2 columns are blocks at any width
CASES = {
    "7x7": ((2, 144, 7, 7), (3, 3), {"padding": 1}),
    "5x5": ((3, 130, 7, 7), (5, 5), {"padding": 2, "activation": "leaky_relu"}),
    "strided": ((2, 131, 14, 13), (5, 3), {"stride": (3, 2), "padding": (2, 1), "activation": "sigmoid"}),
    "all padding": ((8, 37, 2, 2), (3, 3), {"padding": ((4, 1), (3, 2))}),
    "two columns": ((16, 33, 9, 4), (2, 3), {"padding": ((0, 1), (0, 0))}),
    "a column": ((9, 37, 18, 1), (7, 1), {"padding": (3, 0), "stride": (2, 1)}),
    "a pixel": ((2, 130, 3, 3), (3, 3), {}),
    "one row": ((1, 260, 1, 6), (1, 7), {"padding": (0, 3), "stride": (1, 2)}),
}


def arrays(case, dtype):
    shape, window, words = CASES[case]
    rng = np.random.default_rng(len(case))
    c = shape[1]
    made = (rng.standard_normal(size) for size in (shape, (c, 1, *window), (c,)))
    return [from_float64(each, dtype) for each in made], {**words, "groups": c}


@pytest.mark.parametrize(
    "case, dtype",
    # each compiles a kernel
    [(case, "f32") for case in CASES]
    + [(c, t) for c in ("7x7", "strided", "a pixel") for t in NUMPY_FLOATS if t != "f32"],
)
def test_the_definition(case, dtype):
    """In a call and by packed weights, which give the same bits."""
    given, words = arrays(case, dtype)
    arguments = (in_library(each, dtype) for each in given)
    problem, target = problem_of("conv", *arguments, **words), registry.target("cpu")
    W = lanes(problem.accumulate, target.vector_bytes)
    if 2 * problem.y_size[2] <= W and problem.n * problem.k >= 16 * W:
        assert work.in_blocks(problem, target)
    assert problem.y_size[2] > 2 or problem.n * problem.k >= 256
    call_and_plan_agree("depthwise", given, dtype, LAST[dtype], **words)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_nothing_beside_the_arrays_is_read_or_written(case, at_end):
    """Channels and images with gaps between them, between pages that nobody may touch."""
    (x, weight, bias), words = arrays(case, "f32")
    with numbaprims.config(algorithm=DEPTHWISE):
        want = numbaprims.conv(x, weight, bias, **words)
        n, c, h, w = x.shape
        gapped = np.full((n, c + 3, h + 1, w), np.nan, np.float32)[:, 2:-1, :h]
        gapped[...] = x
        wide = np.full((n, c + 2, want.shape[2] + 2, want.shape[3]), 7, np.float32)
        out = Guarded(wide[:, 1:-1, 1:-1], at_end, writeable=True)
        given = [Guarded(each, at_end, writeable=False).array for each in (gapped, weight, bias[::-1][::-1])]
        numbaprims.conv(*given, **words, out=out.array)
    np.testing.assert_array_equal(out.array, want)
    assert out.strays() == 0


def test_a_bias_of_any_step_and_what_is_not_there():
    (x, weight, _), words = arrays("7x7", "f32")
    bias = np.arange(432, dtype=np.float32)[::-3]
    with numbaprims.config(algorithm=DEPTHWISE):
        plain, shifted = (numbaprims.conv(x, weight, each, **words) for each in (None, bias))
    np.testing.assert_allclose(shifted, plain + bias[:, None, None], rtol=1e-6, atol=1e-4)
    x[0, 5, 3, 3] = np.inf
    x[1, 17, 0, 0] = np.nan
    with numbaprims.config(algorithm=DEPTHWISE):
        y = numbaprims.conv(x, weight, None, **words)
    changed = y != plain
    assert changed[0, 5, 2:5, 2:5].all() and changed[1, 17, :2, :2].all() and changed.sum() == 13


@pytest.mark.parametrize("c, size", [(1040, 7), (17, 90)])
def test_images_past_the_caches(c, size):
    """What prefetches gives what one image gives, and so do both gradients."""
    rng = np.random.default_rng(c)
    x, dy = rng.standard_normal((2, 24, c, size, size), np.float32)
    weight, words = rng.standard_normal((c, 1, 3, 3), np.float32), {"padding": 1, "groups": c}
    with numbaprims.config(algorithm=DEPTHWISE):
        y = numbaprims.conv(x, weight, **words)
        dx = numbaprims.conv_backward_data(dy, weight, x.shape, **words)
        dw = numbaprims.conv_backward_weight(dy, x, weight.shape, **words)
        total = np.zeros(weight.shape)
        for i in range(24):
            one = np.s_[i : i + 1]
            np.testing.assert_allclose(y[one], numbaprims.conv(x[one], weight, **words), rtol=1e-5, atol=1e-5)
            back = numbaprims.conv_backward_data(dy[one], weight, x[one].shape, **words)
            np.testing.assert_allclose(dx[one], back, rtol=1e-5, atol=1e-5)
            total += numbaprims.conv_backward_weight(dy[one], x[one], weight.shape, **words)
    np.testing.assert_allclose(dw, total, rtol=1e-4, atol=1e-2)


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, numbaprims
rng, found = np.random.default_rng(0), hashlib.sha256()
for n, c, size, window in ((9, 133, 7, 5), (2, 520, 4, 3)):
    x, w = rng.standard_normal((n, c, size, size), np.float32), rng.standard_normal((c, 1, window, window), np.float32)
    with numbaprims.config(algorithm={"conv": "depthwise"}):
        found.update(numbaprims.conv(x, w, padding=window // 2, groups=c).tobytes())
print(found.hexdigest())
"""
    assert len(printed_with_threads(script)) == 1
