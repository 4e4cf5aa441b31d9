"""Words that several threads share: atomic loads, stores and swaps, and the hint of a loop that waits for one."""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_WORD = ir.IntType(64)


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic
def load_acquire(typingctx, address):  # type: ignore[no-untyped-def]
    """A word; what its writer had written before it stored it with release is seen from here on."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.load_atomic(_at(builder, values[0]), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def load_relaxed(typingctx, address):  # type: ignore[no-untyped-def]
    """A word that says nothing about other memory."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.load_atomic(_at(builder, values[0]), "monotonic", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Write a word after all that this thread wrote before."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        builder.store_atomic(values[1], _at(builder, values[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def add_release(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Add to a word that has several writers, after all that this thread wrote before."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", _at(builder, values[0]), values[1], "release")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def swap_if(typingctx, address, old, new):  # type: ignore[no-untyped-def]
    """Whether the word was `old`, and is `new` now; orders nothing else."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        pair = builder.cmpxchg(_at(builder, values[0]), values[1], values[2], "monotonic", "monotonic")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def relax(typingctx):  # type: ignore[no-untyped-def]
    """Tell the core that this loop waits.  LLVM's intrinsics: Numba starts no parser of inline assembly."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        arch = builder.module.triple.partition("-")[0]
        if arch in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        elif arch in ("aarch64", "arm64"):
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.hint")
            builder.call(hint, [ir.Constant(ir.IntType(32), 1)])
        return context.get_dummy_value()

    return types.void(), codegen


#: Let another thread have this CPU.
yield_cpu = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.intc())
