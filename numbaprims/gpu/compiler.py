"""How kernels for GPUs become LLVM code: the pipeline of numba-cuda with the passes of kernel_passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.cuda import compiler as _compiler, types as _types

from numbaprims.kernel_passes import KernelPasses

__all__ = ["kernel_pipeline"]

compiler: Any = _compiler  # its names, and those of types, are filled in where mypy cannot see
types: Any = _types
passes = KernelPasses("numba.cuda.core", compiler.DefaultPassBuilder)
# What Numba does itself: kernels take parts of tuples, whose constant indices a rewrite finds; where a variable ends
# it is set to zero, without which NVVM unrolls and orders loops in another way than what was measured.
_OWN = (passes.untyped_passes.GenericRewrites, passes.typed_passes.IRLegalization)
_REPLACED = {each: chosen for each, chosen in passes.all.items() if each not in _OWN}
_Compiler: Any = compiler.CUDACompiler


class _KernelCompiler(_Compiler):
    def __init__(self, typingctx: Any, *rest: Any) -> None:
        compiler.CUDACompiler = _Compiler  # of what the kernel calls and is not inlined
        super().__init__(typingctx, *rest)
        self.state.typingctx = passes.typing(typingctx, types.Function)

    def define_pipelines(self) -> list[Any]:
        (whole,) = super().define_pipelines()
        return [passes.without(whole, "gpu kernel", _REPLACED)]


@contextlib.contextmanager
def kernel_pipeline() -> Iterator[None]:
    """Let numba-cuda compile what it is given now as a kernel of ours; under its compiler's lock.

    The entry that makes kernels takes no pipeline: it looks the class up by its name.
    """
    compiler.CUDACompiler = _KernelCompiler
    try:
        yield
    finally:
        compiler.CUDACompiler = _Compiler
