"""The addresses of Python objects, for entries that Python calls.

An argument of this type reaches native code as the object's own address: no `id()`, no integer made of it and
read again, 0.02 us less for each argument.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

_WORD = ir.IntType(64)


class ObjectType(types.Type):
    """Any Python object, by its address; the caller holds the reference."""

    def __init__(self) -> None:
        super().__init__(name="ObjectAddress")


OBJECT = ObjectType()


@register_model(ObjectType)
class _ObjectModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: ObjectType) -> None:
        super().__init__(dmm, fe_type, _WORD)


@unbox(ObjectType)
def _unbox(typ: Any, obj: Any, c: Any) -> NativeValue:
    return NativeValue(c.builder.ptrtoint(obj, _WORD))


@intrinsic
def _address(typingctx, obj):  # type: ignore[no-untyped-def]
    """The address of the object as int64."""
    if not isinstance(obj, ObjectType):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return args[0]

    return types.int64(obj), codegen


object_address: Any = _address
