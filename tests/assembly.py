"""What kernels and formulas become for CPUs by name: no test that looks at instructions depends on its machine.

Nothing that is compiled here runs.
"""

import ast
import atexit
import functools
import os
import re
import subprocess
import sys
from unittest import mock

import pytest
from llvmlite import binding as llvm, ir
from numba.core.ccallback import CFunc

from numbaprims import kernel_cache
from numbaprims.cpu import target
from numbaprims.cpu.compiler import KernelCompiler

X86 = "x86_64-unknown-linux-gnu"
ARM = "aarch64-unknown-linux-gnu"
#: AVX-512 of three makers' generations, AVX2, SSE, NEON
CPUS = ("znver5", "sapphirerapids", "rocketlake", "x86-64-v3", "x86-64-v2", "neoverse-n1")
X86_CPUS = CPUS[:-1]

_COMPILE = """
import sys
from importlib import import_module
for line in sys.stdin:
    path, module, factory, arguments = eval(line)
    sys.path[:] = ["", *path]
    print(repr(getattr(import_module(module), factory)(*arguments).inspect_asm()), flush=True)
"""


def named(cpu, features=""):
    """The `CpuTarget` of a name: what LLVM implies by it, nothing of the host but its caches."""
    return target.described(ARM if cpu in ("generic", "neoverse-n1") else X86, cpu, features)


@functools.cache
def _compiler(cpu):
    """A process that compiles for a CPU until this one ends: Numba has one target a process."""
    environment = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", _COMPILE], env=os.environ | environment, text=True, **streams)
    atexit.register(process.communicate)
    return process


@functools.cache
def kernel_assembly(cpu, factory, *arguments):
    """The assembly of the range kernel that `factory(*arguments)` makes, for an x86 CPU that need not be the host.

    The factory must be a module's and its arguments literals.
    """
    if target.current().arch not in ("x86_64", "amd64"):
        pytest.skip("Numba compiles for the architecture that it runs on")
    process = _compiler(cpu)
    process.stdin.write(f"{(sys.path, factory.__module__, factory.__name__, arguments)}\n")
    process.stdin.flush()
    told = process.stdout.readline()
    assert told, process.stderr.read()
    return ast.literal_eval(told)


def emitted(cpu, emit, arguments, features=""):
    """The LLVM function that stores what `emit(builder, *values of these types)` gives, as written for a CPU.

    Nothing is optimised yet.
    """
    described = named(cpu, features)
    module = ir.Module()
    module.triple = described.triple
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [*arguments, ir.PointerType()]), "operation")
    builder = ir.IRBuilder(function.append_basic_block())
    with mock.patch.object(target, "current", lambda: described):
        results = emit(builder, *function.args[:-1])
        for result in results if isinstance(results, tuple) else (results,):
            builder.store(result, function.args[-1])
    builder.ret_void()
    return function


def instructions(function, cpu, features=""):
    """The instructions of an LLVM function for a CPU, one a line."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(function.module.triple).create_target_machine(cpu=cpu, features=features, opt=3)
    text = machine.emit_assembly(llvm.parse_assembly(str(function.module)))
    lines = (line.strip() for line in text.splitlines() if line.startswith("\t"))
    return [line for line in lines if not line.startswith(".")]


def arm_assembly(kernel, cpu):
    """What a range kernel of scalars becomes for an Arm CPU: its LLVM code, optimised for that one as Numba would."""
    sig = kernel._signature()
    fresh = CFunc(kernel.function, (sig.args, sig.return_type), {}, dict(kernel.options), KernelCompiler)
    with kernel_cache.compiler_lock():
        text = str(fresh._compile_uncached().library.get_llvm_str())
    text = re.sub(r"target (triple|datalayout) = .*", "", text)
    # the only operation that is x86's own
    text = text.replace("call void @llvm.x86.sse2.pause()", "call void @llvm.aarch64.hint(i32 1)")
    text = text.replace("declare void @llvm.x86.sse2.pause()", "declare void @llvm.aarch64.hint(i32)")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(f'target triple = "{ARM}"\n{text}')
    machine = llvm.Target.from_triple(ARM).create_target_machine(cpu=cpu, opt=3)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return machine.emit_assembly(module).partition("\ncfunc.")[0]
