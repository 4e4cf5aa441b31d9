"""Mistakes planted in the kernels of convolutions: what tests of conv would pass anything is found out here."""

import numpy as np
import pytest
from conv_cases import Case, arguments
from gpu import mutants
from gpu.test_mutants import ADDRESSES, COPIES, TOLERATED, hunt, integers

import numbaprims


def hunt_reduction(call, want, expected):
    """As `hunt`, for kernels that end in a sum over the block, whose last barrier is for a use that does not follow."""

    def check(result):
        np.testing.assert_array_equal(np.asarray(result, float), want)

    with numbaprims.config(device="emulated"):
        caught, missed = mutants.hunt(call, check, 2)
    last = {m.entry: max(n.line for n in [*caught, *missed] if n.entry == m.entry and "bar.sync" in n.before)
            for m in missed if "bar.sync" in m.before}  # fmt: skip
    unnoticed = [m for m in missed if m.kind not in TOLERATED and m.line != last.get(m.entry)]
    assert not unnoticed, "\n".join(map(str, unnoticed))
    assert {mutant.kind for mutant in caught} >= expected


def hunt_conv(solver, direction, case, expected, dtype=np.float32, layout="NCHW", same="no such line", way=hunt):
    rng = np.random.default_rng(3)
    functions = {
        "forward": numbaprims.conv, "data": numbaprims.conv_backward_data, "weight": numbaprims.conv_backward_weight
    }  # fmt: skip
    first, second = (integers(rng, *shape, dtype=dtype) for shape in case.operand_shapes(direction))
    want = case.expected(direction, first.astype(float), second.astype(float))
    if layout == "NHWC":
        first = np.ascontiguousarray(np.moveaxis(first, 1, -1))
        if direction == "weight":
            second = np.ascontiguousarray(np.moveaxis(second, 1, -1))
        else:
            want = np.moveaxis(want, 1, -1)
    more, window = arguments(case, direction, layout)
    call = functions[direction]
    more_of_hunt = () if way is hunt_reduction else (same,)
    way(lambda: call(first, second, *more, algorithm=solver, **window), want, expected, *more_of_hunt)


def test_naive():
    hunt_conv("naive", "forward", Case((1, 3, 5, 6), (4, 3, 3, 3), padding=1), ADDRESSES)


def test_implicit_gemm():
    case = Case((2, 7, 6, 7), (20, 7, 3, 3), padding=1)
    hunt_conv("implicit_gemm", "forward", case, ADDRESSES | COPIES)


def test_chunks():
    case = Case((1, 61, 3, 4), (5, 61, 3, 3), padding=1)
    hunt_conv("implicit_gemm", "forward", case, ADDRESSES | COPIES)


def test_pieces_on_tensor_cores():
    case = Case((1, 24, 6, 7), (20, 24, 3, 3), padding=1)
    hunt_conv("implicit_mma", "forward", case, ADDRESSES | COPIES, np.float16, "NHWC")


def test_rows_on_tensor_cores():
    case = Case((4, 8, 7, 7), (16, 8, 1, 2))
    hunt_conv("implicit_mma", "weight", case, {"store off by one"} | COPIES, np.float16, "NHWC")


def test_elements_on_tensor_cores():
    case = Case((2, 5, 6, 7), (12, 5, 3, 3), padding=1, stride=2)
    # nothing is copied asynchronously, only empty groups are waited for
    hunt_conv("implicit_mma", "weight", case, ADDRESSES | {"barrier removed"}, np.float16, same="cp.async.")


@pytest.mark.parametrize("direction", ["forward", "weight"])
def test_depthwise(direction):
    more = {"lane mask", "half a warp"} if direction == "weight" else {"bound off by one"}
    case = Case((2, 5, 6, 9), (5, 1, 3, 3), padding=1, groups=5)
    way = hunt_reduction if direction == "weight" else hunt
    hunt_conv("depthwise", direction, case, ADDRESSES | more, way=way)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_sums(layout):
    dy = integers(np.random.default_rng(4), 3, 12, 7, 48)  # a thread's last pack is inside of a row
    want = dy.sum((0, 2, 3) if layout == "NCHW" else (0, 1, 2))
    more = {"lane mask"} if layout == "NCHW" else {"barrier removed"}
    hunt_reduction(lambda: numbaprims.conv_backward_bias(dy, layout=layout), want, ADDRESSES | more)
