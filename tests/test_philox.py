"""Philox against Random123's known answers, and dropout's masks against their definition."""

import numpy as np
import pytest

from numbaprims.philox import dropout_mask, philox4x32, random_words

ONES = 0xFFFFFFFF
#: Counter, key, result: of Random123's kat_vectors, ten rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ONES,) * 4, (ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    found = philox4x32(counter, key)
    assert found.dtype == np.uint32 and [f"{word:08x}" for word in found] == words.split()


def test_counters_and_keys_of_many_are_those_of_one():
    counters, keys, words = zip(*KNOWN, strict=True)
    found = philox4x32(np.array(counters, np.uint32)[:, None], np.array(keys, np.uint32))
    assert found.shape == (3, 3, 4)
    for k in range(3):
        assert [f"{word:08x}" for word in found[k, k]] == words[k].split()


def block(index: int, seed: int, offset: int) -> int:
    """The word of an element by the definition, one at a time."""
    number = index // 4
    counter = (number % 2**32, number // 2**32, offset % 2**32, offset // 2**32)
    return int(philox4x32(counter, (seed % 2**32, seed // 2**32))[index % 4])


@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (2**32, 1), (2**64 - 1, 2**64 - 1), (12345, 2**32 + 7)])
def test_mask_is_a_function_of_seed_offset_and_index(seed, offset):
    words = random_words(23, seed, offset)
    assert [int(word) for word in words] == [block(k, seed, offset) for k in range(23)]
    for p in (0.0, 0.1, 0.5, 1.0):
        mask = dropout_mask((2, 11), p, seed, offset)
        assert mask.shape == (2, 11) and mask.dtype == bool
        assert mask.ravel().tolist() == [block(k, seed, offset) >= p * 2**32 for k in range(22)]
        assert (dropout_mask(7, p, seed, offset) == mask.ravel()[:7]).all()


def test_streams_differ():
    drawn = {random_words(8, seed, offset).tobytes() for seed in (0, 1, 2**32) for offset in (0, 1, 2**32)}
    assert len(drawn) == 9


def test_threshold_is_exact():
    word = block(0, 9, 0)
    assert dropout_mask(1, word / 2**32, 9)[0] and not dropout_mask(1, (word + 1) / 2**32, 9)[0]
    assert dropout_mask(1, (word - 0.5) / 2**32, 9)[0] and not dropout_mask(1, (word + 0.5) / 2**32, 9)[0]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_of_what_is_kept(p):
    count = 200_000
    kept = dropout_mask(count, p, seed=3).sum()
    assert abs(kept - count * (1 - p)) < 5 * np.sqrt(count * p * (1 - p))


def test_ends():
    assert dropout_mask((3, 5), 0.0, 1).all() and not dropout_mask((3, 5), 1.0, 1).any()
    assert dropout_mask((0, 5), 0.5, 1).shape == (0, 5)


@pytest.mark.parametrize(
    ("p", "seed", "offset", "error", "words"),
    [
        (1.5, 0, 0, ValueError, "p is 1.5; a probability lies between 0 and 1"),
        (float("nan"), 0, 0, ValueError, "p is nan"),
        (0.5, -1, 0, ValueError, r"seed is -1; it must be 0 to 2\*\*64 - 1"),
        (0.5, 0, 2**64, ValueError, "offset is 18446744073709551616"),
        (0.5, 0.5, 0, TypeError, "seed is 0.5; it must be an integer"),
    ],
)
def test_refusals(p, seed, offset, error, words):
    with pytest.raises(error, match=words):
        dropout_mask(4, p, seed, offset)
