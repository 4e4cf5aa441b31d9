"""Numba's passes as kernels of both devices want them: helpers analysed once, and nothing that finds nothing in them.

Numba's own pass analyses a helper anew for every call, with all that it calls, and copies it twice, block by block,
with the whole scope each time: 36 of the 62 s that 44 convolutions for GPUs took outside of NVVM and ptxas (Zen 4).
SSA form went through all blocks for each variable.  numba-cuda brings a copy of Numba's compiler with classes of its
own, so all of this is made from the copy that a device compiles with.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

Replaced = Mapping[type, type | None]
"""What stands in the place of a pass of Numba; None: nothing."""


def with_room(call: Callable[..., Any], /, *args: Any, **words: Any) -> Any:
    """``call(*args, **words)``, with room for the frames of all that it calls.

    CPython keeps frames in chunks of 16 KB.  A call that begins a chunk maps it, and unmaps it as it returns: where a
    loop of the compiler stands at the end of one, every time around, 840 times a kernel, 7 to 14 % of what compiling
    took.  This function's own frame is taken to be so large that its chunk holds all others.
    """
    return call(*args, **words)


with_room.__code__ = with_room.__code__.replace(co_stacksize=1 << 15)  # 256 KB, of a chunk of 512


class KernelPasses:
    """Of one copy of Numba's compiler: the name of its package (`numba.core`, `numba.cuda.core`), what builds its
    pipelines."""

    def __init__(self, core: str, builder: Any) -> None:
        self.builder = builder
        names = (
            "analysis", "compiler_machinery", "inline_closurecall", "ir", "ir_utils", "ssa", "transforms",
            "typed_passes", "untyped_passes",
        )  # fmt: skip
        for name in names:
            setattr(self, name, import_module(f"{core}.{name}"))
        self.analysed: dict[Callable[..., Any], _Analysed] = {}
        self.signatures: dict[tuple[Any, ...], Any] = {}
        """What is asked for again in every kernel, most of it integer arithmetic."""
        untyped, typed = self.untyped_passes, self.typed_passes
        self.untyped: Replaced = {
            untyped.InlineInlinables: self._made(untyped.InlineInlinables, _inline_helpers(self), True),
            untyped.IRProcessing: self._made(untyped.IRProcessing, _canonicalize(self), True),
            untyped.WithLifting: None,
            untyped.InlineClosureLikes: None,
            untyped.GenericRewrites: None,
            untyped.RewriteDynamicRaises: None,
            untyped.MakeFunctionToJitFunction: None,
        }
        self.all: Replaced = {
            **self.untyped,
            untyped.ReconstructSSA: self._made(untyped.ReconstructSSA, _reconstruct_ssa(self), False),
            typed.PreLowerStripPhis: self._made(typed.PreLowerStripPhis, _strip_phis, False),
            typed.InlineOverloads: None,
            typed.NopythonRewrites: None,
            typed.NoPythonSupportedFeatureValidation: None,
            typed.IRLegalization: None,  # where variables end, for counts of references: 3 % of 152 kernels' time
        }

    def __getattr__(self, name: str) -> Any:  # the modules above
        raise AttributeError(name)

    def _made(self, own: Any, run: Callable[[Any, Any], bool], changes_blocks: bool) -> type:
        """A pass of Numba that runs a function instead."""
        name = f"kernel_{own._name}"
        made = type(name, (own,), {"_name": name, "run_pass": run})
        register = self.compiler_machinery.register_pass(mutates_CFG=changes_blocks, analysis_only=False)
        return register(made)

    def without(self, pipeline: Any, name: str, replaced: Replaced) -> Any:
        """A pipeline with other passes in the place of some, and without some."""
        made = self.compiler_machinery.PassManager(name)
        for each, description in pipeline.passes:
            chosen = replaced.get(each, each)
            if chosen is not None:
                made.add_pass(chosen, description)
        made.finalize()
        return made

    def typing(self, context: Any, function_type: type) -> Any:
        """The typing context, with a memory."""
        return _Typing(context, function_type, self.signatures)


class _Typing:
    """Numba's typing context, which remembers the signatures of functions: it tries every rule for arrays, dates and
    strings before that of ``int64 + int64``, each time, which took 1.3 s of the 23 that a ResNet-50 compiled."""

    def __init__(self, context: Any, function_type: type, signatures: dict[tuple[Any, ...], Any]) -> None:
        self._context, self._function_type, self._signatures = context, function_type, signatures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        if kws or not isinstance(func, self._function_type):
            return self._context.resolve_function_type(func, args, kws)
        key = (func, *args)
        if key not in self._signatures:
            self._signatures[key] = self._context.resolve_function_type(func, args, kws)
        return self._signatures[key]


# ---------------------------------------------------------------- helpers


class _Analysed:
    """A helper's blocks, of which every call has a copy."""

    def __init__(self, passes: KernelPasses, found: Any) -> None:
        self.ir = passes.ir
        self.blocks = passes.ir_utils.simplify_CFG(found.blocks)
        self.order = passes.ir_utils.find_topo_order(self.blocks)

    def copied(self, scope: Any, prefix: str) -> dict[int, Any]:
        """The blocks in another scope, under names of their own.

        Statements and expressions are copied and nothing else: `copy.deepcopy`, which asks of each word and each place
        in the source how to copy it, took four times as long, 3 % of what kernels take to compile.
        """
        ir, names = self.ir, dict[str, Any]()

        def copied(x: Any) -> Any:
            if isinstance(x, ir.Var):
                if x.name not in names:
                    name = prefix + x.name.replace(".", "_").replace("$", "_v")
                    names[x.name] = scope.redefine(name, loc=x.loc)
                return names[x.name]
            if isinstance(x, (ir.Stmt, ir.Expr)):
                made = object.__new__(type(x))
                made.__dict__.update({name: copied(value) for name, value in x.__dict__.items()})
                return made
            if isinstance(x, (list, tuple)):
                return type(x)(map(copied, x))
            if isinstance(x, dict):
                return {key: copied(value) for key, value in x.items()}
            return x

        found = {}
        for label, block in self.blocks.items():
            found[label] = ir.Block(scope, block.loc)
            found[label].body = copied(block.body)
        return found


