"""gpu/jit.py, image.py, target.py: compiling without a GPU, the kernel cache, what a kernel takes."""

import contextlib
import functools
import subprocess
import sys

import numpy as np
import pytest
from gpu import gates, toy
from numba.core.errors import TypingError
from numba.cuda import compiler as numba_cuda_compiler
from ptx_emulator import MemoryFault, launch

from numbaprims import kernel_cache, kernel_files
from numbaprims.gpu import compiler, image, jit, target
from numbaprims.gpu.device import emit
from numbaprims.gpu.device.emit import asm, intrinsic
from numbaprims.gpu.jit import (
    ByValue,
    block_index,
    cuda,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)
from numbaprims.gpu.seam import struct_of

ARCHS = ("sm_80", "sm_90a")
F32 = types.float32


@device_function
def scaled(value, times):
    if times > 1:  # `times` is a literal: one branch is left
        return value * F32(times)
    return value


@functools.cache
def make_reverse(threads: int, shared: int = 0):
    """Each block's elements in reverse order, times two, by way of shared memory."""
    words = 0 if shared else threads

    @gpu_kernel("test_reverse", types.void(types.CPointer(F32), types.CPointer(F32), types.uint32), (threads, shared),
                threads=threads, shared=shared, registers=32)  # fmt: skip
    def reverse(out, x, n):
        buffer = shared_array(words, F32)
        thread = thread_index()
        i = types.uint32(block_index() * threads + thread)
        buffer[thread] = scaled(x[i], 2) if i < n else F32(0)
        cuda.syncthreads()
        j = types.uint32((block_index() + 1) * threads - 1 - thread)
        if j < n:
            out[j] = buffer[thread]

    return reverse


@intrinsic
def number_at(typingctx, address):
    def codegen(context, builder, sig, args):
        return asm(builder, "ld.b32 $0, [$1];", args, [emit.I32])[0]

    return types.uint32(types.uint64), codegen


@intrinsic
def parameter_at(typingctx, address):
    def codegen(context, builder, sig, args):
        place = asm(builder, "cvta.to.param.u64 $0, $1;", args, [emit.I64])
        return asm(builder, "ld.param.b32 $0, [$1];", place, [emit.I32])[0]

    return types.uint32(types.uint64), codegen


@functools.cache
def make_pick(nbytes: int, generic: bool):
    """out[i] = word i of a struct by value, which other parameters surround."""
    signature = types.void(types.CPointer(types.uint32), types.uint32, ByValue(nbytes, 64), types.uint32)

    @gpu_kernel("test_pick", signature, (nbytes, generic), threads=32)
    def pick(out, first, struct, count):
        i = types.uint32(first + thread_index())
        if i < count:
            place = types.uint64(struct + 4 * types.uint64(i))
            out[i] = number_at(place) if generic else parameter_at(place)

    return pick


@pytest.mark.parametrize("generic", [True, False])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_struct_by_value_lies_in_constant_memory(arch: str, generic: bool, gpu):
    kernel = make_pick(128, generic)
    ptx, used = kernel.ptx(arch), kernel.resources(arch)
    assert kernel.kinds == ("p", "u32", "b128", "u32")
    assert f".param .align 64 .b8 {kernel.entry}_param_2[128]" in ptx and "cvta.param.u64" in ptx
    assert used.stack == 0 and not used.has("LDL")
    assert generic or used.has("LDC")
    given = np.arange(32, dtype=np.uint32) ** 2
    out = np.zeros(20, np.uint32)
    launch(kernel, 1, 32, out, 1, struct_of(given), 20, arch=arch)
    np.testing.assert_array_equal(out[1:], given[1:20])
    with pytest.raises(TypeError, match="64 bytes for parameter"):
        launch(kernel, 1, 32, out, 1, struct_of(given[:16]), 20, arch=arch)
    with pytest.raises(MemoryFault, match="of parameters"):
        launch(kernel, 1, 32, np.zeros(4096, np.uint32), 1000, struct_of(given), 4096, arch=arch)


