"""Dropout and random numbers as formulas of the pointwise engine.

Philox takes 64 instructions for 32 words with AVX-512 (`numbaprims.cpu.simd.random`). With its own a dropout of 32
float32 takes 83, as LLVM has them: on four pipes of 256 bits 42 cycles, 20 of them for two multipliers alone. Measured
are 0.44 ns an element, some 50 cycles for 32 (Zen 4); a core moves the 256 bytes in less. Steps of two such vectors run
6 to 12 % faster than of one: a round waits for the one before.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.pointwise.emit import emitter
from numbaprims.cpu.pointwise.form import ARGS, Form, Formula, Operand
from numbaprims.cpu.simd import address_of, stream_fence
from numbaprims.cpu.simd.convert import floats_value
from numbaprims.cpu.simd.emit import I32, I64
from numbaprims.cpu.simd.math import functions
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.log import log_value
from numbaprims.cpu.simd.random import BLOCK, by_turns, halves, random_words, splat
from numbaprims.cpu.simd.types import llvm_element
from numbaprims.dtypes import DTYPES
from numbaprims.formulas import random
from numbaprims.formulas.value import mad, select
from numbaprims.philox import DIGITS

#: Slots of a launch's arrays.
OUT, X = 0, 1


def dropout(form: Form, place: Value, given: list[Value], x: Value) -> Value:
    p, seed, offset = given
    b = place.builder
    # the least word that is kept, ceil(p 2**32), and 1 / (1 - p); nothing is kept where the first has 33 bits
    exact = p * 2.0**32
    whole = p.new(b.fptosi(exact.value, I64))
    least = whole + whole.new(b.zext((p.new(b.sitofp(whole.value, exact.value.type)) < exact).value, I64))
    factor = select(least < 1 << 32, 1.0 / (1.0 - p), 0.0)
    compute = floats_value(b, factor.value, llvm_element(form.compute))
    words = random_words(place, seed, offset, form.W)
    limit = p.new(b.trunc(least.value, I32))
    return random.dropout(x, words, splat(limit, form.W), splat(p.new(compute), form.W))


def _scaled(form: Form, unit: Value, given: list[Value]) -> Value:
    """start + size unit."""
    element = llvm_element(form.compute)
    start, size = (splat(n.new(floats_value(n.builder, n.value, element)), form.W) for n in given)
    return mad(unit, size, start)


def uniform(form: Form, place: Value, given: list[Value]) -> Value:
    dtype = form.results[0].dtype
    seed, offset, *scale = given
    words = random_words(place, seed, offset, form.W, 64 if dtype == "f64" else 32)
    return _scaled(form, random.uniform(words, DIGITS[dtype]), scale)


def normal(form: Form, place: Value, given: list[Value]) -> Value:
    seed, offset, *scale = given
    words = random_words(place, seed, offset, form.W, 64 if form.compute == "f64" else 32)
    # by the log that all machines have, not by the faster one of some
    return _scaled(form, by_turns(*random.normal_pair(*halves(words), log_value, functions.sqrt)), scale)


#: dropout: p and the bits of seed and offset; the others: those of seed and offset, then start and size.
FORMULAS = {
    "dropout": Formula(dropout, 3, BLOCK),
    "uniform": Formula(uniform, 4, BLOCK),
    "normal": Formula(normal, 4, BLOCK),
}
_emit: Any = emitter(FORMULAS)


@functools.cache
def make_kernel(form: Form) -> RangeKernel:
    """The range kernel of a form."""
    text, plain, stream = form.text, form._replace(stream=False).text, form.stream
    size = DTYPES[form.results[0].dtype].itemsize

    @range_kernel("random", ARGS.types(), spec=(text,))
    def random_numbers(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        # where a line begins within a block, steps of whole blocks never begin at a line
        if stream and (-address_of(args.a0) % 64) % (BLOCK * size) == 0:
            _emit(text, args, lo, hi)
            stream_fence()
        else:
            _emit(plain, args, lo, hi)

    return random_numbers


def form_of(kind: str, dtype: str, target: Any, stream: bool = False, source: str = "") -> Form:
    """The kernel of contiguous elements: all solvers use it, and so give the same bits.

    A step has the words of two registers' lanes. x may be of another type than the result, by `source`.
    """
    wide = dtype == "f64" and kind != "dropout"
    return Form(
        formula=kind,
        compute=DTYPES[source or dtype].accumulate,
        results=(Operand(OUT, dtype),),
        operands=(Operand(X, source or dtype),) * (kind == "dropout"),
        W=target.vector_bytes // (2 if wide else 1),
        stream=stream,
    )
