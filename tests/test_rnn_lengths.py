"""Lengths of sequences: sorted, packed and restored, against torch and by the loop."""

import numpy as np
import pytest
from helpers import has_module
from hypothesis import given, strategies as st

from numbaprims.recurrent.lengths import Lengths

needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")


def test_of_the_conventions():
    of = Lengths.of([7, 5, 2], 9)
    assert of.batch_sizes.tolist() == [3, 3, 2, 2, 2, 1, 1] and of.offsets.tolist() == [0, 3, 6, 8, 10, 12, 13, 14]
    assert all(each.dtype == np.int64 for each in (of.lengths, of.order, of.inverse, of.batch_sizes, of.offsets))


@given(st.lists(st.integers(0, 6), max_size=7), st.integers(0, 2), st.booleans())
def test_rows_are_those_of_the_loop(lengths, more, batch_first):
    steps = max(lengths, default=0) + more
    of = Lengths.of(lengths, steps, len(lengths))
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])  # Python's sort is stable
    assert of.order.tolist() == order and of.order[of.inverse].tolist() == list(range(len(lengths)))
    rows = [
        n * steps + t if batch_first else t * len(lengths) + n
        for t in range(steps) for n in order if lengths[n] > t
    ]  # fmt: skip
    assert of.rows(batch_first).tolist() == rows
    assert of.batch_sizes.tolist() == [sum(n > t for n in lengths) for t in range(max(lengths, default=0))]
    assert np.diff(of.offsets).tolist() == of.batch_sizes.tolist() and of.offsets[-1] == len(rows) and not of.offsets[0]
    shape = (len(lengths), steps) if batch_first else (steps, len(lengths))
    padded = np.arange(1.0, 1 + 2 * steps * len(lengths)).reshape(*shape, 2)
    packed = of.pack(padded, batch_first)
    assert packed.tolist() == padded.reshape(steps * len(lengths), 2)[rows].tolist()
    live = np.arange(steps) < np.array(lengths, int)[:, None]
    want = np.where((live if batch_first else live.T)[..., None], padded, 0)
    np.testing.assert_array_equal(of.pad(packed, batch_first), want)


@needs_torch
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("lengths", "enforce"), [([2, 7, 5, 7], False), ([7, 5, 5, 2], True), ([1], True)])
def test_is_torchs(lengths, enforce, batch_first, rng):
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    shape = (len(lengths), 8) if batch_first else (8, len(lengths))
    x = rng.standard_normal((*shape, 3))
    packed = pack_padded_sequence(torch.tensor(x), torch.tensor(lengths), batch_first, enforce)
    ours, theirs = Lengths.of(torch.tensor(lengths), 8), Lengths.from_packed(*packed)
    want = pad_packed_sequence(packed, batch_first)[0].numpy()
    np.testing.assert_array_equal(theirs.pad(packed.data.numpy(), batch_first), want)
    np.testing.assert_array_equal(theirs.pack(want, batch_first), packed.data.numpy())
    assert sorted(ours.pack(x, batch_first).ravel()) == sorted(packed.data.ravel().tolist())
    assert ours.batch_sizes.tolist() == theirs.batch_sizes.tolist() == packed.batch_sizes.tolist()
    assert theirs.lengths.tolist() == lengths and theirs.steps == max(lengths)
    if packed.unsorted_indices is not None:
        assert theirs.inverse.tolist() == packed.unsorted_indices.tolist()


@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: Lengths.of([3, 9], 8), ValueError, r"lengths\[1\] is 9; with 8 steps it must be 0 to 8"),
    (lambda: Lengths.of([-1, 2], 8), ValueError, r"lengths\[0\] is -1"),
    (lambda: Lengths.of([1.0, 2.0], 8), TypeError, "lengths is of float64; it must be integers"),
    (lambda: Lengths.of([True], 8), TypeError, "lengths is of bool"),
    (lambda: Lengths.of([[1], [1, 2]], 8), TypeError, "lengths is a list whose values cannot be read"),
    (lambda: Lengths.of([[1]], 8), ValueError, r"lengths has shape \(1, 1\); it must have one dimension"),
    (lambda: Lengths.of([1, 2], 8, 3), ValueError, "lengths has 2 elements for a batch of 3"),
    (lambda: Lengths.from_packed(np.ones((3, 1)), [1, 2]), ValueError, r"batch_sizes is \[1, 2\]; they must be posit"),
    (lambda: Lengths.from_packed(np.ones((3, 1)), [2, 1, 0]), ValueError, "must be positive and never grow"),
    (lambda: Lengths.from_packed(np.ones((4, 1)), [2, 1]), ValueError, "data has 4 rows; batch_sizes say 3"),
    (lambda: Lengths.from_packed(np.ones((3, 1)), [2, 1], [1, 1]), ValueError, r"sorted_indices is \[1, 1\]"),
    (lambda: Lengths.from_packed(np.ones((3, 1)), [2, 1], [1, 0], [0, 1]), ValueError, r"unsorted_indices is \[0, 1\]"),
])  # fmt: skip
def test_refusals(make, error, words):
    with pytest.raises(error, match=words):
        make()