def test_a_struct_that_is_used_as_a_number_is_refused():
    text = ".param .u64 k_param_1\n ld.param.u64 \t%rd1, [k_param_1];\n add.u64 %rd2, k_param_1, 4;"
    with pytest.raises(ValueError, match="k_param_1"):
        jit._by_value(text, "k_param_1", ByValue(128, 64))


def reversed_blocks(x: np.ndarray, threads: int) -> np.ndarray:
    return 2 * x.reshape(-1, threads)[:, ::-1].reshape(-1)


@pytest.mark.parametrize("arch", ARCHS)
def test_kernel_compiles_without_a_gpu(arch: str):
    kernel = make_reverse(128)
    ptx, used = kernel.ptx(arch), kernel.resources(arch)
    assert f".target {arch}" in ptx and f".visible .entry {kernel.entry}(" in ptx
    assert kernel.cubin(arch)[:4] == b"\x7fELF"
    assert 0 < used.registers <= kernel.registers and used.spills == used.stack == 0
    assert used.static_shared == 512 and used.barriers == 1
    if used.opcodes:
        assert used.has("LDG.E", "STS", "LDS", "STG.E", "BAR.SYNC") and not used.has("DMUL", "HMMA")


def test_ptx_does_not_depend_on_the_process():
    code = (
        "from gpu.test_jit import make_reverse; import sys; "
        "make_reverse(64).compile('sm_80'); sys.stdout.write(make_reverse(128).compile('sm_80').ptx)"
    )
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == make_reverse(128).compile("sm_80").ptx


@pytest.mark.parametrize("module", ["gemv.kernels", "scan.kernels", "lrn.kernels"])
def test_numba_cudas_own_passes_give_the_same_code(module, monkeypatch):
    """Helpers in helpers, loops, parts of tuples: numba-cuda's own pipeline takes twice as long."""

    def code():
        kernel = gates.gates(module)[0].kernel()
        return kernel._assemble(kernel._lower("sm_90a"), "sm_90a").ptx

    ours = code()
    monkeypatch.setattr(jit, "kernel_pipeline", contextlib.nullcontext)
    assert len(ours.splitlines()) > 100
    assert code() == ours


def test_a_device_function_is_analysed_once():
    helpers = compiler.passes.analysed
    fresh(64)._lower("sm_80")
    found = helpers[scaled.py_func], helpers[thread_index.py_func]
    fresh(32)._lower("sm_80")
    assert found == (helpers[scaled.py_func], helpers[thread_index.py_func])


def test_a_kernel_that_does_not_compile_leaves_numba_cuda_as_it_was():
    @gpu_kernel("test_wrong", types.void(types.CPointer(F32)), (), threads=32)
    def wrong(out):
        out[0] = out + scaled

    with pytest.raises(TypingError):
        wrong._lower("sm_80")
    assert numba_cuda_compiler.CUDACompiler is compiler._Compiler


def test_kernel_runs(gpu):
    from numbaprims.gpu.memory import empty, to_device

    x = np.arange(512, dtype=np.float32)
    out, given, kernel = empty((512,), np.float32), to_device(x), make_reverse(128)
    kernel.launch(4, (out.pointer, given.pointer, 512))
    np.testing.assert_array_equal(out.to_host(), reversed_blocks(x, 128))
    assert gpu.launches[-1].grid == (4, 1, 1) and gpu.launches[-1].block == (128, 1, 1)
    with pytest.raises(TypeError, match="test_reverse has 3 parameters; 2 were given"):
        kernel.launch(4, (out.pointer, 512))


@functools.cache
def make_total(count: int):
    """The sum of one element of each of `count` arrays, which are one parameter, times the members of another."""
    pointers, factors = types.UniTuple(types.CPointer(F32), count), types.UniTuple(F32, count)

    @gpu_kernel("test_total", types.void(types.CPointer(F32), pointers, factors), (count,), threads=32)
    def total(out, arrays, by):
        sum_ = F32(0)
        for k in range(count):
            sum_ += arrays[k][thread_index()] * by[k]
        out[thread_index()] = sum_

    return total


