"""What the bodies of calls inside `@njit` call: compiled with the user's function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.cpython.unsafe.tuple import tuple_setitem
from numba.extending import intrinsic, register_jitable

from numbaprims.ops._ctc_pose import PAD


@intrinsic
def word_as_float(typingctx, word):  # type: ignore[no-untyped-def]
    """The float64 of an integer's bits."""
    wide = types.int64 if word.signed else types.uint64

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        bits = context.cast(builder, args[0], word, wide)
        return builder.bitcast(bits, context.get_value_type(types.float64))

    return types.float64(word), codegen


@register_jitable
def windows_along(size, kernel, stride, before, after, dilation, ceil_mode):  # type: ignore[no-untyped-def]
    """How many windows there are along a dimension; any number where there are none, which the public call refuses."""
    room = size + before + after - (kernel - 1) * dilation - 1
    if stride <= 0 or room < 0:
        return 0
    count = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + before else count


@register_jitable
def transposed_along(size, kernel, stride, before, after, dilation, more):  # type: ignore[no-untyped-def]
    """How long the result of a transposed convolution is along a dimension; 0 where the public call refuses it."""
    return max((size - 1) * stride - before - after + dilation * (kernel - 1) + 1 + more, 0)


@register_jitable
def padded_along(size, before, after):  # type: ignore[no-untyped-def]
    """How long an axis is with its borders; any length where they take more than there is, which is refused."""
    return max(size - max(-before, 0) - max(-after, 0), 0) + max(before, 0) + max(after, 0)


@register_jitable
def row_size(shape, i, keep, axes):  # type: ignore[no-untyped-def]
    """The size of dimension i behind a reduction of axes, of which the first number is none and says if there are."""
    for d in range(len(shape)):
        reduced = axes[0] == 0
        for axis in axes[1:]:
            reduced = reduced or axis == d or axis + len(shape) == d
        if keep and d == i:
            return 1 if reduced else shape[d]
        if not keep and not reduced:
            if i == 0:
                return shape[d]
            i -= 1
    return 0


@register_jitable
def attention_scale(q):  # type: ignore[no-untyped-def]
    """What the public call has where no scale is given."""
    width = 0
    for size in q.shape:
        width = size
    return 1.0 / math.sqrt(width) if width else 1.0


@register_jitable
def factors_of(n, a_scale, b_scale, y_scale):  # type: ignore[no-untyped-def]
    """What requantises each column of a product, and 0; -1 where the public call refuses the scales."""
    factors, one, y = np.empty(n, np.float32), np.float32(a_scale), np.float32(y_scale)
    if len(b_scale) not in (1, n) or not 0.0 < one < np.inf or not 0.0 < y < np.inf:
        return factors, -1
    for j in range(n):
        scale = np.float32(b_scale[j if len(b_scale) > 1 else 0])
        factors[j] = one * scale / y
        if not 0.0 < scale < np.inf or not 0.0 < factors[j] < np.inf:
            return factors, -1
    return factors, 0


@register_jitable
def filters_of(k, low, high, x_scale, w_scale, y_scale, x_zero, w_zero, y_zero):  # type: ignore[no-untyped-def]
    """What requantises each filter, and both zero points; whether one of the weight is not 0, -1 where the public call
    refuses them."""
    extra = np.empty((3, k), np.float32)
    one, y = np.float32(x_scale), np.float32(y_scale)
    sizes = len(w_scale) in (1, k) and len(w_zero) in (1, k)
    if not sizes or x_zero < low or x_zero > high or not 0.0 < one < np.inf or not 0.0 < y < np.inf:
        return extra, -1
    zeros = 0
    for i in range(k):
        scale = np.float32(w_scale[i if len(w_scale) > 1 else 0])
        zero = w_zero[i if len(w_zero) > 1 else 0]
        extra[0, i], extra[1, i], extra[2, i] = one * scale / y, zero, y_zero
        if not 0.0 < scale < np.inf or not 0.0 < extra[0, i] < np.inf or zero < -128 or zero > 127:
            return extra, -1
        if zero != 0:
            zeros = 1
    return extra, zeros


