"""The argument block of range kernels: 8-byte slots, read as `args.name`; and the words of drivers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin, lower_getattr_generic
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import intrinsic, models, register_model

from numbaprims.cpu.simd.emit import I64, argument, number
from numbaprims.cpu.simd.records import Record, RecordType
from numbaprims.cpu.simd.types import Pointer, llvm_element, stack_block

ARRAY_SLOTS = 8
FLOAT_SLOT = 8
FLOAT_SLOTS = 6
INT_SLOT = 16
INT_SLOTS = 48
STEP_SLOT = 64


class Arguments(Record):
    """The names of a kernel's arguments: arrays in the slots from 0, floats (f64) from 8, ints from 16.

    Arrays after the eighth and ints after the 48th have slots behind the step's.  *Regions* of the scratch memory are
    `shared` ones, which kernels read as arrays, and a worker's `own`, `args.name[worker]`; their program says where
    they are (cpu/regions.py).  The eighth slot is then that of the scratch memory, and arrays have those before it.
    """

    def __init__(
        self,
        arrays: tuple[str, ...],
        floats: tuple[str, ...] = (),
        ints: tuple[str, ...] = (),
        shared: tuple[str, ...] = (),
        own: tuple[str, ...] = (),
    ) -> None:
        if len(floats) > FLOAT_SLOTS:
            raise ValueError(f"{len(floats)} floats; a kernel takes at most {FLOAT_SLOTS}")
        self.arrays, self.floats, self.ints, self.shared, self.own = arrays, floats, ints, shared, own
        slots = _slots(arrays, floats, ints, shared, own)
        self._place(slots, floats)
        #: Words up to the last of them but the step.
        self.used = max((slot + 1 for name, slot in slots.items() if name not in (*floats, "step")), default=0)
        names = (*arrays, *floats, *ints, *shared, *own)
        if len(slots) != len(names) + 1 + (2 if shared or own else 0):
            raise ValueError(f"argument names must differ from one another and from 'step', {SCRATCH!r} and {EACH!r}")

    def with_regions(self, shared: tuple[str, ...] = (), own: tuple[str, ...] = ()) -> Arguments:
        """The same arguments, and regions."""
        return Arguments(self.arrays, self.floats, self.ints, shared, own)

    def of(self, values: Mapping[str, int]) -> dict[str, int]:
        """Their integers among the values of several kinds of arguments."""
        return {name: values[name] for name in self.ints if name in values}

    def types(self, **elements: str) -> ArgsType:
        """The Numba type of a block whose arrays and regions have these element types; others are bytes ("u8")."""
        known = (*self.arrays, *self.shared, *self.own)
        unknown = set(elements) - set(known)
        if unknown:
            raise ValueError(f"{sorted(unknown)} are not arrays; those are {known}")
        arrays, shared, own = (
            tuple((name, elements.get(name, "u8")) for name in names) for names in (self.arrays, self.shared, self.own)
        )
        return ArgsType(arrays, self.floats, self.ints, shared, own)


class ArgsType(types.Type):
    """The address of an argument block, with its names and element types."""

    def __init__(
        self,
        arrays: tuple[tuple[str, str], ...],
        floats: tuple[str, ...],
        ints: tuple[str, ...],
        shared: tuple[tuple[str, str], ...] = (),
        own: tuple[tuple[str, str], ...] = (),
    ) -> None:
        names = (tuple(name for name, _ in each) for each in (shared, own))
        self.slots = _slots(tuple(name for name, _ in arrays), floats, ints, *names)
        self.arrays, self.floats, self.shared, self.own = dict(arrays), floats, dict(shared), dict(own)
        regions = f",{shared},{own}" if shared or own else ""
        super().__init__(name=f"Args({arrays},{floats},{ints}{regions})")

    def type_of(self, name: str) -> Any:
        """The Numba type that reading an argument gives, or None."""
        if name in self.own:
            return Own(self.own[name], self.slots[name], self.slots[EACH])
        elem = self.arrays.get(name) or self.shared.get(name)
        if elem:
            return Pointer(elem)
        if name not in self.slots or name == SCRATCH:
            return None
        return types.float64 if name in self.floats else types.int64


class Own(types.Type):
    """A region that each worker has for itself, as `args.name`; `args.name[worker]` is the address of one."""

    def __init__(self, elem: str, slot: int, each: int) -> None:
        self.elem, self.slot, self.each = elem, slot, each
        super().__init__(name=f"Own({elem},{slot},{each})")


#: The argument that is the address of the scratch memory, and that of the bytes from one worker's part to the next's.
SCRATCH, EACH = "workspace", "worker_bytes"


@functools.cache
def _slots(
    arrays: tuple[str, ...],
    floats: tuple[str, ...],
    ints: tuple[str, ...],
    shared: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> dict[str, int]:
    near = ARRAY_SLOTS
    if shared or own:
        near, ints = ARRAY_SLOTS - 1, (*ints, *shared, *own, EACH)
    behind = iter(range(STEP_SLOT + 1, STEP_SLOT + 1 + len(arrays) + len(ints)))
    slots = {name: i if i < near else next(behind) for i, name in enumerate(arrays)}
    slots |= {SCRATCH: near} if near < ARRAY_SLOTS else {}
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
        return typ.type_of(attr)


@lower_getattr_generic(ArgsType)
def _lower_argument(context: Any, builder: Any, typ: ArgsType, value: Any, attr: str) -> Any:
    result, slot = typ.type_of(attr), typ.slots[attr]
    if isinstance(result, Own):
        return value
    if attr in typ.shared:
        place = builder.add(argument(builder, value, ARRAY_SLOTS - 1), argument(builder, value, slot))
        return builder.inttoptr(place, llvm_element(result.elem).as_pointer())
    if isinstance(result, Pointer):
        kind = llvm_element(result.elem).as_pointer()
    elif result is types.float64:
        kind = ir.DoubleType()
    else:
        kind = I64
    if attr == "step":  # the only word that is written again before another kernel
        return builder.load(builder.gep(builder.inttoptr(value, kind.as_pointer()), [number(slot)]))
    return argument(builder, value, slot, kind)


@register_model(Own)
class _OwnModel(models.PrimitiveModel):
    """The address of the arguments."""

    def __init__(self, dmm: Any, fe_type: Own) -> None:
        super().__init__(dmm, fe_type, I64)


@infer_global(operator.getitem)
class _OwnOfWorker(AbstractTemplate):
    def generic(self, args, kws):  # type: ignore[no-untyped-def]
        region, worker = args
        if isinstance(region, Own) and isinstance(worker, types.Integer):
            return signature(Pointer(region.elem), region, types.int64)
        return None


@lower_builtin(operator.getitem, Own, types.Integer)
def _lower_own(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    region, (args, worker) = signature.args[0], values
    own = builder.mul(worker, argument(builder, args, region.each))
    mine = builder.add(argument(builder, args, ARRAY_SLOTS - 1), own)
    place = builder.add(mine, argument(builder, args, region.slot))
    return builder.inttoptr(place, llvm_element(region.elem).as_pointer())


def _word_pointer(builder: Any, address: Any, index: Any = None) -> Any:
    pointer = builder.inttoptr(address, I64.as_pointer())
    return pointer if index is None else builder.gep(pointer, [index])


@intrinsic
def call_range(typingctx, kernel, args, worker, lo, hi):  # type: ignore[no-untyped-def]
    """Call the range kernel at an address: void(int64 args, int64 worker, int64 lo, int64 hi); `args` is an address, a
    record or a kernel's own arguments."""
    block = args if isinstance(args, (ArgsType, RecordType)) else types.int64

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(ir.VoidType(), [I64] * 4)
        builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(types.int64, block, *[types.int64] * 3), codegen