def test_tuples_and_more_than_seven_arrays(gpu):
    """A launcher takes ten arrays; tuples are given member by member."""
    from numbaprims.gpu.launch import make_launcher, step
    from numbaprims.gpu.memory import empty, storage_view, to_device

    kernel = make_total(9)
    assert kernel.kinds == ("p",) * 10 + ("f32",) * 9
    given = [to_device(np.full(32, 10.0**-k, np.float32)) for k in range(9)]
    by = tuple(float(k) for k in range(9))
    first = step(kernel, 1, lambda a, f, s: (*(each.pointer for each in a), *by))
    for steps in ([first], [first, first]):
        out = empty((32,), np.float32)
        views = [storage_view(each) for each in (out, *given)]
        make_launcher(steps)(*views[:7], more=views[7:])
        np.testing.assert_allclose(out.to_host(), sum(k * 10.0**-k for k in range(9)), rtol=1e-6)


def test_more_than_48_kib_of_shared_memory(gpu):
    from numbaprims.gpu.memory import empty, to_device

    kernel = make_reverse(256, 96 * 1024)
    assert kernel.resources("sm_90a").static_shared == 0
    x = np.arange(256, dtype=np.float32)
    out, given = empty((256,), np.float32), to_device(x)
    kernel.launch(1, (out.pointer, given.pointer, 256))
    np.testing.assert_array_equal(out.to_host(), reversed_blocks(x, 256))
    assert gpu.launches[-1].shared == 96 * 1024
    with pytest.raises(ValueError, match="loaded for 98304 bytes of shared memory, not 100000"):
        kernel.launch(1, (out.pointer, out.pointer, 256), shared=100_000)


def test_a_kernel_may_close_over_numbers_types_and_device_functions_only():
    words = {"a": 1}

    def kernel(out):
        out[0] = words["a"]

    with pytest.raises(TypeError, match="kernel bad closes over .*may close over ints, floats, strings"):
        gpu_kernel("bad", types.void(types.CPointer(F32)), (), threads=32)(kernel)
    with pytest.raises(TypeError, match="a parameter of type array"):
        gpu_kernel("bad", types.void(types.Array(F32, 1, "C")), (), threads=32)(lambda out: None)
    with pytest.raises(ValueError, match="2048 threads a block"):
        gpu_kernel("bad", types.void(types.CPointer(F32)), (), threads=2048)(lambda out: None)


def test_arithmetic_that_links_cuda_c_is_refused():
    def kernel(out, x):
        out[0] = types.float32(types.float16(x) + types.float16(x))

    half = gpu_kernel("half", types.void(types.CPointer(F32), F32), (), threads=32)(kernel)
    with pytest.raises(ValueError, match=r"calls CUDA C\+\+ of numba-cuda"):
        half.compile("sm_80")


def test_launch_bounds_reach_the_assembler():
    kernel = gpu_kernel("bounds", types.void(types.CPointer(F32)), (), threads=96, blocks_per_sm=3)(lambda out: None)
    ptx = kernel.ptx("sm_80")
    assert ".maxntid 96" in ptx and ".minnctapersm 3" in ptx


@pytest.mark.parametrize("arch", ["sm_9", "90a", "sm_90x", ""])
def test_an_unknown_architecture_is_refused(arch: str):
    with pytest.raises(ValueError, match="no architecture"):
        make_reverse(128).compile(arch)


def test_errors_of_the_assembler_come_in_words():
    with pytest.raises(ValueError, match="broken does not assemble for sm_80"):
        image.assemble(".version 8.0\n.target sm_80\nnonsense", "broken", "sm_80")


# ---------------------------------------------------------------- the kernel cache


@pytest.fixture
def cache_dir(tmp_path, monkeypatch: pytest.MonkeyPatch):
    from numbaprims import settings

    before = settings.current().cache_dir
    settings.set_defaults(cache_dir=str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_warned", set())
    yield tmp_path / "kernels"
    settings.set_defaults(cache_dir=before)


def fresh(threads: int = 128) -> jit.GpuKernel:
    """The kernel as another process would see it: nothing in memory."""
    make_reverse.cache_clear()
    return make_reverse(threads)


def test_the_cache_keeps_ptx_and_cubin_for_each_architecture(cache_dir, monkeypatch):
    first = {arch: fresh().image(arch) for arch in ARCHS}
    names = sorted(path.name for path in cache_dir.glob("*.npk"))
    assert len(names) == 2 and all(name.startswith("test_reverse-") for name in names)
    monkeypatch.setattr(jit.GpuKernel, "compile", lambda *_: pytest.fail("compiled again"))
    assert {arch: fresh().image(arch) for arch in ARCHS} == first
    assert first["sm_80"].ptx != first["sm_90a"].ptx and first["sm_80"].cubin != first["sm_90a"].cubin


def test_the_key_holds_what_the_code_depends_on(cache_dir):
    def key(kernel: jit.GpuKernel, arch: str = "sm_80", **options) -> bytes:
        cache = image.ImageCache(kernel.function, kernel.name, kernel.spec, {"bounds": kernel.launch_bounds, **options})
        found = cache.key(f"{arch} {kernel.signature}")
        assert found is not None
        return found

    keys = [key(fresh(128)), key(fresh(64)), key(fresh(128), "sm_90a"), key(fresh(128), bounds=(128, 4))]
    assert len(set(keys)) == len(keys) and key(fresh(128)) == keys[0]
    assert b"numba-cuda" in keys[0] and b"nvjitlink" in keys[0]


def test_a_damaged_file_is_compiled_again(cache_dir, recwarn):
    want = fresh().image("sm_80")
    (file,) = cache_dir.glob("*.npk")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.warns(RuntimeWarning, match="is ignored, since it was cut short"):
        assert fresh().image("sm_80") == want
    assert fresh().image("sm_80") == want, "and kept again"


def test_a_directory_that_cannot_be_written_costs_a_warning(cache_dir, monkeypatch):
    def write(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(kernel_files, "write", write)
    with pytest.warns(RuntimeWarning, match="every process compiles its kernels"):
        assert fresh().image("sm_80").cubin


def test_an_image_survives_its_bytes():
    found = make_reverse(128).image("sm_80")
    assert image.Image.from_bytes(found.to_bytes()) == found


# ---------------------------------------------------------------- targets


def test_peaks_are_those_of_the_data_sheets():
    assert target.A100.arch == "sm_80" and target.H200.arch == "sm_90a"
    for gpu, dtype, tera in ((target.A100, "f32", 19.5), (target.A100, "bf16", 312), (target.H100, "f32", 67)):
        assert gpu.peak(dtype) == pytest.approx(tera * 1e12, rel=0.02)
    assert target.A100.peak("f32", tf32=True) == pytest.approx(156e12, rel=0.02)
    assert target.A100.peak("f64") == pytest.approx(9.7e12, rel=0.02)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [(256, 32, 0, 8), (256, 64, 0, 4), (256, 128, 0, 2), (256, 255, 0, 1), (1024, 65, 0, 0), (32, 16, 0, 32),
     (128, 32, 100 * 1024, 1), (128, 32, 48 * 1024, 3)],
)  # fmt: skip
def test_blocks_per_multiprocessor(threads, registers, shared, blocks):
    """As the occupancy calculator of the CUDA toolkit says for compute capability 8.0."""
    assert target.A100.blocks_per_multiprocessor(threads, registers, shared) == blocks


def test_occupancy_of_a_kernel():
    assert toy.make_outer("f32", True).occupancy(target.A100) == 1.0
    assert 0 < make_reverse(256, 96 * 1024).occupancy(target.A100) <= 256 / 2048
