"""The loss and its gradient: sums over all paths, forwards and backwards in time, a sample a tile.

The 2 S + 1 states lie as S + 1 blanks b and S labels l, so that every load is contiguous:

    b'[k] = y_blank  (b[k] + l[k - 1])
    l'[k] = y[label] (l[k] + b[k] + l[k - 1] where label k - 1 is another)

A value is a mantissa in the type that is computed in and an integer exponent of its own: states of one step lie more
than 2**126 apart (100 labels over 500 steps of even probabilities do so where paths are still likely), so one scale a
step would lose them, and logarithms cost two exponentials and a logarithm a sum and lose digits with every step.
Mantissas are brought back to [1, 2) every `ROUNDS` steps: a step takes them by 3 sqrt(2) up and by sqrt(2) down.

Count, for each vector of W labels and W blanks of a step: 3 sums of 9 operations and 2 products of 3, with loads and
stores 44 instructions; 27 for the exponentials of what was gathered, label by label; 121 for a step of the gradient.
That writes all classes, T N C elements, which bounds it where C is large.
"""

from __future__ import annotations

import functools
import math

from numbaprims.cpu.ctc.values import add, normal, power, product, split
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    broadcast_load,
    cast_pointer,
    exp,
    extract,
    first_lanes,
    load,
    load_first,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_scalar,
    load_word,
    log,
    prefetch,
    reduce_add,
    scalar,
    select,
    splat,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_narrow_scalar,
    store_scalar,
    zeros,
)
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.paths import FLOOR as FLOOR_OF

# x (time, sample, class), out the losses or dx.  table: as `CtcProblem` has it, `labels` columns.  A worker's: `rows`
# states, rows of six parts of `part` elements (mantissas and exponents of b, of l behind a vector of zeros, of y, whose
# last vector is that of the blank); where labels skip a blank; for the gradient the states after a step in four parts,
# what a step finds for its labels, and a row of classes.
ARGS = Arguments(
    arrays=("out", "x", "table", "dy"),
    ints=(
        "x_t", "x_n", "x_c", "out_t", "out_n", "out_c", "dy_n", "steps", "batch", "classes", "labels", "part", "rows",
        "blank", "mean", "zero_infinity", "ahead",
    ),
    own=("states", "skips", "after", "found", "sums"),
)  # fmt: skip
ROUNDS = 16
LN2 = math.log(2.0)
#: Type that is computed in -> that of its exponents, the exponent of zeros.
FORMS = {"f32": ("i32", FLOOR_OF[32]), "f64": ("i64", FLOOR_OF[64])}


@helper
def clear(m, e, count, FLOOR, elem, ints, W):  # type: ignore[no-untyped-def]
    """Make `count` values zeros."""
    for k in range(0, count, W):
        store(m, k, zeros(elem, W))
        store(e, k, zeros(ints, W) + FLOOR)


@helper
def step_forward(old, new, part, skips, count, elem, ints, FLOOR, W):  # type: ignore[no-untyped-def]
    """A step's states from those of the step before; y stands in its row."""
    olde, newe = cast_pointer(old, ints), cast_pointer(new, ints)
    L = 2 * part + W
    ym, ye = load(new, 5 * part - W, W), load(newe, 6 * part - W, W)
    store(new, 2 * part, zeros(elem, W))
    store(newe, 3 * part, zeros(ints, W) + FLOOR)
    for k in range(0, count, W):
        bm, be = load(old, k, W), load(olde, part + k, W)
        sum_m, sum_e = add(bm, be, load(old, L - 1 + k, W), load(olde, L + part - 1 + k, W))
        m, e = product(sum_m, sum_e, ym, ye)
        store(new, k, m)
        store(newe, part + k, e)
        far = load(skips, k, W) != 0
        m, e = add(select(far, sum_m, bm), select(far, sum_e, be), load(old, L + k, W), load(olde, L + part + k, W))
        m, e = product(m, e, load(new, 4 * part + k, W), load(newe, 5 * part + k, W))
        store(new, L + k, m)
        store(newe, L + part + k, e)


@helper
def normalise(row, part, count, ints, W):  # type: ignore[no-untyped-def]
    """Mantissas of a row's states back to [1, 2)."""
    rowe = cast_pointer(row, ints)
    for at in (0, 2 * part + W):
        for k in range(0, count, W):
            m, e = normal(load(row, at + k, W), load(rowe, at + part + k, W))
            store(row, at + k, m)
            store(rowe, at + part + k, e)


