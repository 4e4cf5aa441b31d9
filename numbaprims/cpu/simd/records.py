"""Words by name: the blocks that a driver fills for the kernels that it calls, and tables of integers.

    block = stack_record(PACK)      # on the stack, not set
    block.panels = panels
    copy_fields(block, args, "k")   # block.k = args.k
    call_range(kernel, block, 0, lo, hi)

Names are resolved as a kernel is compiled: what is left is a load or a store at a constant offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.imputils import lower_constant, lower_getattr_generic, lower_setattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model, typeof_impl

from numbaprims.cpu.simd.emit import I64, number
from numbaprims.cpu.simd.types import stack_block


class Record:
    """Words of 8 bytes by name: integers and addresses, and `floats` as float64."""

    def __init__(self, *names: str) -> None:
        self._place({name: slot for slot, name in enumerate(names)})
        if len(self.slots) != len(names):
            raise ValueError("the names of a record must differ from one another")

    def _place(self, slots: Mapping[str, int], floats: tuple[str, ...] = ()) -> None:
        self.slots, self.words = dict(slots), max(slots.values(), default=0) + 1
        self.record = RecordType(tuple(self.slots.items()), floats)

    def slot(self, name: str) -> int:
        """Which word it is."""
        return self.slots[name]

    def table(self, *rows: Mapping[str, int]) -> np.ndarray:
        """Such records one after another, int64[rows][words]; each gives every word."""
        for row in rows:
            if row.keys() != self.slots.keys():
                raise ValueError(f"{sorted(row.keys() ^ self.slots.keys())} are not in both the row and the record")
        return np.array([[int(row[name]) for name in self.slots] for row in rows], np.int64)


class RecordType(types.Type):
    """The address of a record."""

    def __init__(self, slots: tuple[tuple[str, int], ...], floats: tuple[str, ...]) -> None:
        self.slots, self.floats = dict(slots), floats
        self.words = max(self.slots.values(), default=0) + 1
        super().__init__(name=f"Record({slots},{floats})")

    def field(self, name: str) -> Any:
        """The Numba type of a word, or None."""
        if name not in self.slots:
            return None
        return types.float64 if name in self.floats else types.int64


class _Layout(types.Opaque):
    """A `Record` itself, as kernels find it among the names of their module."""

    def __init__(self, record: RecordType) -> None:
        self.record = record
        super().__init__(name=f"Layout({record.name})")


register_model(_Layout)(models.OpaqueModel)


@typeof_impl.register(Record)
def _type_of(value: Record, context: Any) -> _Layout:
    return _Layout(value.record)


@lower_constant(_Layout)
def _lower_layout(context: Any, builder: Any, typ: Any, value: Any) -> Any:
    return context.get_dummy_value()


@register_model(RecordType)
class _RecordModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: RecordType) -> None:
        super().__init__(dmm, fe_type, I64)


@infer_getattr
class _RecordAttribute(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, typ, attr):  # type: ignore[no-untyped-def]
        return typ.field(attr)


def _place_of(builder: Any, typ: RecordType, address: Any, name: str) -> Any:
    kind = ir.DoubleType() if name in typ.floats else I64
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [number(typ.slots[name])])


@lower_getattr_generic(RecordType)
def _load_field(context: Any, builder: Any, typ: RecordType, value: Any, attr: str) -> Any:
    return builder.load(_place_of(builder, typ, value, attr))


@lower_setattr_generic(RecordType)
def _store_field(context: Any, builder: Any, signature: Any, values: Any, attr: str) -> None:
    builder.store(values[1], _place_of(builder, signature.args[0], values[0], attr))


@intrinsic
def record(typingctx, layout, address):  # type: ignore[no-untyped-def]
    """The record that lies at an address."""
    if not isinstance(layout, _Layout):
        return None

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return values[1]

    return layout.record(layout, types.int64), codegen


@intrinsic
def record_at(typingctx, layout, address, index):  # type: ignore[no-untyped-def]
    """The record of number `index` behind an address."""
    if not isinstance(layout, _Layout):
        return None
    nbytes = 8 * layout.record.words

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.add(values[1], builder.mul(values[2], number(nbytes)))

    return layout.record(layout, types.int64, types.int64), codegen


@intrinsic
def stack_record(typingctx, layout):  # type: ignore[no-untyped-def]
    """A record on the stack, 64-byte aligned, whose words are not set."""
    if not isinstance(layout, _Layout):
        return None
    count = layout.record.words

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.ptrtoint(stack_block(context, builder, I64, count), I64)

    return layout.record(layout), codegen


@intrinsic
def copy_record(typingctx, target, source):  # type: ignore[no-untyped-def]
    """All words of a record into another of its kind."""
    if not isinstance(target, RecordType) or source != target:
        return None

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        eight = ir.VectorType(I64, 8).as_pointer()
        for at in range(0, target.words, 8):  # memcpy would go word by word
            kind = eight if at + 8 <= target.words else I64.as_pointer()
            for word in range(at, min(at + 8, target.words), 8 if kind is eight else 1):
                to, of = (builder.inttoptr(builder.add(value, number(8 * word)), kind) for value in values)
                builder.store(builder.load(of, align=8), to, align=8)
        return context.get_dummy_value()

    return types.void(target, source), codegen


@intrinsic(prefer_literal=True)
def copy_fields(typingctx, target, source, names):  # type: ignore[no-untyped-def]
    """target.name = source.name for each of the names, a literal string; arrays as their addresses."""
    if not isinstance(target, RecordType) or not isinstance(names, types.StringLiteral):
        return None
    fields = names.literal_value.split()
    for name in fields:
        if target.field(name) is None or typingctx.resolve_getattr(source, name) is None:
            raise ValueError(f"{name} is not in both {target} and {source}")

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        for name in fields:
            kind = context.typing_context.resolve_getattr(source, name)
            value = context.get_getattr(source, name)(context, builder, source, values[1], name)
            if isinstance(value.type, ir.PointerType):
                value = builder.ptrtoint(value, I64)
            elif kind != target.field(name):
                value = context.cast(builder, value, kind, target.field(name))
            builder.store(value, _place_of(builder, target, values[0], name))
        return context.get_dummy_value()

    return types.void(target, source, names), codegen
