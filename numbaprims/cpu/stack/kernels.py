"""The kernels of stages."""

from __future__ import annotations

import functools
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.stack.arguments import STAGE
from numbaprims.cpu.stack.channels import Channels
from numbaprims.cpu.stack.emit import Form
from numbaprims.cpu.stack.planes import Planes

_WALKS: dict[str, Any] = {"planes": Planes, "channels": Channels}


@intrinsic(prefer_literal=True)
def _emit(typingctx, form, args, lo, hi):  # type: ignore[no-untyped-def]
    """Rows [lo, hi) of a stage's results."""
    chosen = Form.parse(form.literal_value)

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        lo, hi = (Value(builder, value) for value in values[2:])
        _WALKS[chosen.walk](builder, chosen, values[1]).run(lo, hi)
        return context.get_dummy_value()

    return types.void(form, args, types.int64, types.int64), codegen


@functools.cache
def make_stage(form: Form) -> RangeKernel:
    """The range kernel of a stage, over rows of an image."""
    text = form.text

    # a product that ends an operation is rounded before the next adds to it: the bits of the layers one by one
    @range_kernel("stack_stage", STAGE.types(), spec=(text,), contract=False)
    def stack_stage(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        _emit(text, args, lo, hi)

    return stack_stage
