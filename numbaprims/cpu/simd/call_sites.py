"""Calls of primitives inside a user's own `@njit` function: what the compiled call site holds.

A call site writes what it knows of its arguments into a block of words on the stack and calls the entry of
`cpu/call_sites.py` by an address that it reads at run time.  Nothing of this process is baked into the machine code,
so that Numba may keep the user's function in its own cache: the first call of a process asks
`numbaprims.jitted.site` for the words of its site, by a description that is part of the code.
"""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.callconv import RETCODE_USEREXC
from numba.extending import intrinsic

from numbaprims.cpu.simd.emit import number

_WORD = ir.IntType(64)

# Words of a block.  Status: 0 where the entry has done the call.  Publish: what the entry stores, and where, for the
# threads that come later.  Then six floats, the addresses of the arrays, and the key: 0 where all addresses are aligned
# (Numba takes any array for aligned), lengths and strides in bytes of each array, the integers of the call.
STATUS, KEYS, HASH, PUBLISH_AT, PUBLISH_VALUE, FLOATS_AT, ARRAYS_AT = 0, 1, 2, 3, 4, 6, 12
MOST_FLOATS, MOST_ARRAYS = 6, 100
KEY_AT = ARRAYS_AT + MOST_ARRAYS

# Words of a site: its table of records, and the address of the entry.
SITE_TABLE, SITE_ENTRY, SITE_WORDS = 0, 1, 8

_MODULE = "numbaprims.jitted"


def _ask_python(context: Any, builder: Any, method: str, arguments: list[Any]) -> Any:
    """The int that a function of `numbaprims.jitted` gives for words, or a text; what it raises leaves the user's code.

    The asking is a function of its own, so that LLVM does not copy it to every call.
    """
    name = f".numbaprims.ask.{method}"
    asker = builder.module.globals.get(name)
    if asker is None:
        asker = _make_asker(context, builder.module, name, method, [argument.type for argument in arguments])
    value = builder.call(asker, arguments)
    with builder.if_then(builder.icmp_signed("==", value, number(-1)), likely=False):
        _raise_kept(context, builder)
    return value


class _Kept:
    """Unpickled it is the exception that `numbaprims.jitted` keeps for the thread."""

    def __reduce__(self) -> Any:
        return importlib.import_module(_MODULE).kept, ()


def _raise_kept(context: Any, builder: Any) -> None:
    """Leave the function as by a `raise` of its own, which a `try` in the user's code catches.

    A Python error that is set would not do: of that Numba's `try` knows nothing, and goes on with an undefined result.
    """
    convention, api = context.call_conv, context.get_python_api(builder)
    pickled = builder.load(api.serialize_object((_Kept(), (), None)))
    bytes_of, bytes_many = (builder.extract_value(pickled, i) for i in (0, 1))
    # Numba's record of a raise with arguments at run time, which it unpickles at each: one without would be kept
    size = number(context.get_abi_sizeof(pickled.type))
    record = builder.bitcast(context.nrt.allocate(builder, size), pickled.type.as_pointer())
    none = ir.Constant(bytes_of.type, None)
    arguments = builder.bitcast(_no_arguments(context, builder.module), bytes_of.type)
    for i, value in enumerate((bytes_of, bytes_many, none, arguments, ir.Constant(bytes_many.type, 1))):
        builder.store(value, cgutils.gep_inbounds(builder, record, 0, i))
    builder.store(record, convention._get_excinfo_argument(builder.function))
    convention._return_errcode_raw(builder, RETCODE_USEREXC)


def _no_arguments(context: Any, module: Any) -> Any:
    """A function that gives an empty tuple, for Numba to call where the exception is raised."""
    name = ".numbaprims.no_arguments"
    found = module.globals.get(name)
    if found is None:
        pointer = ir.IntType(8).as_pointer()
        found = ir.Function(module, ir.FunctionType(pointer, [pointer]), name)
        found.linkage = "internal"
        builder = ir.IRBuilder(found.append_basic_block())
        builder.ret(context.get_python_api(builder).tuple_pack([]))
    return found


def _make_asker(context: Any, module: Any, name: str, method: str, kinds: list[Any]) -> Any:
    """A function that calls Python: -1 where that has raised, which it keeps."""
    asker = ir.Function(module, ir.FunctionType(_WORD, kinds), name)
    asker.linkage = "internal"
    asker.attributes.add("noinline")
    builder = ir.IRBuilder(asker.append_basic_block())
    api = context.get_python_api(builder)
    answer = cgutils.alloca_once_value(builder, number(-1))
    gil = api.gil_ensure()
    ours = api.import_module(context.insert_const_string(module, _MODULE))
    with builder.if_then(cgutils.is_not_null(builder, ours), likely=True):
        make_text = cgutils.get_or_insert_function(
            module, ir.FunctionType(api.pyobj, [api.cstring]), "PyUnicode_FromString"
        )
        arguments = [
            api.long_from_longlong(word) if word.type == _WORD else builder.call(make_text, [word])
            for word in asker.args
        ]
        result = api.call_method(ours, method, arguments)
        for argument in (*arguments, ours):
            api.decref(argument)
        with builder.if_then(cgutils.is_not_null(builder, result), likely=True):
            builder.store(api.long_as_longlong(result), answer)
            api.decref(result)
    with builder.if_then(builder.icmp_signed("==", builder.load(answer), number(-1)), likely=False):
        api.err_clear()  # where the package cannot be imported, to unpickle what it keeps says so once more
    api.gil_release(gil)
    builder.ret(builder.load(answer))
    return asker