@register_jitable
def ctc_table(shape, targets, input_lengths, target_lengths, blank):  # type: ignore[no-untyped-def]
    """The integers of a loss, and their columns of labels; -1 where the public call refuses them."""
    steps, batch, classes = shape
    table, total, most = np.empty(0, np.int64), np.int64(0), np.int64(0)
    if not 0 <= blank < classes or len(input_lengths) != batch or len(target_lengths) != batch:
        return table, -1
    for n in range(batch):
        length, count = np.int64(input_lengths[n]), np.int64(target_lengths[n])
        if not 0 <= length <= steps or not 0 <= count <= targets.shape[targets.ndim - 1]:
            return table, -1
        total += count
        most = count if count > most else most
    if len(targets) != (batch if targets.ndim == 2 else total):
        return table, -1
    columns: Any = max(PAD, -(-most // PAD) * PAD)
    table, first = np.full(batch * (2 + columns), blank, np.int64), np.int64(0)
    for n in range(batch):
        count, place = np.int64(target_lengths[n]), 2 * batch + n * columns
        table[n], table[batch + n] = input_lengths[n], count
        for i in range(count):
            if targets.ndim == 2:
                label = np.int64(targets[n, i])
            else:
                label = np.int64(targets[first + i])
            if not 0 <= label < classes or label == blank:
                return table, -1
            table[place + i] = label
        first += count
    return table, columns


@register_jitable
def ctc_steps(shape, lengths, blank):  # type: ignore[no-untyped-def]
    """The steps of each sequence, and 0; -1 where the public call refuses them."""
    table = np.empty(shape[1], np.int64)
    if not 0 <= blank < shape[2] or len(lengths) != len(table):
        return table, -1
    for n in range(len(table)):
        table[n] = lengths[n]
        if not 0 <= table[n] <= shape[0]:
            return table, -1
    return table, 0


_with_item: Any = tuple_setitem


@register_jitable
def lying_like(x):  # type: ignore[no-untyped-def]
    """A new array that lies in memory as x does, without its gaps: what NumPy's empty_like gives."""
    strides = x.strides
    for i in range(x.ndim):
        step = x.itemsize
        for j in range(x.ndim):
            if abs(x.strides[j]) < abs(x.strides[i]) or (abs(x.strides[j]) == abs(x.strides[i]) and j > i):
                step *= x.shape[j]
        strides = _with_item(strides, i, step)
    return np.lib.stride_tricks.as_strided(np.empty(x.size, x.dtype), x.shape, strides)


@register_jitable
def channels_as(x, made):  # type: ignore[no-untyped-def]
    """A new array whose channels lie innermost where those of x do: what the public convolution gives."""
    strides, width, step = made.strides, x.shape[x.ndim - 1], x.strides[x.ndim - 1]
    if x.shape[1] > 1 and x.strides[1] == x.itemsize and (width == 1 or step != x.itemsize):
        strides, step = _with_item(strides, 1, made.itemsize), made.itemsize * made.shape[1]
        for i in range(made.ndim - 1, 0, -1):
            at = i if i > 1 else 0
            strides = _with_item(strides, at, step)
            step *= made.shape[at]
    return np.lib.stride_tricks.as_strided(made, made.shape, strides)


FUNCTIONS: dict[str, Any] = {
    made.__name__: made
    for made in (
        lying_like,
        channels_as,
        windows_along,
        transposed_along,
        padded_along,
        row_size,
        attention_scale,
        word_as_float,
        factors_of,
        filters_of,
        ctc_table,
        ctc_steps,
    )
}
#: What stands for them where a type alone is wanted.
IN_PYTHON: dict[str, Any] = {**FUNCTIONS, "lying_like": np.empty_like, "channels_as": lambda x, made: made}
