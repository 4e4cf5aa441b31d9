"""What a launcher launches, as data: gpu/recording.py."""

import struct
import types

import numpy as np
import pytest

from numbaprims.gpu import recording
from numbaprims.gpu.memory import storage_view, to_device


class Noted:
    """A kernel, as far as recordings look."""

    shared, block = 0, (32, 1, 1)

    def __init__(self, *kinds):
        self.kinds = kinds

    def loaded(self, driver):
        return 5


def recorded(launch, count=1, numbers=()):
    arrays = [to_device(np.zeros(64, np.float32)) for _ in range(count)]
    views = [*map(storage_view, arrays), *[None] * (7 - count)]
    return recording.record(launch, views, numbers), [x.pointer for x in arrays]


def launching(kernel, values):
    def launch(a0, a1=None, *rest, f0=0.0, f1=0.0, **_):
        a0.origin.starter(kernel, (1, 1, 1))(values(a0, a1, f0, f1))

    return launch


def test_what_follows_arrays_and_numbers_is_found(gpu):
    kernel = Noted("p", "p", "i64", "f32", "f64", "u32", "u32", "u64", "i32")

    def bits(x):
        return struct.unpack("<Q", struct.pack("<d", x))[0]

    def values(a, b, x, y):
        return (a.pointer + 8, b.pointer, 3, x, x, bits(y) & 0xFFFFFFFF, bits(y) >> 32, bits(y), 7)

    found, (first, second) = recorded(launching(kernel, values), 2, (2.5, 0.125))
    assert found.fixed == () and found.scratch == 0
    assert {each[1:5] for each in found.sources} == {
        (0, "address", 0, 8), (1, "address", 1, 0), (3, "number", 0, 0), (4, "number", 0, 0), (5, "low", 1, 0),
        (6, "high", 1, 0), (7, "bits", 1, 0),
    }  # fmt: skip
    assert found.launches[0].values[0] == first + 8 and found.launches[0].values[1] == second


@pytest.mark.parametrize(
    "of", [lambda x: 2 * x, int, abs, lambda x: max(x, 0.0), lambda x: float(x > 0.5), lambda x: x if x else 1.0]
)
def test_numbers_that_are_computed_with_are_fixed(gpu, of):
    kernel = Noted("p", "f64")
    found, _ = recorded(launching(kernel, lambda a, b, x, y: (a.pointer, float(of(x)))), 1, (3.0,))
    assert found.fixed == (0,) and [each.how for each in found.sources] == ["address"]


def test_a_product_of_ones_follows_neither(gpu):
    kernel = Noted("p", "f64")
    found, _ = recorded(launching(kernel, lambda a, b, x, y: (a.pointer, x * y)), 1, (1.0, 1.0))
    assert found.fixed == (0, 1)


@pytest.mark.parametrize(
    "values",
    [lambda a: (2 * a.pointer,), lambda a: (a.pointer % 256,), lambda a: (a.pointer, a.pointer >> 7)],
    ids=["twice", "beyond the class", "a number"],
)
def test_what_else_follows_an_array_is_not_recorded(gpu, values):
    kernel = Noted(*["p", "i32"][: len(values(types.SimpleNamespace(pointer=0)))])
    assert recorded(launching(kernel, lambda a, *_: values(a)))[0] is None


def test_other_kernels_for_other_arrays_are_not_recorded(gpu):
    one, two = Noted("p"), Noted("p")

    def launch(a0, *_, **__):
        a0.origin.starter(two if a0.pointer & 128 else one, (1, 1, 1))((a0.pointer,))

    assert recorded(launch)[0] is None


def test_scratch_memory_is_lent_as_it_is_used(gpu):
    """What was given back is given out again: launches follow one another."""
    kernel = Noted("p", "p")

    def launch(a0, *_, **__):
        outer, keep = a0.origin.scratch(300)
        for _ in range(2):
            inner, lent = a0.origin.scratch(100)
            a0.origin.starter(kernel, (1, 1, 1))((outer, inner + 4))
            del lent
        del keep

    found, _ = recorded(launch)
    assert found.scratch == 612 and len(found.launches) == 2
    assert [each[2:5] for each in found.sources] == [("address", -1, 0), ("address", -1, 516)] * 2


def test_too_many_launches_are_not_recorded(gpu):
    kernel = Noted("p")

    def launch(a0, *_, **__):
        for _ in range(recording.MOST_LAUNCHES + 1):
            a0.origin.starter(kernel, (1, 1, 1))((a0.pointer,))

    assert recorded(launch)[0] is None
