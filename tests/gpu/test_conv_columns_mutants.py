"""Mistakes planted in the kernels of `direct`, and of column matrices: none goes unnoticed."""

import numpy as np
import pytest
from conv_cases import Case
from gpu.test_conv_mutants import hunt_conv
from gpu.test_mutants import ADDRESSES

from numbaprims.gpu.gemm.solvers import Naive


@pytest.fixture
def simple(monkeypatch):
    """Products by gemm's simplest solver: its mutants are hunted elsewhere."""
    monkeypatch.setattr("numbaprims.gpu.conv.im2col.ranked", lambda inner, target: [Naive()])


def test_columns(simple):
    hunt_conv("im2col_gemm", "forward", Case((2, 3, 5, 6), (4, 3, 3, 2), padding=1), ADDRESSES | {"bound off by one"})


def test_fold(simple):
    hunt_conv("im2col_gemm", "data", Case((2, 3, 5, 6), (4, 3, 3, 2), padding=1, stride=2), ADDRESSES, layout="NHWC")


def test_direct():
    # channels last: with planes and a narrow tile each thread ends the sums that it has added up, behind no barrier
    case = Case((1, 5, 6, 7), (9, 5, 3, 3), padding=1)
    hunt_conv(
        "direct", "forward", case, ADDRESSES | {"barrier removed", "wait for one group less"}, layout="NHWC"
    )  # fmt: skip


def test_direct_on_halves():
    case = Case((1, 4, 6, 7), (8, 4, 3, 3), padding=1, stride=2)
    hunt_conv("direct", "forward", case, ADDRESSES | {"barrier removed"}, np.float16, "NHWC")


def test_direct_weight():
    case = Case((3, 4, 12, 7), (6, 4, 3, 3), padding=1)
    hunt_conv("direct_weight", "weight", case, ADDRESSES | {"barrier removed", "wait for one group less"})
