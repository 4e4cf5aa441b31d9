"""Every config that `tune` may try: the exact product, and the scratch memory that it says."""

import numpy as np
import pytest

import numbaprims
from numbaprims import workspace
from numbaprims.dispatch import choose, registry
from numbaprims.dispatch.examples import example_call
from numbaprims.dispatch.explain import problem_of
from numbaprims.dispatch.find import capture
from numbaprims.tuning import records

pytestmark = pytest.mark.cpu


def whole(rng, *shape, dtype=np.float32):
    return rng.integers(-4, 5, shape).astype(dtype)


CASES = {
    "tiles": ((250, 300), (300, 270), {}),
    "rows of B by columns": ((120, 700), (70, 700), {"trans_b": True}),
    "few rows": ((5, 600), (600, 300), {}),
    "few columns": ((600, 500), (500, 9), {}),
    "columns left over": ((130, 90), (90, 50), {}),
    "one row": ((1, 90), (90, 50), {}),
    "with an end": ((100, 1100), (1100, 90), {"bias": True, "c": True}),
    "batch": ((3, 40, 200), (3, 200, 130), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_config_gives_the_exact_product(case, rng):
    left, right, options = CASES[case]
    a, b = whole(rng, *left), whole(rng, *right)
    words = {"trans_b": options.get("trans_b", False)}
    want = a @ (b.T if words["trans_b"] else b)
    if options.get("bias"):
        words |= {"bias": whole(rng, b.shape[-1]), "c": whole(rng, *want.shape), "beta": 2.0}
        want = want + words["bias"] + 2 * words["c"]
    problem, target, count = problem_of("gemm", a, b, **words), registry.target("cpu"), {}
    for solver in registry.solvers("gemm", "cpu"):
        if solver.why_not(problem, target) is not None:
            continue
        configs = [dict(config) for config in solver.configs(problem, target)]
        assert len({records.dump(config) for config in configs}) == len(configs) <= 64, "none comes twice"
        count[solver.name] = len(configs)
        for config in configs:
            assert solver.is_valid(problem, target, config)
            trial = choose.Trial("gemm", records.dump(records.fields_of(problem)), solver, config)
            with numbaprims.settings.trial(trial):
                assert np.array_equal(numbaprims.gemm(a, b, **words), want), (solver.name, config)
    if case == "tiles":
        # the 16 registers of AVX2 and SSE hold one tile, of 6 x 2 vectors: blocks differ in their sizes only
        least = 6 if target.isa in ("avx512", "neon") else 2
        assert min(count["blocked"], count["private"], count["direct"]) >= least, "there is something to choose from"


def test_sizes_that_mean_the_same_come_once():
    problem, target = (
        problem_of("gemm", np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)),
        registry.target("cpu"),
    )
    for solver in registry.solvers("gemm", "cpu"):
        if solver.why_not(problem, target) is None:
            assert len(list(solver.configs(problem, target))) <= 4, solver.name


WORKSPACE = [
    ("gemm", (np.ones((250, 300), np.float32), np.ones((300, 270), np.float32)), {}),
    ("gemm", (np.ones((250, 700), np.float16), np.ones((700, 70), np.float16)), {}),
    ("gemm", (np.ones((33, 70), np.int8), np.ones((70, 50), np.int8)), {}),
    ("gemm", (np.ones((600, 500), np.float32), np.ones((9, 500), np.float32).T), {"activation": "relu"}),
    ("gemm", (np.ones((600, 90)), np.ones((90, 10))), {"alpha": 2.0}),
    ("gemm", (np.ones((1, 900)), np.ones((900, 400))), {}),
    ("gemv", (np.ones((900, 400), np.float32), np.ones(900, np.float32)), {"trans": True}),
    ("gemv", (np.ones((900, 400), np.float16), np.ones(400, np.float16)), {}),
    ("ger", (np.ones(300, np.float16), np.ones(500, np.float16)), {}),
    ("prelu", (np.ones((8, 100), np.float32), np.ones(100, np.float32)), {}),
]  # fmt: skip


@pytest.mark.parametrize("function, args, words", WORKSPACE, ids=[f"{c[0]}{n}" for n, c in enumerate(WORKSPACE)])
def test_workspace_is_what_a_launch_borrows(function, args, words, monkeypatch):
    """Of one thread; that is what a limit is held against."""
    problem, target = problem_of(function, *args, **words), registry.target("cpu")
    sizes, real = [], workspace.borrow
    monkeypatch.setattr(workspace, "borrow", lambda size, *a: sizes.append(size) or real(size, *a))
    seen = 0
    with numbaprims.config(threads=1):
        for solver in registry.solvers(problem.stem, "cpu"):
            if solver.why_not(problem, target) is None:
                for config in list(solver.configs(problem, target))[:3]:
                    del sizes[:]
                    capture(problem, "cpu", example_call(problem.stem, problem), solver, config)
                    assert max(sizes, default=0) == solver.workspace(problem, target, config), (solver.name, config)
                    seen += 1
    assert seen >= 2
