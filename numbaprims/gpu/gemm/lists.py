"""Local arrays as tuples, and back: vector loads, stores and formulas take tuples, loops need arrays.

Both live in registers as long as every index is a constant once loops are unrolled.
"""

from __future__ import annotations

from numbaprims.gpu.jit import device_function


@device_function
def tuple_of_1(x):  # type: ignore[no-untyped-def]
    return (x[0],)


@device_function
def tuple_of_2(x):  # type: ignore[no-untyped-def]
    return (x[0], x[1])


@device_function
def tuple_of_4(x):  # type: ignore[no-untyped-def]
    return (x[0], x[1], x[2], x[3])


@device_function
def tuple_of_8(x):  # type: ignore[no-untyped-def]
    return (x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7])


@device_function
def fill_1(x, y):  # type: ignore[no-untyped-def]
    x[0] = y[0]


@device_function
def fill_2(x, y):  # type: ignore[no-untyped-def]
    x[0], x[1] = y[0], y[1]


@device_function
def fill_4(x, y):  # type: ignore[no-untyped-def]
    x[0], x[1], x[2], x[3] = y[0], y[1], y[2], y[3]


@device_function
def fill_8(x, y):  # type: ignore[no-untyped-def]
    x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7] = y[0], y[1], y[2], y[3], y[4], y[5], y[6], y[7]


#: count -> (local array to tuple, tuple to local array)
TUPLES = {
    1: (tuple_of_1, fill_1), 2: (tuple_of_2, fill_2), 4: (tuple_of_4, fill_4), 8: (tuple_of_8, fill_8),
}  # fmt: skip
