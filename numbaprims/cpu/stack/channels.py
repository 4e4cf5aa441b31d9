"""Stages over pixels, a vector being channels of one place; with one lane, elements wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbaprims.cpu.simd.convert import load_wide_value, store_narrow_value
from numbaprims.cpu.simd.emit import (
    constant,
    element_at,
    first_lanes_value,
    insert_lane,
    least,
    number,
    prefetch_value,
    splat_value,
)
from numbaprims.cpu.simd.loops import keep_rolled_value, once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.stack.emit import MOST_WEIGHTS, Form, Rows
from numbaprims.formulas.value import mad

#: Taps of a row or column that are written out.
MOST_TAPS = 12


class Channels(Rows):
    """Emits rows of pixels."""

    span = 1

    def __init__(self, builder: Any, form: Form, args: Any) -> None:
        super().__init__(builder, form, args)
        self.first, self.last = -self.P, (self.K - 1) * self.D - self.P
        #: Lanes of the image's own pixels that there are.
        self.mask = first_lanes_value(builder, self.word("left"), self.W) if form.partial else None
        window = self.stage.window
        self.is_large = window is not None and (
            max(*window.kernel, (self.last - self.first) // 2) > MOST_TAPS or window.numbers > MOST_WEIGHTS
        )
        first = window.numbers if window is not None and self.is_large else 0
        # those of a loop are loaded there; channels that are neighbours are one load, others W of 9 cycles each
        step, count = self.word("parameters_channel"), range(first, self.stage.numbers)
        numbers = [self.empty] * len(count)
        if count:
            near, far = (
                builder.icmp_signed("==", step.value, number(1)),
                builder.icmp_signed("!=", step.value, number(1)),
            )
            numbers = once(builder, near, numbers, lambda _: [self._neighbours(k) for k in count], "near")
            numbers = once(builder, far, numbers, lambda _: [self._number(k) for k in count], "far")
        self.numbers = [self.empty] * first + numbers

    def _neighbours(self, k: int) -> Value:
        """A parameter of channels whose parameters lie side by side."""
        pointer, at = self.pointer("parameters", self.form.compute), self.word("parameters_step") * k
        return Value(self.b, load_wide_value(self.b, pointer, at.value, self.form.compute, self.W, self.mask))

    def _number(self, k: Value | int) -> Value:
        """A parameter of each channel."""
        b, pointer = self.b, self.pointer("parameters", self.form.compute)
        channel, step, left = self.word("parameters_channel"), self.word("parameters_step"), self.word("left")
        value = constant(self.vector, 0.0)
        for lane in range(self.W):
            last = (left - 1).value
            at = channel.new(least(b, number(lane), last)) if self.form.partial else channel.like(lane)
            value = insert_lane(b, value, b.load(element_at(b, pointer, at * channel + step * k)), lane)
        return Value(b, value)

    def _read(self, row: Any, v: Value, elem: str, pixel: Value | int, mask: Any) -> Value:
        return Value(self.b, load_wide_value(self.b, row, (v * pixel).value, elem, self.W, mask))

    def load(self, pointer: Any, v: Value, whole: bool) -> Value:
        own = bool(self.form.source)
        pixel = self.word("pixel") if own else self.W
        return self._read(pointer, v, self.source, pixel, self.mask if own else None)

    def load_added(self, row: Any, j: Value, name: str, whole: bool) -> Value:
        return self._read(row, j, self.form.added, self.word(f"{name}_pixel"), self.mask)

    def share_of_column(self, shares: Any, at: Value) -> Value:
        return Value(self.b, splat_value(self.b, self.b.load(element_at(self.b, shares, at)), self.W))

    def store(self, pointer: Any, j: Value, value: Value, whole: bool) -> None:
        own = bool(self.form.result)
        at = j * (self.word("out_pixel") if own else self.W)
        store_narrow_value(self.b, pointer, at.value, value.value, self.result, self.mask if own else None)

    def ask(self, rows: dict[int, Any], outs: Sequence[Any], j: Value) -> None:
        # 16 x 14 x 14 x 512, 3 x 3, took 1250 us and takes 415; images in the second-level cache took 5 % longer
        if not self.form.far:
            return
        if self.form.source:
            at = (j * self.S + self.last) * self.word("pixel") + self.W
            for q in self.reads(len(outs))[-len(outs) * (self.stage.stride) :]:
                prefetch_value(self.b, rows[q], at.value, 3, False)
        if self.form.result:
            at = j * self.word("out_pixel") + self.W
            for out in outs:
                prefetch_value(self.b, out, at.value, 3, True)

    def tap(self, vectors: Sequence[Value], t: int) -> Value:
        return vectors[t * self.D - self.P - self.first]

    # ---------------------------------------------------------------- windows of many taps

    def together(self) -> int:
        return 1 if self.is_large else super().together()

    def rows(self, r: Value, R: int, begin: Value, seen: list[Any]) -> list[Any]:
        if not self.is_large:
            return super().rows(r, R, begin, seen)
        out = self.at(self.word("out") + (r - begin) * self.word("out_pitch"), self.result)

        def one(state: list[Any]) -> list[Any]:
            keep_rolled_value(self.b)
            j, seen = state[0], state[1:]
            value = self.finish(self._walk(r, j), r, j, True)
            self.store(out, j, value, True)
            return [j + 1, *(self.watch(each, [value]) for each in seen)]

        return repeat(self.b, self.out_width, [r.like(0), *seen], one, "pixels")[1:]

    def _walk(self, r: Value, j: Value) -> Value:
        """A window, element after element."""
        window = self.stage.window
        assert window is not None

        def down(state: list[Any]) -> list[Any]:
            k, total = state
            row = self.row(r * window.stride[0] - window.before[0] + k * window.dilation[0])

            def across(state: list[Any]) -> list[Any]:
                t, total = state
                v = j * self.S - self.P + t * self.D
                inside = v.new(self.b.icmp_unsigned("<", v.value, self.width.value))

                def tap(state: list[Any]) -> list[Any]:
                    x = self.load(row, v, True)
                    if not self.weighs:
                        return [self.join([state[0], x])]
                    return [mad(x, self._number(k * self.K + t), state[0])]

                return [t + 1, *once(self.b, inside, [total], tap, "tap")]

            return [k + 1, *repeat(self.b, r.like(self.K), [r.like(0), total], across, "across")[1:]]

        # a maximum begins with -inf, a sum with 0
        return repeat(self.b, r.like(window.kernel[0]), [r.like(0), self.empty], down, "down")[1]
