"""Maxima of windows that overlap, and the walk of a stack, against the definition and the other solvers."""

import dataclasses

import numpy as np
import pytest
from helpers import from_float64
from window_cases import FLOATS, LAYOUTS, check_forward, make, run, strides, values

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.windows import SOLVERS, overlaps

pytestmark = pytest.mark.cpu

#: Some rows of results together are less than a vector.
NARROW = [((33, 1), 1), ((7, 2), 1), ((34, 3), 1), ((40, 20), (1, 6)), ((8, 40), (2, 17))]
#: (planes, size, kernel, stride, padding, more)
OVERLAPS = [
    (20, (7, 7), 3, 1, 1, {}),  # two rows of results in a vector, all of a plane written out
    (20, (14, 14), 3, 2, 0, {"ceil": True}),
    (20, (5, 14), (2, 3), 1, (1, 1), {}),
    (2, (9, 28), 3, 1, 1, {}),  # bands of rows
    (2, (11, 56), 3, 2, ((0, 1), (1, 0)), {}),  # columns of three vectors
    (2, (6, 33), 4, 2, 2, {}),
    (2, (2, 3), 5, 1, 2, {}),  # windows larger than the plane
    (1, (8, 70), (1, 7), (1, 3), (0, 3), {}),
    *[(2, size, 3, stride, 1, {}) for size, stride in NARROW],
]


@pytest.mark.parametrize("dtype", FLOATS)
def test_windows_that_overlap(dtype, rng, monkeypatch):
    """Maxima of rows that are a few vectors, with NaN and -inf in some planes, by any number of workers."""
    made = []
    make_kernel = overlaps.make_forward
    monkeypatch.setattr(overlaps, "make_forward", lambda form: made.append(form) or make_kernel(form))
    solver = next(each for each in SOLVERS if each.name == "planes")
    taken = 0
    for c, size, kernel, stride, pad, more in OVERLAPS if dtype in ("f32", "bf16") else OVERLAPS[::3]:
        p = make("max", size, kernel, stride, pad, c=c, dtype=dtype, **more)
        taken += solver.overlap(p, target.current())  # of short vectors a row has too many
        x = rng.integers(-8, 9, (p.n, c, *size)) * 0.5
        for nan in (False, True):
            if nan:
                x[0, 0], x[0, 0, 0, 0], x[1, 0, -1, -1] = -np.inf, np.nan, np.nan
            stored = from_float64(x, dtype)
            check_forward(p, rng, "channels_first", [solver, SOLVERS[-1]], stored)
            one, three = (run(solver, p, "channels_first", threads, x=stored)[0] for threads in (1, 3))
            np.testing.assert_array_equal(one, three)
    assert len(made) == 6 * taken >= 18
    assert {form.rows[0] > 0 for form in made} == {False, True}


def test_bands_of_rows_of_a_few_results(rng):
    """A worker's last rows end before another's first."""
    x = rng.integers(-8, 9, (1, 1, 100_000, 3)).astype(np.float32)
    results = []
    for threads in (1, 2):
        with numbaprims.config(threads=threads):
            results.append(numbaprims.max_pool(x, 3, stride=1, padding=1))
    np.testing.assert_array_equal(*results)


def test_rows_far_apart_are_not_all_loaded():
    planes = next(each for each in SOLVERS if each.name == "planes")
    takes = [planes.overlap(make("max", (20, 20), 2, step), target.current()) for step in (1, overlaps.MOST + 1)]
    assert takes == [True, False]