@helper
def forward(args, n, room, skips, count, elem, ints, FLOOR, W):  # type: ignore[no-untyped-def]
    """All steps of sample n; row 0 of `rows` is before the first.  The last row, how many steps, the labels."""
    part, rows = args.part, args.rows
    table = address_of(args.table)
    length, labels = load_word(table, n), table + 8 * (2 * args.batch + n * args.labels)
    wide = (count + W) // W * W
    x = advance(args.x, n * args.x_n)
    before = args.blank
    for k in range(wide):
        label = load_word(labels, k) if k < count else before
        store_scalar(skips, k, int(label != before and k > 0))
        before = label
    row, rowe = room, cast_pointer(room, ints)
    clear(row, advance(rowe, part), part, FLOOR, elem, ints, W)
    clear(advance(row, 2 * part), advance(rowe, 3 * part), part, FLOOR, elem, ints, W)
    store_scalar(row, 0, scalar(1.0, elem))
    store_scalar(rowe, part, 0)
    for t in range(length):
        new = advance(room, (t + 1) % rows * (6 * part))
        newe, y = cast_pointer(new, ints), advance(new, 4 * part)
        source = advance(x, t * args.x_t)
        for k in range(count):
            at = load_word(labels, k) * args.x_c
            store_scalar(y, k, load_wide_scalar(source, at))
            if args.ahead != 0:  # past the end nothing is fetched
                prefetch(source, args.ahead + at, 3)
        for k in range(count, wide):
            store_scalar(y, k, scalar(0.0, elem))
        m, e = split(splat(load_wide_scalar(source, args.blank * args.x_c), W))
        store(new, 5 * part - W, m)
        store(newe, 6 * part - W, e)
        for k in range(0, wide, W):
            m, e = split(load(y, k, W))
            store(y, k, m)
            store(newe, 5 * part + k, e)
        step_forward(row, new, part, skips, wide, elem, ints, FLOOR, W)
        if t % ROUNDS == ROUNDS - 1:
            normalise(new, part, wide, ints, W)
        row = new
    return row, length, labels


@helper
def last_sum(row, part, count, ints, W):  # type: ignore[no-untyped-def]
    """The probability of all paths, in every lane."""
    rowe = cast_pointer(row, ints)
    L = 2 * part + W - 1 + count
    m, e = add(
        broadcast_load(row, count, W), broadcast_load(rowe, part + count, W), broadcast_load(row, L, W),
        broadcast_load(rowe, L + part, W),
    )  # fmt: skip
    return normal(m, e)


@functools.cache
def make_loss(dtype: str, result: str, W: int) -> RangeKernel:
    """Losses of samples lo ... hi - 1; only two rows of states are kept."""
    elem = DTYPES[dtype].accumulate
    ints, FLOOR = FORMS[elem]

    @range_kernel(
        "ctc_loss", ARGS.types(out=result, x=dtype, table="i64", states=elem, skips=ints), spec=(dtype, result, W)
    )
    def ctc_loss(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room, skips = args.states[worker], args.skips[worker]
        for n in range(lo, hi):
            count = load_word(address_of(args.table), args.batch + n)
            row, _, _ = forward(args, n, room, skips, count, elem, ints, FLOOR, W)
            m, e = last_sum(row, args.part, count, ints, W)
            loss = -(extract(log(splat(float(extract(m, 0)), 1)), 0) + extract(e, 0) * LN2)
            if args.zero_infinity != 0 and loss == math.inf:
                loss = 0.0
            if args.mean != 0:
                loss = loss / (max(count, 1) * args.batch)
            store_narrow_scalar(args.out, n * args.out_n, scalar(loss, elem))

    return ctc_loss


@helper
def step_backward(row, after, found, part, count, states, pm, pe, elem, ints, W):  # type: ignore[no-untyped-def]
    """What the states of a step stand for, times what the ones after it make of them: labels into `found`, the
    blank's sum is given.  The states after it become products with their y."""
    rowe, aftere = cast_pointer(row, ints), cast_pointer(after, ints)
    L = 2 * part + W
    ym, ye = load(row, 5 * part - W, W), load(rowe, 6 * part - W, W)
    total = zeros(elem, W)
    for k in range(0, count, W):
        m, e = load(after, k, W), load(aftere, part + k, W)
        x = load(row, k, W) * power(load(rowe, part + k, W) + e - pe) * (m * pm)
        total = total + select(first_lanes(states + 1 - k, W), x, 0.0)
        m, e = product(m, e, ym, ye)
        store(after, k, m)
        store(aftere, part + k, e)
        m, e = load(after, L + k, W), load(aftere, L + part + k, W)
        x = load(row, L + k, W) * power(load(rowe, L + part + k, W) + e - pe) * (m * pm)
        store(found, k, x)
        m, e = product(m, e, load(row, 4 * part + k, W), load(rowe, 5 * part + k, W))
        store(after, L + k, m)
        store(aftere, L + part + k, e)
    return reduce_add(total)


@helper
def join_backward(after, part, skips, count, ints, FLOOR, W):  # type: ignore[no-untyped-def]
    """The states of the step before from those products, in place: each from itself and those behind it."""
    aftere = cast_pointer(after, ints)
    L = 2 * part + W
    for k in range(0, count, W):
        lm, le = load(after, L + k, W), load(aftere, L + part + k, W)
        nm, ne = load(after, L + k + 1, W), load(aftere, L + part + k + 1, W)
        far = load(skips, k + 1, W) != 0
        m, e = add(lm, le, load(after, k + 1, W), load(aftere, part + k + 1, W))
        m, e = add(m, e, select(far, nm, 0.0), select(far, ne, FLOOR))
        bm, be = add(load(after, k, W), load(aftere, part + k, W), lm, le)
        store(after, L + k, m)
        store(aftere, L + part + k, e)
        store(after, k, bm)
        store(aftere, part + k, be)


@helper
def write_part(out, x, row, c, left, g, logits, elem, W):  # type: ignore[no-untyped-def]
    """Classes c ... c + left - 1 of a row."""
    value = load_first(row, c, left, W)
    store_first(row, c, left, zeros(elem, W))
    if logits:
        value = value - exp(load_wide_first(x, c, left, W))
    store_narrow_first(out, c, left, value * g)


@helper
def write_row(args, out, x, row, g, logits, elem, W):  # type: ignore[no-untyped-def]
    """A row of all classes: g times what stands in `row`, of logits less the probabilities; zeros are left there."""
    classes = args.classes
    if args.out_c == 1 and args.x_c == 1:
        c = 0
        while c + W <= classes:
            value = load(row, c, W)
            store(row, c, zeros(elem, W))
            if logits:
                value = value - exp(load_wide(x, c, W))
            store_narrow(out, c, value * g)
            c += W
        if c < classes:
            write_part(out, x, row, c, classes - c, g, logits, elem, W)
    else:
        for c in range(classes):
            value = load(row, c, 1)
            store(row, c, zeros(elem, 1))
            if logits:
                value = value - exp(splat(load_wide_scalar(x, c * args.x_c), 1))
            store_narrow_scalar(out, c * args.out_c, extract(value * g, 0))


@helper
def write_zeros(args, out, elem, W):  # type: ignore[no-untyped-def]
    """A row of the gradient where there is none."""
    for c in range(0, args.classes, W):
        if args.out_c == 1:
            store_narrow_first(out, c, min(W, args.classes - c), zeros(elem, W))
        else:
            for each in range(c, min(c + W, args.classes)):
                store_narrow_scalar(out, each * args.out_c, scalar(0.0, elem))


@functools.cache
def make_gradient(dtype: str, logits: bool, W: int) -> RangeKernel:
    """The gradients of samples lo ... hi - 1: forwards once more, then backwards, a row of classes written a step."""
    elem = DTYPES[dtype].accumulate
    ints, FLOOR = FORMS[elem]
    types = ARGS.types(
        out=dtype, x=dtype, table="i64", dy=dtype, states=elem, skips=ints, after=elem, found=elem, sums=elem
    )

    @range_kernel("ctc_gradient", types, spec=(dtype, logits, W))
    def ctc_gradient(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room, skips = args.states[worker], args.skips[worker]
        after, found, classes, part = args.after[worker], args.found[worker], args.sums[worker], args.part
        for n in range(lo, hi):
            count = load_word(address_of(args.table), args.batch + n)
            row, length, labels = forward(args, n, room, skips, count, elem, ints, FLOOR, W)
            pm, pe = last_sum(row, part, count, ints, W)
            out, x = advance(args.out, n * args.out_n), advance(args.x, n * args.x_n)
            if extract(pm, 0) == 0.0:
                length = 0
            for t in range(length, args.steps):
                write_zeros(args, advance(out, t * args.out_t), elem, W)
            g = load_wide_scalar(args.dy, n * args.dy_n)
            if args.mean != 0:
                g = scalar(g / (max(count, 1) * args.batch), elem)
            g = scalar(-g, elem)
            pm = 1.0 / pm
            wide = (count + W) // W * W
            aftere = cast_pointer(after, ints)
            clear(after, advance(aftere, part), part, FLOOR, elem, ints, W)
            clear(advance(after, 2 * part), advance(aftere, 3 * part), part, FLOOR, elem, ints, W)
            for at, real in ((count, True), (2 * part + W + count - 1, count > 0)):
                if real:
                    store_scalar(after, at, scalar(1.0, elem))
                    store_scalar(aftere, part + at, 0)
            for c in range(0, args.classes, W):
                store(classes, c, zeros(elem, W))
            for back in range(length):
                t = length - 1 - back
                row = advance(room, (t + 1) * (6 * part))
                blank = step_backward(row, after, found, part, wide, count, pm, pe, elem, ints, W)
                store_scalar(classes, args.blank, blank)
                for k in range(count):
                    label = load_word(labels, k)
                    store_scalar(classes, label, load_scalar(classes, label) + load_scalar(found, k))
                join_backward(after, part, skips, wide, ints, FLOOR, W)
                if back % ROUNDS == ROUNDS - 1:
                    normalise(after, part, wide, ints, W)
                to, source = advance(out, t * args.out_t), advance(x, t * args.x_t)
                write_row(args, to, source, classes, g, logits, elem, W)

    return ctc_gradient
