"""How range kernels are compiled: Numba's compiler without the passes that find nothing in them.

A kernel is explicit vectors, words and loops over them, with its helpers inlined.  Of 23 s that a ResNet-50 compiled
(36 kernels, Zen 4) Numba's optimisation of each function before that of the module took 2.6, and passes for arrays,
closures, exceptions and ``with`` blocks 0.9; the machine code is that of the module's optimisation either way.
Where variables live was found six times a kernel and read once, SSA form went through all blocks for each variable, and
lowering resolved every operator again: 40 kernels of convolutions, products and pooling now take 4.3 s outside of LLVM
instead of 6.1, and their object code is the same, byte for byte.

LLVM may unroll loops, though kernels write out what matters: without it they compile in 0.9 of the time, but gemv takes
1.19 times as long, sums of short columns 1.3 to 1.8 times (Zen 5).
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, ir, lowering, typed_passes, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass

from numbaprims import kernel_cache
from numbaprims.kernel_passes import KernelPasses, Replaced, with_room

passes = KernelPasses("numba.core", DefaultPassBuilder)


class _KernelLibrary(JITCodeLibrary):
    """Machine code of a kernel, optimised as a module only."""

    only_read = False
    """Whether nobody runs it: LLVM changes a module as it assembles it, and would then print other code than runs."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _finalize_final_module(self) -> None:
        if self.only_read:
            return
        super()._finalize_final_module()
        # The code stays. Each compilation looks for its module among all that the engine has, twice and in Python: 4 %
        # of the time of the tests, which compile 6,600 kernels.
        self._codegen._engine._ee.remove_module(self._final_module)


class _Lower(lowering.Lower):
    """Lowers numbers, vectors and addresses: nothing counts references, and nothing raises."""

    def lower_normal_function(self, fndesc: Any) -> None:
        """With the C function that calls it in the same module.  Numba's is a module of its own, which looks for an
        exception and writes it out: 3 of the 17 ms that the least kernel takes (Zen 5)."""
        super().lower_normal_function(fndesc)
        outer = self.context.get_external_function_type(fndesc)
        outer = cgutils.get_or_insert_function(self.module, outer, fndesc.llvm_cfunc_wrapper_name)
        self.builder.position_at_end(outer.append_basic_block("entry"))
        _, found = self.context.call_conv.call_function(
            self.builder, self.function, fndesc.restype, fndesc.argtypes, outer.args, attrs=("noinline",)
        )
        self.builder.ret(found)

    def create_cfunc_wrapper(self) -> None:
        """It stands in the module already."""

    def incref(self, typ: Any, val: Any) -> None:
        pass

    def decref(self, typ: Any, val: Any) -> None:
        pass

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        # for debuggers alone Numba asks LLVM how large each variable is
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        given, context = self.fndesc.calltypes[expr], self.context
        function = context.typing_context.resolve_value_type(op)
        known = passes.signatures.get((function, *given.args))
        if known is None or expr.static_lhs is not ir.UNDEFINED or expr.static_rhs is not ir.UNDEFINED:
            return super().lower_binop(resty, expr, op)
        operands = [
            context.cast(self.builder, self.loadvar(each.name), self.typeof(each.name), to)
            for each, to in zip((expr.lhs, expr.rhs), given.args, strict=True)
        ]
        found = context.get_function(function, known)(self.builder, operands)
        return context.cast(self.builder, found, given.return_type, resty)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.BaseNativeLowering):
    """Numba's pass with another class."""

    _name: Any = "kernel_lowering"

    @property
    def lowering_class(self) -> Any:
        return _Lower


_PASSES: Replaced = {
    **passes.all, typed_passes.NativeLowering: _Lowering, typed_passes.DumpParforDiagnostics: None
}  # fmt: skip


class KernelCompiler(Compiler):
    """The pipeline of a range kernel."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = _KernelLibrary(targetctx.codegen(), "range kernel")
            library.enable_object_caching()
        super().__init__(typingctx, targetctx, library, *rest)
        self.state.typingctx = passes.typing(typingctx, types.Function)

    def compile_extra(self, func: Any) -> Any:
        with kernel_cache.collector_paused():
            return with_room(super().compile_extra, func)

    def define_pipelines(self) -> list[Any]:
        return [passes.without(DefaultPassBuilder.define_nopython_pipeline(self.state), "range kernel", _PASSES)]