WALKS = [
    ("max", (56, 40), 3, 1, 1, {}),
    ("max", (13, 37), 2, 2, 0, {"ceil": True}),
    ("max", (9, 150), 3, 2, 1, {"dilation": 2}),
    ("avg", (14, 14), 3, 1, 1, {"count_include_pad": False}),
    ("avg", (7, 50), 3, 2, 1, {"ceil": True}),
    ("max", (4, 3), (2, 6), (2, 4), 0, {"ceil": True}),  # the only window of a row reaches beyond
    ("avg", (12, 35), (3, 5), (2, 3), ((0, 1), (1, 2)), {}),
]


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_walk_of_a_stack(dtype, layout, rng):
    """Bits of maxima and, in planes, of averages are those of the other solvers, whatever the number of workers."""
    walk = next(each for each in SOLVERS if each.name == "walk")
    other = next(each for each in SOLVERS if each.name == ("planes" if layout == "channels_first" else "channels"))
    for op, size, kernel, stride, pad, more in WALKS if dtype in ("f32", "bf16") else WALKS[::3]:
        p = make(op, size, kernel, stride, pad, n=2, c=19, dtype=dtype, **more)
        x = rng.standard_normal((2, 19, *size))
        if op == "max":
            x[0, 0], x[0, 3, 2, 2], x[1, -1, -1, -1] = -np.inf, np.nan, np.nan
        x = from_float64(x, dtype)
        one, three = (run(walk, p, layout, threads, x=x)[0] for threads in (1, 3))
        np.testing.assert_array_equal(one, three)
        if op == "max" or layout == "channels_first":
            np.testing.assert_array_equal(one, run(other, p, layout, x=x)[0])
        check_forward(p, rng, layout, [walk, SOLVERS[-1]], values(p, rng, (2, 19, *size)))


@pytest.mark.parametrize(
    "words, problem",
    [
        ("tells no places", make("max", (9, 9), 3, indices="i64")),
        ("tells no places", dataclasses.replace(make("avg", (9, 9), 3), direction="backward")),
        ("maxima and averages", make("lp", (9, 9), 3)),
        ("of one size", make("avg", (9, 9), out=4)),
        ("in floats", make("max", (9, 9), 3, dtype="i8")),
        ("two spatial dimensions", make("max", (9, 9, 9), 3)),
        ("windows of up to 12", make("max", (40, 40), 13)),
    ],
)
def test_what_the_walk_does_not_take(words, problem):
    walk = next(each for each in SOLVERS if each.name == "walk")
    steps = strides((2, 3, *problem.size), "channels_first")
    given = dataclasses.replace(problem, strides=(steps, None, steps, steps, None))
    assert words in walk.why_not(given, target.current())
    apart = dataclasses.replace(
        make("max", (9, 9), 3), strides=((600, 300, 30, 3), None, (600, 300, 30, 3), None, None)
    )
    assert "neither" in walk.why_not(apart, target.current())


@pytest.mark.parametrize(
    "op, c, size, kernel, stride, layout, chosen",
    [
        ("max", 192, 56, 3, 2, "NCHW", "planes"), ("max", 832, 7, 3, 1, "NCHW", "planes"),
        ("max", 64, 147, 3, 2, "NCHW", "walk"), ("max", 512, 28, 2, 2, "NCHW", "planes"),
        ("avg", 192, 28, 3, 1, "NCHW", "walk"), ("avg", 192, 56, 3, 2, "NCHW", "walk"),
        ("avg", 512, 14, 2, 2, "NCHW", "planes"), ("max", 192, 28, 3, 1, "NHWC", "walk"),
        ("max", 64, 56, 5, 1, "NHWC", "walk"), ("max", 512, 14, 3, 1, "NHWC", "channels"),
        ("max", 64, 112, 3, 2, "NHWC", "channels"), ("avg", 256, 28, 2, 2, "NHWC", "channels"),
    ],
)  # fmt: skip
def test_choices_on_a_zen_4(op, c, size, kernel, stride, layout, chosen):
    """The estimates choose as the times that were measured there."""
    facts = {"vector_bytes": 64, "l1d": 32 << 10, "l2": 1 << 20, "l3": 32 << 20, "measured": None}
    features = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"})
    zen = dataclasses.replace(
        target.current(), name="znver4", triple="x86_64-unknown-linux-gnu", features=features, **facts
    )
    assert zen.rates.source == "profile znver4"
    p = make(op, (size, size), kernel, stride, kernel // 2 if stride == 1 else 0, n=1, c=c)
    lies = "channels_last" if layout == "NHWC" else "channels_first"
    steps = [strides((1, c, *each), lies) for each in (p.out, p.size)]
    p = dataclasses.replace(p, layout=lies, strides=(steps[0], None, steps[1], None, None))
    able = [each for each in SOLVERS if each.why_not(p, zen) is None]
    assert min(able, key=lambda each: each.estimate(p, zen)).name == chosen