def _site_of(context: Any, builder: Any, description: str) -> Any:
    """The address of the site's words, from a word of the module that the first call fills."""
    name = f".numbaprims.site.{hashlib.sha256(description.encode()).hexdigest()[:24]}"
    holder = builder.module.globals.get(name)
    if holder is None:
        holder = ir.GlobalVariable(builder.module, _WORD, name)
        holder.linkage = "internal"
        holder.initializer = number(0)
        holder.align = 8
    site = cgutils.alloca_once_value(builder, builder.load_atomic(holder, "acquire", 8))
    with builder.if_then(builder.icmp_signed("==", builder.load(site), number(0)), likely=False):
        text = context.insert_const_string(builder.module, description)
        found = _ask_python(context, builder, "site", [text])
        builder.store(found, site)
        builder.store_atomic(found, holder, "release", 8)
    return builder.load(site)


def _block(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The block of this call, filled; gives its address."""
    _, arrays, floats, ints = signature.args
    pointers: list[Any] = []
    keys = [number(0)]
    for typ, value in zip(arrays.types, cgutils.unpack_tuple(builder, args[1]), strict=True):
        array = context.make_array(typ)(context, builder, value)
        pointers.append(builder.ptrtoint(array.data, _WORD))
        beside = builder.and_(pointers[-1], builder.sub(array.itemsize, number(1)))
        keys[0] = builder.or_(keys[0], beside)
        keys += cgutils.unpack_tuple(builder, array.shape, typ.ndim)
        keys += cgutils.unpack_tuple(builder, array.strides, typ.ndim)
    keys += cgutils.unpack_tuple(builder, args[3]) if len(ints) else []
    numbers = cgutils.unpack_tuple(builder, args[2]) if len(floats) else []
    with builder.goto_entry_block():
        block = builder.alloca(_WORD, number(KEY_AT + len(keys)))
        block.align = 64
    for at, word in (
        (KEYS, number(len(keys))),
        *((ARRAYS_AT + i, pointer) for i, pointer in enumerate(pointers)),
        *((FLOATS_AT + i, builder.bitcast(value, _WORD)) for i, value in enumerate(numbers)),
        *((KEY_AT + i, key) for i, key in enumerate(keys)),
    ):
        builder.store(word, builder.gep(block, [number(at)]))
    return builder.ptrtoint(block, _WORD)


@intrinsic(prefer_literal=True)
def call_site(typingctx, description, arrays, floats, ints):  # type: ignore[no-untyped-def]
    """Do the call that a literal describes with a tuple of arrays, the result first, one of float64 and one of int64.

    The entry is tried first; where it knows no record for such arrays, Python makes one or does the call itself.
    """
    if not isinstance(description, types.StringLiteral):
        return None
    text = description.literal_value
    if len(arrays) > MOST_ARRAYS or len(floats) > MOST_FLOATS:
        raise ValueError(f"{len(arrays)} arrays and {len(floats)} floats; at most {MOST_ARRAYS} and {MOST_FLOATS}")

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        block = _block(context, builder, signature, args)
        site = _site_of(context, builder, text)
        address = builder.load(builder.gep(builder.inttoptr(site, _WORD.as_pointer()), [number(SITE_ENTRY)]))
        entry = builder.inttoptr(address, ir.FunctionType(ir.VoidType(), [_WORD] * 4).as_pointer())
        builder.call(entry, [number(0), site, block, number(0)])
        status = builder.load(builder.gep(builder.inttoptr(block, _WORD.as_pointer()), [number(STATUS)]))
        with builder.if_then(builder.icmp_signed("!=", status, number(0)), likely=False):
            record = _ask_python(context, builder, "miss", [site, block])
            with builder.if_then(builder.icmp_signed("!=", record, number(0))):
                builder.call(entry, [number(0), site, block, record])
        return context.get_dummy_value()

    return types.void(description, arrays, floats, ints), codegen


@intrinsic
def publish_word(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Write an int64 at an address, after all that was written before: other threads then see that too."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        builder.store_atomic(values[1], builder.inttoptr(values[0], _WORD.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def published_word(typingctx, address):  # type: ignore[no-untyped-def]
    """The int64 at an address that `publish_word` may be writing."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.load_atomic(builder.inttoptr(values[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen
