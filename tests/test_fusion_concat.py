"""Concatenations of networks: what lies where, and that the calls around them are one native call."""

import numpy as np
import pytest
from fusion_cases import agrees, array, conv, norm

import numbaprims
from numbaprims.cpu import joined
from numbaprims.fusion.layers import Activation, Call, Concat, GlobalAvgPool, MaxPool, Scale, Wired

pytestmark = pytest.mark.cpu


def dense_block(count, first, *, twice=False, norms=True):
    """Every layer reads all before it (Huang et al., Densely connected convolutional networks, 2017)."""
    steps, values, c = list(first), [len(first)], 3
    for i in range(count):
        read = [*values, values[0]] if twice else values
        steps.append((Concat([()] * len(read)), tuple(read)))
        width = c + 3 * twice
        if norms:
            steps.append((norm(width, seed=i), (len(steps),)))
        steps.append((conv(2, width, 3), (len(steps),)))
        values, c = [*values, len(steps)], c + 2
    steps.append((Concat([()] * len(values)), tuple(values)))
    return Wired(steps)


FIRST = {
    "the input": [],
    "a layer": [(Activation("tanh"), (0,))],
    "a function": [(Call(np.tanh), (0,))],
}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("first", FIRST)
def test_a_dense_block(first, twice, layout):
    """What is read grows in one array; where something is copied into it, once."""
    shape = (2, 3, 5, 7) if layout == "NCHW" else (2, 5, 7, 3)
    net = numbaprims.fuse(dense_block(4, FIRST[first], twice=twice), shape, layout=layout)
    with numbaprims.config(device="cpu"):
        for n in (2, 1, 3):
            agrees(net, array(n, *shape[1:]))
    for segment in net._segments:
        assert not segment.joined.why
        if segment.joins and layout == "NCHW":
            copies = [len(each) for each in segment.program.copies.values()]
            # a dense block whose first array is given copies it once; of what is read twice, its second place is in
            # the way of all but the last
            assert sum(copies) == (first != "a layer") if not twice else sum(copies) > 0


def test_two_blocks_that_begin_alike():
    """The longer one is not the other's beginning."""
    steps = [(Activation("relu"), (0,)), (conv(2, 3), (1,)), (conv(4, 3), (1,)), (Scale(2.0), (2,))]
    steps += [(Concat([()] * 2), (1, 2)), (Concat([()] * 3), (1, 2, 3)), (Concat([()] * 3), (1, 2, 4))]
    steps += [(conv(1, 5), (5,)), (conv(1, 9), (6,)), (conv(1, 7), (7,)), (Concat([()] * 3), (8, 9, 10))]
    net = numbaprims.fuse(Wired(steps), (2, 3, 4, 6))
    with numbaprims.config(device="cpu"):
        agrees(net, array(2, 3, 4, 6))
    assert [len(each) for each in net._fused.copies.values()].count(0) == 3 and not net._segments[0].joined.why


def test_branches_are_one_native_call():
    """An array that several launches write, and others read as a whole."""
    body = [Concat([conv(2, 3), [MaxPool(3, 1, 1), conv(3, 3)], ()]), conv(4, 8, 3), Concat([(), GlobalAvgPool()])]
    with pytest.raises(ValueError, match="they may differ"):
        numbaprims.fuse(body, (1, 3, 6, 5))
    net = numbaprims.fuse(body[:2], (1, 3, 6, 5))
    with numbaprims.config(device="cpu"):
        agrees(net, array(1, 3, 6, 5))
        agrees(net, array(3, 3, 6, 5))
    assert not net._segments[0].joined.why and len(net._segments[0].joined._kinds) >= 3


def test_parts_that_a_function_reads_too():
    """What leaves a native call is no part of an array that it writes piece by piece."""
    steps = [(conv(2, 3), (0,)), (conv(3, 3), (0,)), (conv(1, 3), (0,))]
    steps += [(Concat([()] * 2), (1, 2)), (Concat([()] * 3), (1, 2, 3)), (conv(2, 5), (4,)), (conv(2, 6), (5,))]
    steps += [(Call(np.tanh), (1,)), (Call(np.sin), (4,)), (Call(np.cos), (5,))]
    steps += [(Concat([()] * 5), (6, 7, 8, 9, 10)), (conv(3, 17), (11,))]
    net = numbaprims.fuse(Wired(steps), (2, 3, 4, 6))
    with numbaprims.config(device="cpu"):
        for n in (2, 1):
            agrees(net, array(n, 3, 4, 6))
    assert [segment.joins for segment in net._segments] == [True, False, False, False, True]
    assert not any(segment.joined.why for segment in net._segments)


def test_a_result_that_is_a_part_of_another_array_is_refused():
    x, whole = array(3, 4), np.empty((2, 3, 4), np.float32)
    _, recording = joined.recorded(lambda: numbaprims.relu(x, out=whole[0]))
    recording.pieced.append(whole)
    assert joined.joined(recording, [whole[0], x], 1) == (
        "an array of the call is a part of what is written piece by piece"
    )
