"""How range kernels are compiled: Numba's compiler without the passes that find nothing in them.

A kernel is explicit vectors, words and loops over them, with its helpers inlined.  Of 23 s that a ResNet-50 compiled
(36 kernels, Zen 4) Numba's optimisation of each function before that of the module took 2.6, and passes for arrays,
closures, exceptions and ``with`` blocks 0.9; the machine code is that of the module's optimisation either way.
"""

from __future__ import annotations

from typing import Any

from numba.core import typed_passes, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, DefaultPassBuilder

from numbaprims import kernel_cache
from numbaprims.cpu import inline

_UNUSED = (
    *inline.UNUSED,
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
    typed_passes.NoPythonSupportedFeatureValidation,
    typed_passes.DumpParforDiagnostics,
)


class _KernelLibrary(JITCodeLibrary):
    """Machine code of a kernel, optimised as a module only."""

    only_read = False
    """Whether nobody runs it: LLVM changes a module as it assembles it, and would then print other code than runs."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _finalize_final_module(self) -> None:
        if not self.only_read:
            super()._finalize_final_module()


#: What is asked for again in every kernel, most of it integer arithmetic.
_signatures: dict[tuple[Any, ...], Any] = {}


class _Typing:
    """Numba's typing context, which remembers the signatures of functions of numbers: it tries every rule for arrays,
    dates and strings before that of ``int64 + int64``, each time, which took 1.3 s of the 23."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        numbers = not kws and isinstance(func, types.Function) and all(isinstance(arg, _NUMBERS) for arg in args)
        if not numbers:
            return self._context.resolve_function_type(func, args, kws)
        key = (func, *args)
        if key not in _signatures:
            _signatures[key] = self._context.resolve_function_type(func, args, kws)
        return _signatures[key]


_NUMBERS = (types.Integer, types.Float, types.Boolean)


class KernelCompiler(Compiler):
    """The pipeline of a range kernel."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = _KernelLibrary(targetctx.codegen(), "range kernel")
            library.enable_object_caching()
        super().__init__(typingctx, targetctx, library, *rest)
        self.state.typingctx = _Typing(typingctx)

    def compile_extra(self, func: Any) -> Any:
        with kernel_cache.collector_paused():
            return super().compile_extra(func)

    def define_pipelines(self) -> list[Any]:
        return [inline.passes_of(DefaultPassBuilder.define_nopython_pipeline(self.state), "range kernel", _UNUSED)]
