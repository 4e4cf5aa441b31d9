"""What CPUs with AMX's tiles take, by the estimates and by what `accuracy` allows: CPUs by name."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
from helpers import forced, from_float64, in_library

import numbaprims
from numbaprims.cpu import target

pytestmark = pytest.mark.cpu


def test_accuracy_lets_float32_be_cut(rng):
    a = np.ones((40, 40), np.float32)
    for accuracy, allowed in (("fast", "x3 x6"), ("close", "x6"), ("standard", ""), ("high", "")):
        with numbaprims.config(accuracy=accuracy):
            image = a.reshape(1, 40, 40, 1)
            for table, solver in (
                (numbaprims.explain("gemm", a, a), "amx"),
                (numbaprims.explain("conv", image, image[..., :1, :].swapaxes(0, 2)), "implicit_gemm_amx"),
            ):
                for name in ("x3", "x6"):
                    refusal = table[f"{solver}_{name}"].refusal or ""  # none where the CPU has tiles
                    assert ("accuracy" not in refusal) == (name in allowed), (accuracy, solver, name)
    with forced("gemm", "amx_x3"), pytest.raises(ValueError, match="accuracy='fast'"):
        numbaprims.gemm(a, a)


def named_cpu(name):
    """A CPU by its name, with an Emerald Rapids' caches, whatever this machine's are."""
    described = target.described("x86_64-unknown-linux-gnu", name)
    return dataclasses.replace(described, l1d=48 << 10, l2=2 << 20, l3=300 << 20)


def best_of(solvers, problem, named):
    able = [solver for solver in solvers if solver.why_not(problem, named) is None]
    return min(able, key=lambda solver: solver.estimate(problem, named)).name


@pytest.mark.parametrize(
    ("cpu", "accuracy", "dtype", "chosen"),
    [
        ("sapphirerapids", "fast", "f32", "amx_x3"),
        ("sapphirerapids", "close", "f32", "amx_x6"),
        ("sapphirerapids", "standard", "f16", "amx_x4"),
        ("graniterapids", "standard", "f16", "amx"),
        ("sapphirerapids", "standard", "f32", None),
        ("icelake-server", "fast", "f32", None),
    ],
)
def test_what_a_cpu_with_tiles_takes(cpu, accuracy, dtype, chosen):
    """The choice of a large product by the estimates, for CPUs by name."""
    from numbaprims.cpu.gemm import SOLVERS
    from numbaprims.ops._gemm_problem import GemmProblem, Strides
    from numbaprims.ops.epilogue import Activation

    named = named_cpu(cpu)
    n = 2048
    problem = GemmProblem(
        n, n, n, 1, dtype, dtype, dtype, "row", "row", "row", False, "none", Activation("identity", (0.0, 0.0, 0.0)),
        False, (), Strides((n, 1), (n, 1), (n, 1), (0, 0), 0, ((),) * 4),
    )  # fmt: skip
    with (
        mock.patch.object(target, "current", lambda: named),
        mock.patch.object(target, "tiles_granted", lambda: True),
        numbaprims.config(accuracy=accuracy),
    ):
        best = best_of(SOLVERS, problem, named)
    assert best == chosen if chosen else not best.startswith("amx")


@pytest.mark.parametrize(
    ("cpu", "dtype", "size", "forward", "backward"),
    [
        ("sapphirerapids", "bf16", (8, 256, 14, 3), "implicit_gemm_amx", "weight_gemm_amx"),
        ("sapphirerapids", "f16", (8, 256, 14, 1), "implicit_gemm_amx_x4", "weight_gemm_amx_x4"),
        ("sapphirerapids", "f32", (8, 256, 14, 1), "implicit_gemm_amx_x3", "weight_gemm_amx_x3"),
        ("sapphirerapids", "f32", (8, 128, 28, 3), "winograd_4x4", "winograd_weight"),
        ("icelake-server", "bf16", (8, 512, 7, 3), None, None),
    ],
)
def test_what_convolutions_take(cpu, dtype, size, forward, backward):
    """Of a layer and of its gradients, under `accuracy="fast"`; where Winograd's fewer products are faster, those."""
    from numbaprims.cpu.conv import SOLVERS
    from numbaprims.ops.conv import PROBLEMS

    named = named_cpu(cpu)
    images, channels, pixels, kernel = size
    x, w = (
        in_library(from_float64(np.zeros(shape), dtype), dtype)
        for shape in ((images, channels, pixels, pixels), (channels, channels, kernel, kernel))
    )
    with (
        mock.patch.object(target, "current", lambda: named),
        mock.patch.object(target, "tiles_granted", lambda: True),
        numbaprims.config(accuracy="fast"),
    ):
        for name, args, chosen in (
            ("conv", (x, w), forward),
            ("conv_backward_data", (x, w, x.shape), forward),
            ("conv_backward_weight", (x, x, w.shape), backward),
        ):
            best = best_of(SOLVERS, PROBLEMS[name](*args, padding=kernel // 2), named)
            assert best == chosen if chosen else "amx" not in best, (name, best)