@intrinsic
def call_word(typingctx, function, a, b, c, d, e, f, g, h):  # type: ignore[no-untyped-def]
    """Call the function at an address, int64(int64 x 8); it may take narrower integers."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(I64, [I64] * 8)
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.int64(*[types.int64] * 9), codegen


@intrinsic
def call_launch(typingctx, address, function, blocks, shared, stream, parameters):  # type: ignore[no-untyped-def]
    """Call cuLaunchKernel at an address, with six words of blocks and threads; cuLaunchCooperativeKernel, too, which
    does not look at its last argument."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        short = ir.IntType(32)
        kind = ir.FunctionType(short, [I64, *[short] * 7, *[I64] * 3])
        sizes = [builder.trunc(builder.load(_word_pointer(builder, values[2], number(at))), short) for at in range(6)]
        given = [values[1], *sizes, builder.trunc(values[3], short), values[4], values[5], number(0)]
        status = builder.call(builder.inttoptr(values[0], kind.as_pointer()), given)
        return builder.zext(status, I64)

    return types.int64(*[types.int64] * 6), codegen


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
    """The address of a record or of a kernel's arguments, to be passed on."""
    if not isinstance(args, (ArgsType, RecordType)):
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
def single_bits(typingctx, bits):  # type: ignore[no-untyped-def]
    """The bits of the float32 next to the float64 of some bits, in the lower half."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        single = builder.fptrunc(builder.bitcast(values[0], ir.DoubleType()), ir.FloatType())
        return builder.zext(builder.bitcast(single, ir.IntType(32)), I64)

    return types.int64(types.int64), codegen


@intrinsic
def float_of(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float64 of some bits."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.bitcast(values[0], ir.DoubleType())

    return types.float64(types.int64), codegen


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
