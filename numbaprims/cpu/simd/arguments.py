"""The argument block of range kernels: 8-byte slots, read as `args.name`; and the words of drivers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model

from numbaprims.cpu.simd.emit import I64, argument, number
from numbaprims.cpu.simd.types import Pointer, llvm_element, stack_block

ARRAY_SLOTS = 8
FLOAT_SLOT = 8
FLOAT_SLOTS = 6
INT_SLOT = 16
INT_SLOTS = 48
STEP_SLOT = 64


class Arguments:
    """The names of a kernel's arguments: arrays in the slots from 0, floats (f64) from 8, ints from 16.

    Arrays after the eighth and ints after the 48th have slots behind the step's.
    """

    def __init__(self, arrays: tuple[str, ...], floats: tuple[str, ...] = (), ints: tuple[str, ...] = ()) -> None:
        if len(floats) > FLOAT_SLOTS:
            raise ValueError(f"{len(floats)} floats; a kernel takes at most {FLOAT_SLOTS}")
        self.arrays, self.floats, self.ints = arrays, floats, ints
        self._slots = _slots(arrays, floats, ints)
        self.words = max(*self._slots.values(), STEP_SLOT) + 1
        #: Words up to the last of them but the step.
        self.used = max((self._slots[name] + 1 for name in (*arrays, *ints)), default=0)
        if len(self._slots) != len(arrays) + len(floats) + len(ints) + 1:
            raise ValueError("argument names must differ from one another and from 'step'")

    def slot(self, name: str) -> int:
        """The slot of an argument."""
        return self._slots[name]

    def of(self, values: Mapping[str, int]) -> dict[str, int]:
        """Their integers among the values of several kinds of arguments."""
        return {name: values[name] for name in self.ints if name in values}

    def types(self, **elements: str) -> ArgsType:
        """The Numba type of a block whose arrays have these element types; others are bytes ("u8")."""
        unknown = set(elements) - set(self.arrays)
        if unknown:
            raise ValueError(f"{sorted(unknown)} are not arrays; those are {self.arrays}")
        arrays = tuple((name, elements.get(name, "u8")) for name in self.arrays)
        return ArgsType(arrays, self.floats, self.ints)


class ArgsType(types.Type):
    """The address of an argument block, with its names and element types."""

    def __init__(self, arrays: tuple[tuple[str, str], ...], floats: tuple[str, ...], ints: tuple[str, ...]) -> None:
        self.arrays, self.floats, self.ints = arrays, floats, ints
        super().__init__(name=f"Args({arrays},{floats},{ints})")

    def slot_and_type(self, name: str) -> tuple[int, Any] | None:
        """Where an argument is kept, and the Numba type that reading it gives."""
        slot = _slots(tuple(array for array, _ in self.arrays), self.floats, self.ints).get(name)
        if slot is None:
            return None
        elements = dict(self.arrays)
        if name in elements:
            return slot, Pointer(elements[name])
        return slot, types.float64 if name in self.floats else types.int64


@functools.cache
def _slots(arrays: tuple[str, ...], floats: tuple[str, ...], ints: tuple[str, ...]) -> dict[str, int]:
    behind = iter(range(STEP_SLOT + 1, STEP_SLOT + 1 + len(arrays) + len(ints)))
    slots = {name: i if i < ARRAY_SLOTS else next(behind) for i, name in enumerate(arrays)}
    slots |= {name: FLOAT_SLOT + i for i, name in enumerate(floats)}
    slots |= {name: INT_SLOT + i if i < INT_SLOTS else next(behind) for i, name in enumerate(ints)}
    return slots | {"step": STEP_SLOT}


@register_model(ArgsType)
class _ArgsModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: ArgsType) -> None:
        super().__init__(dmm, fe_type, I64)


@infer_getattr
class _ArgsAttribute(AttributeTemplate):
    key = ArgsType

    def generic_resolve(self, typ, attr):  # type: ignore[no-untyped-def]
        found = typ.slot_and_type(attr)
        return None if found is None else found[1]


@lower_getattr_generic(ArgsType)
def _lower_argument(context: Any, builder: Any, typ: ArgsType, value: Any, attr: str) -> Any:
    found = typ.slot_and_type(attr)
    assert found is not None
    slot, result = found
    if isinstance(result, Pointer):
        kind = llvm_element(result.elem).as_pointer()
    elif result is types.float64:
        kind = ir.DoubleType()
    else:
        kind = I64
    if attr == "step":  # the only word that is written again before another kernel
        return builder.load(builder.gep(builder.inttoptr(value, kind.as_pointer()), [number(slot)]))
    return argument(builder, value, slot, kind)


def _word_pointer(builder: Any, address: Any, index: Any = None) -> Any:
    pointer = builder.inttoptr(address, I64.as_pointer())
    return pointer if index is None else builder.gep(pointer, [index])


@intrinsic
def call_range(typingctx, kernel, args, worker, lo, hi):  # type: ignore[no-untyped-def]
    """Call the range kernel at an address: void(int64 args, int64 worker, int64 lo, int64 hi)."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(ir.VoidType(), [I64] * 4)
        builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@intrinsic
def call_word(typingctx, function, a, b, c, d, e, f, g, h):  # type: ignore[no-untyped-def]
    """Call the function at an address, int64(int64 x 8); it may take narrower integers."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(I64, [I64] * 8)
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.int64(*[types.int64] * 9), codegen


@intrinsic
def call_driver(typingctx, address, program, workers, handles, floats):  # type: ignore[no-untyped-def]
    """Call a driver at an address as native code does: 8 words of array ids, 6 of floats."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        word, real, none = I64, ir.DoubleType(), ir.IntType(8).as_pointer()
        given = [none.as_pointer(), none.as_pointer(), *[word] * 11, *[real] * 6]
        driver = builder.inttoptr(values[0], ir.FunctionType(ir.IntType(32), given).as_pointer())

        def words(start, kind, count):  # type: ignore[no-untyped-def]
            first = builder.inttoptr(start, kind.as_pointer())
            return [builder.load(builder.gep(first, [word(k)])) for k in range(count)]

        places = [cgutils.alloca_once(builder, none) for _ in range(2)]  # of what Numba's functions give and raise
        arrays, numbers = words(values[3], word, 8), words(values[4], real, 6)
        builder.call(driver, [*places, values[1], values[2], *arrays, word(0), *numbers])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@intrinsic
def block_of(typingctx, args):  # type: ignore[no-untyped-def]
    """The address of a kernel's arguments, to be passed on."""
    if not isinstance(args, ArgsType):
        return None

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return values[0]

    return types.int64(args), codegen


@intrinsic
def load_word(typingctx, address, index):  # type: ignore[no-untyped-def]
    """The int64 at address + 8 * index."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.load(_word_pointer(builder, values[0], values[1]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_word(typingctx, address, index, value):  # type: ignore[no-untyped-def]
    """Write an int64 at address + 8 * index."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        builder.store(values[2], _word_pointer(builder, values[0], values[1]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def float_bits(typingctx, x):  # type: ignore[no-untyped-def]
    """The bits of a float64 as int64."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.bitcast(values[0], I64)

    return types.int64(types.float64), codegen


@intrinsic
def atomic_add_word(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Add to the int64 at an address; gives what was there before."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", _word_pointer(builder, values[0]), values[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def stack_words(typingctx, n):  # type: ignore[no-untyped-def]
    """The address of n uninitialised int64 on the stack, 64-byte aligned."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    count = n.literal_value

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.ptrtoint(stack_block(context, builder, I64, count), I64)

    return types.int64(n), codegen
