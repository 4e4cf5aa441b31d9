"""Helpers inlined into kernels: each is analysed once, and copied to where it is called.

Numba's own pass analyses a helper anew for every call, with all that it calls, and copies it twice, block by block,
with the whole scope each time: 1.6 s of the 9.5 that 25 kernels took alone (Zen 4), now 1.0, and nearly nothing where
later kernels call the same helpers.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from numba.core import ir, ir_utils, untyped_passes
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler import DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.inline_closurecall import (
    InlineWorker,
    _add_definitions,
    _get_callee_args,
    _replace_args_with,
    _replace_returns,
)
from numba.core.transforms import canonicalize_cfg


class _Analysed:
    """A helper's blocks, and what of them every copy shares or renames."""

    def __init__(self, found: Any) -> None:
        self.blocks = ir_utils.simplify_CFG(found.blocks)
        self.order = ir_utils.find_topo_order(self.blocks)
        (self.scope,) = {id(block.scope): block.scope for block in self.blocks.values()}.values()
        memo: dict[int, Any] = {}
        copy.deepcopy(self.blocks, memo)
        met = memo[id(memo)]  # what deepcopy keeps alive: all that it copied
        self.places = {id(each): each for each in met if isinstance(each, ir.Loc)}
        self.variables = [each for each in met if isinstance(each, ir.Var)]

    def copied(self, scope: Any, prefix: str) -> dict[int, Any]:
        """The blocks in another scope, under names of their own."""
        names = {}
        for variable in self.variables:
            if variable.name not in names:
                name = prefix + variable.name.replace(".", "_").replace("$", "_v")
                names[variable.name] = scope.redefine(name, loc=variable.loc)
        memo = {id(each): names[each.name] for each in self.variables}
        memo |= self.places
        memo[id(self.scope)] = scope
        return copy.deepcopy(self.blocks, memo)


_analysed: dict[Callable[..., Any], _Analysed] = {}
_calls = itertools.count()


class _Inliner(InlineWorker):
    """Puts a copy in the place of a call."""

    def inline_function(self, caller_ir: Any, block: Any, i: int, function: Any, arg_typs: Any = None) -> Any:
        self.flags.enable_ssa = False  # the caller is in SSA form later
        helper = _analysed.get(function)
        if helper is None:
            self._compiler_pipeline = _untyped  # type: ignore[assignment]
            helper = _analysed[function] = _Analysed(self.run_untyped_passes(function))
        scope, instr = block.scope, block.body[i]
        blocks = helper.copied(scope, f"{function.__name__}_{next(_calls)}_")
        start = max(ir_utils.next_label(), max(caller_ir.blocks)) + 1
        blocks = ir_utils.add_offset_to_labels(blocks, start)
        ir_utils._the_max_label.update(max(blocks))
        _replace_args_with(blocks, _get_callee_args(instr.value, function, instr.loc, caller_ir))
        behind, after = ir.Block(scope, block.loc), ir_utils.next_label()
        behind.body, block.body = block.body[i + 1 :], block.body[:i]
        block.body.append(ir.Jump(start + helper.order[0], instr.loc))
        _replace_returns(blocks, instr.target, after)
        definitions = caller_ir._definitions.get(instr.target.name, [])
        if instr.value in definitions:
            definitions.remove(instr.value)
        caller_ir.blocks[after] = behind
        for label in helper.order:
            _add_definitions(caller_ir, blocks[start + label])
            caller_ir.blocks[start + label] = blocks[start + label]
        # of a helper all calls are inlined already
        return None, None, None, [(after, behind)]


@register_pass(mutates_CFG=True, analysis_only=False)
class InlineHelpers(untyped_passes.InlineInlinables):
    """Numba's pass with another worker, and without its post-processor."""

    _name = "inline_helpers"

    def run_pass(self, state: Any) -> bool:
        worker = _Inliner(state.typingctx, state.targetctx, state.locals, state.pipeline, state.flags)
        blocks, changed = state.func_ir.blocks, False
        work = list(blocks.items())
        while work:
            _, block = work.pop()
            for i, instr in enumerate(block.body):
                call = instr.value if isinstance(instr, ir.Assign) else None
                if isinstance(call, ir.Expr) and call.op == "call":
                    if ir_utils.guard(self._do_work, state, work, block, i, call, worker):
                        changed = True
                        break  # what is behind the call is a block of its own now
        if changed:
            for dead in compute_cfg_from_blocks(blocks).dead_nodes():
                del blocks[dead]
            state.func_ir.blocks = ir_utils.simplify_CFG(canonicalize_cfg(blocks))
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Canonicalize(untyped_passes.IRProcessing):
    """What counts of Numba's pass, which also finds out where every variable lives, for generators and ``del``."""

    _name = "canonicalize"

    def run_pass(self, state: Any) -> bool:
        state.func_ir.blocks = canonicalize_cfg(state.func_ir.blocks)
        return True


Replaced = Mapping[type, type | None]
"""What stands in the place of a pass of Numba; None: nothing."""


def passes_of(pipeline: Any, name: str, replaced: Replaced) -> PassManager:
    """A pipeline of Numba without the passes that find nothing, with helpers inlined in our way."""
    made = PassManager(name)
    for each, description in pipeline.passes:
        chosen = replaced.get(each, each)
        if chosen is not None:
            made.add_pass(chosen, description)
    made.finalize()
    return made


UNTYPED: Replaced = {
    untyped_passes.InlineInlinables: InlineHelpers,
    untyped_passes.IRProcessing: _Canonicalize,
    untyped_passes.WithLifting: None,
    untyped_passes.InlineClosureLikes: None,
    untyped_passes.GenericRewrites: None,
    untyped_passes.RewriteDynamicRaises: None,
    untyped_passes.MakeFunctionToJitFunction: None,
}


def _untyped(state: Any) -> PassManager:
    return passes_of(DefaultPassBuilder.define_untyped_pipeline(state), "helper", UNTYPED)