def _inline_helpers(passes: KernelPasses) -> Callable[[Any, Any], bool]:
    """Numba's pass with another worker, and without its post-processor."""
    ir, ir_utils, closures = passes.ir, passes.ir_utils, passes.inline_closurecall
    calls = itertools.count()

    def untyped(state: Any) -> Any:
        pipeline = passes.builder.define_untyped_pipeline(state)
        return passes.without(pipeline, "helper", passes.untyped)

    class Inliner(closures.InlineWorker):  # type: ignore[name-defined]
        """Puts a copy in the place of a call."""

        def inline_function(self, caller_ir: Any, block: Any, i: int, function: Any, arg_typs: Any = None) -> Any:
            self.flags.enable_ssa = False  # the caller is in SSA form later
            helper = passes.analysed.get(function)
            if helper is None:
                self._compiler_pipeline = untyped
                helper = passes.analysed[function] = _Analysed(passes, self.run_untyped_passes(function))
            scope, instr = block.scope, block.body[i]
            blocks = helper.copied(scope, f"{function.__name__}_{next(calls)}_")
            start = max(ir_utils.next_label(), max(caller_ir.blocks)) + 1
            blocks = ir_utils.add_offset_to_labels(blocks, start)
            ir_utils._the_max_label.update(max(blocks))
            closures._replace_args_with(blocks, closures._get_callee_args(instr.value, function, instr.loc, caller_ir))
            behind, after = ir.Block(scope, block.loc), ir_utils.next_label()
            behind.body, block.body = block.body[i + 1 :], block.body[:i]
            block.body.append(ir.Jump(start + helper.order[0], instr.loc))
            closures._replace_returns(blocks, instr.target, after)
            definitions = caller_ir._definitions.get(instr.target.name, [])
            if instr.value in definitions:
                definitions.remove(instr.value)
            caller_ir.blocks[after] = behind
            for label in helper.order:
                closures._add_definitions(caller_ir, blocks[start + label])
                caller_ir.blocks[start + label] = blocks[start + label]
            # of a helper all calls are inlined already
            return None, None, None, [(after, behind)]

    def run(self: Any, state: Any) -> bool:
        worker = Inliner(state.typingctx, state.targetctx, state.locals, state.pipeline, state.flags)
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
            for dead in passes.analysis.compute_cfg_from_blocks(blocks).dead_nodes():
                del blocks[dead]
            state.func_ir.blocks = ir_utils.simplify_CFG(passes.transforms.canonicalize_cfg(blocks))
        return True

    return run


# ---------------------------------------------------------------- what counts of other passes


def _canonicalize(passes: KernelPasses) -> Callable[[Any, Any], bool]:
    """Numba's pass, which also finds out where every variable lives, for generators and ``del``."""

    def run(self: Any, state: Any) -> bool:
        state.func_ir.blocks = passes.transforms.canonicalize_cfg(state.func_ir.blocks)
        return True

    return run


def _reconstruct_ssa(passes: KernelPasses) -> Callable[[Any, Any], bool]:
    """Numba's pass, which for each variable goes through the blocks that have it instead of through all."""
    ssa = passes.ssa

    def run(self: Any, state: Any) -> bool:
        blocks = state.func_ir.blocks
        cfg = passes.analysis.compute_cfg_from_blocks(blocks)
        frontiers, violators = ssa._iterated_domfronts(cfg), ssa._find_defs_violators(blocks, cfg)
        scope, listed = ssa._get_scope(blocks), ssa._CacheListVars()
        places = defaultdict[str, list[int]](list)
        for label, block in blocks.items():
            for name in {variable.name for statement in block.body for variable in statement.list_vars()}:
                places[name].append(label)
        for name in violators:

            def rewrite(handler: Any, name: str = name, **more: Any) -> None:
                some = {label: blocks[label] for label in places[name]}
                blocks.update(ssa._run_block_rewrite(some, {"scope": scope, "varname": name} | more, handler))

            defined, phis = defaultdict[int, list[Any]](list), defaultdict[int, list[Any]](list)
            rewrite(ssa._FreshVarHandler(), defmap=defined)
            where = ssa._compute_phi_locations(frontiers, defined)
            rewrite(ssa._FixSSAVars(listed), defmap=defined, phimap=phis, cfg=cfg, phi_locations=where)
            for label, found in phis.items():
                blocks[label].body = found + blocks[label].body
        state.func_ir._definitions = passes.ir_utils.build_definitions(blocks)
        return True

    return run


def _strip_phis(self: Any, state: Any) -> bool:
    """Numba's pass without its post-processor."""
    state.func_ir = self._strip_phi_nodes(state.func_ir)
    return True
