"""The seam: which driver stands for a device, and what the CUDA driver is asked for, without one."""

import ctypes
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest

from numbaprims.gpu import cuda_driver, driver, seam
from numbaprims.gpu.driver import Driver
from numbaprims.gpu.target import A100, H200


class Plain(Driver):
    kind = "emulated"

    def __init__(self, device=0, target=H200):
        self.device, self.target = device, target


def test_use_puts_a_driver_in_place_and_takes_it_away(monkeypatch):
    monkeypatch.setattr(cuda_driver, "bindings", lambda: pytest.fail("a GPU was opened"))
    before = driver.installed()
    first, second = Plain(), Plain(1, A100)
    with driver.use(first, second):
        assert driver.current() is first and driver.current(1) is second
        assert driver.installed() == (first, second)
        with driver.use(Plain()):
            assert driver.current() is not first
        assert driver.current() is first
        with pytest.raises(driver.NoGpu, match="device 3 is not there: <emulated driver, device 0: H200>"):
            driver.current(3)
    assert driver.installed() == before


def test_what_a_driver_lacks_is_named():
    for name, arguments in [
        ("load", ("", b"", "", 0)),
        ("launch", (None, (1, 1, 1), (1, 1, 1), 0, 0, (), ())),
        ("alloc", (1, 0)),
        ("free", (1, [0])),
        ("copy", (1, 2, 3, 0)),
        ("synchronise", (0,)),
    ]:
        with pytest.raises(TypeError, match=f"Plain implements no {name}"):
            getattr(Plain(), name)(*arguments)


# ---------------------------------------------------------------- cuda.bindings, played by a stand-in


class Status(int):
    @property
    def name(self):
        return {0: "CUDA_SUCCESS", 700: "CUDA_ERROR_ILLEGAL_ADDRESS", 720: "TOO_LARGE"}[int(self)]


class Handle(int):
    """What the bindings wrap pointers in."""


class Names:
    """An enumeration whose members are their names."""

    def __getattr__(self, name):
        return name


class Bindings(types.SimpleNamespace):
    """cuda.bindings.driver as far as it is used: notes every call, answers as one H200."""

    ATTRIBUTES = {
        "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
        "CLOCK_RATE": 1_980_000, "MEMORY_CLOCK_RATE": 3_201_000, "GLOBAL_MEMORY_BUS_WIDTH": 6144,
        "L2_CACHE_SIZE": 50 << 20, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472, "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536, "WARP_SIZE": 32,
    }  # fmt: skip

    def __init__(self, devices=1):
        super().__init__()
        self.calls, self.entered = [], []  # what is done with contexts is noted apart
        self.answers = {
            "cuDeviceGetCount": devices, "cuDeviceGet": Handle(3), "cuDevicePrimaryCtxRetain": Handle(1000),
            "cuDeviceGetName": b"NVIDIA H200\0\0", "cuMemGetInfo": (1, 141 << 30),
            "cuModuleLoadData": Handle(55), "cuModuleGetFunction": Handle(66), "cuMemAllocFromPoolAsync": Handle(4096),
            "cuMemPoolCreate": Handle(77), "cuGetErrorString": b"an illegal memory access was encountered",
        }  # fmt: skip
        self.answers["cuStreamIsCapturing"] = 0
        self.fails: dict[str, int] = {}
        self.contexts: list[int] = []  # this thread's stack
        self.hooks = {
            "cuCtxPushCurrent": self.contexts.append, "cuCtxPopCurrent": lambda: self.contexts.pop(),
        }  # fmt: skip
        prefix = "CU_DEVICE_ATTRIBUTE_"
        self.CUdevice_attribute = types.SimpleNamespace(**{prefix + name: name for name in self.ATTRIBUTES})
        self.CUmemPoolProps = lambda: types.SimpleNamespace(location=types.SimpleNamespace())
        self.CUmemAllocationType = types.SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
        self.CUmemLocationType = types.SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
        self.CUmemPool_attribute = types.SimpleNamespace(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD="threshold")
        self.cuuint64_t = self.cuuint32_t = Handle
        for name in (
            "CUtensorMapDataType", "CUtensorMapInterleave", "CUtensorMapSwizzle", "CUtensorMapL2promotion",
            "CUtensorMapFloatOOBfill",
        ):  # fmt: skip
            setattr(self, name, Names())
        self.CUevent_flags = types.SimpleNamespace(CU_EVENT_DISABLE_TIMING=types.SimpleNamespace(value=2))
        self.CUfunction_attribute = types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            (self.entered if name.startswith("cuCtx") else self.calls).append((name, *arguments))
            status = Status(self.fails.get(name, 0))
            if name == "cuCtxGetCurrent":
                return status, Handle(self.contexts[-1] if self.contexts else 0)
            if name in self.hooks:
                answer = self.hooks[name](*arguments)
                return (status,) if answer is None else (status, answer)
            if name == "cuDeviceGetAttribute":
                return status, self.ATTRIBUTES[arguments[0]]
            if name not in self.answers:
                return (status,)
            answer = self.answers[name]
            return (status, *answer) if isinstance(answer, tuple) else (status, answer)

        return call

    def names(self):
        return [call[0] for call in self.calls]


@pytest.fixture
def cu(monkeypatch):
    bindings = Bindings()
    monkeypatch.setattr(cuda_driver, "bindings", lambda: bindings)
    return bindings


def test_the_target_is_read_from_the_device(cu):
    found = cuda_driver.CudaDriver().target
    assert found.name == "NVIDIA H200" and found.arch == "sm_90a" and found.multiprocessors == 132
    assert found.bandwidth == pytest.approx(4.9e12, rel=0.01) and found.shared_per_block == 227 * 1024


def test_a_machine_that_tells_no_memory_clock(cu, monkeypatch):
    """Estimates divide by the bandwidth."""
    monkeypatch.setitem(cu.ATTRIBUTES, "MEMORY_CLOCK_RATE", 0)
    assert cuda_driver.CudaDriver().target.bandwidth == A100.bandwidth


def test_a_launch_is_one_call_with_two_tuples(cu):
    gpu = cuda_driver.CudaDriver()
    function = gpu.load("ptx", b"cubin", "entry", 0)
    assert ("cuModuleLoadData", b"cubin") in cu.calls and ("cuModuleGetFunction", 55, b"entry") in cu.calls
    assert "cuFuncSetAttribute" not in cu.names()
    cu.calls.clear()
    kinds = ("p", "i32", "u32", "i64", "u64", "f32", "f64")
    values = (4096, -1, 2, -3, 4, 1.5, 2.5)
    gpu.launch(function, (7, 1, 1), (128, 1, 1), 64, 9, kinds, values)
    wanted = (
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_float,
        ctypes.c_double,
    )  # fmt: skip
    assert cu.calls == [("cuLaunchKernel", 66, 7, 1, 1, 128, 1, 1, 64, 9, (values, wanted), 0)]


def test_a_launch_together_is_cooperative(cu):
    gpu = cuda_driver.CudaDriver()
    cu.calls.clear()
    gpu.launch(66, (7, 1, 1), (128, 1, 1), 64, 9, ("p", "f32"), (4096, 1.5), True)
    given = (4096, 1.5), (ctypes.c_void_p, ctypes.c_float)
    assert cu.calls == [("cuLaunchCooperativeKernel", 66, 7, 1, 1, 128, 1, 1, 64, 9, given)]
    cu.fails["cuLaunchCooperativeKernel"] = 720
    with pytest.raises(cuda_driver.CudaError):
        gpu.launch(66, (700, 1, 1), (128, 1, 1), 64, 9, ("p", "f32"), (4096, 1.5), True)


def test_a_struct_is_passed_as_the_bindings_want_it(cu):
    gpu = cuda_driver.CudaDriver()
    kinds, data = (seam.struct_kind(24), "f32"), np.arange(3.0)
    struct = seam.struct_of(data)
    data[:] = 0
    cu.calls.clear()
    gpu.launch(1, (1, 1, 1), (32, 1, 1), 0, 0, kinds, (struct, 1.5))
    assert cu.calls[0][-2] == ((struct, 1.5), (None, ctypes.c_float))
    assert isinstance(struct, ctypes.Structure) and bytes(struct) == np.arange(3.0).tobytes()


def test_more_shared_memory_is_asked_for(cu):
    cuda_driver.CudaDriver().load("ptx", b"cubin", "entry", 100_000)
    assert ("cuFuncSetAttribute", 66, "shared", 100_000) in cu.calls


def test_memory_is_kept_in_a_pool_of_our_own(cu):
    cu.answers["cuDeviceGetCount"] = 3
    cuda_driver.CudaDriver(2)
    (made, wanted), (changed, pool, key, threshold) = cu.calls[-2:]
    assert made == "cuMemPoolCreate" and wanted.allocType == "pinned"
    assert vars(wanted.location) == {"type": "device", "id": 2}
    assert (changed, pool, key) == ("cuMemPoolSetAttribute", 77, "threshold")
    assert type(threshold) is Handle and threshold == (141 << 30) // 16, "the bindings take no int here"
    assert "cuDeviceGetDefaultMemPool" not in cu.names()


def test_memory_goes_by_the_stream(cu):
    gpu = cuda_driver.CudaDriver()
    assert gpu.alloc(0, 5) == 4096 and ("cuMemAllocFromPoolAsync", 1, 77, 5) in cu.calls
    gpu.free(4096, [5])
    assert cu.calls[-1] == ("cuMemFreeAsync", 4096, 5)
    host = np.zeros(4, np.float32)
    address = host.ctypes.data
    cu.calls.clear()
    gpu.copy(4096, host, 16, 5)
    gpu.copy(host, 4096, 16, 5)
    gpu.copy(4096, 8192, 16, 5)
    assert cu.calls == [
        ("cuMemcpyHtoDAsync", 4096, address, 16, 5), ("cuStreamSynchronize", 5),
        ("cuMemcpyDtoHAsync", address, 4096, 16, 5), ("cuStreamSynchronize", 5),
        ("cuMemcpyDtoDAsync", 4096, 8192, 16, 5),
    ]  # fmt: skip
    gpu.synchronise(5)
    assert cu.calls[-1] == ("cuStreamSynchronize", 5)


def test_small_blocks_of_the_default_stream_are_kept(cu):
    """The next call there gets them without asking the driver, whatever is captured elsewhere."""
    gpu = cuda_driver.CudaDriver()
    addresses = iter(range(4096, 1 << 20, 4096))
    cu.hooks["cuMemAllocFromPoolAsync"] = lambda *_: next(addresses)
    first, second = gpu.alloc(300, 0), gpu.alloc(512, 0)
    assert ("cuMemAllocFromPoolAsync", 512, 77, 0) in cu.calls and first != second
    cu.calls.clear()
    cu.fails["cuStreamIsCapturing"] = 900
    gpu.free(first, {0: None})
    assert gpu.alloc(1, 0) == first and not cu.calls
    cu.fails.clear()
    gpu.free(first, {0: None, 5: None})
    assert ("cuMemFreeAsync", first, 0) in cu.calls, "what another stream has used"
    large = gpu.alloc(cuda_driver.KEPT_BYTES + 1, 0)
    elsewhere = gpu.alloc(512, 5)
    for pointer, stream in ((large, 0), (elsewhere, 5)):
        gpu.free(pointer, [stream])
        assert cu.calls[-1] == ("cuMemFreeAsync", pointer, stream)


def test_what_is_kept_is_bounded_and_given_back_for_want_of_memory(cu):
    gpu = cuda_driver.CudaDriver()
    addresses = iter(range(1 << 20, 1 << 40, 1 << 20))
    cu.hooks["cuMemAllocFromPoolAsync"] = lambda *_: next(addresses)

    def freed():
        found = [call[1] for call in cu.calls if call[0] == "cuMemFreeAsync"]
        cu.calls.clear()
        return found

    size = 1 << 20
    blocks = [gpu.alloc(size, 0) for _ in range(6)]
    for pointer in blocks:
        gpu.free(pointer, [0])
    assert freed() == blocks[4:]
    small = [gpu.alloc(512 * at, 0) for at in range(1, cuda_driver.KEPT_SIZES + 1)]
    for pointer in small:
        gpu.free(pointer, [0])
    assert freed() == small[-1:]

    cu.fails["cuMemAllocFromPoolAsync"] = 700
    cu.hooks["cuMemFreeAsync"] = lambda *_: cu.fails.pop("cuMemAllocFromPoolAsync", None) and None
    assert gpu.alloc(size + 1, 0) and sorted(freed()) == sorted(blocks[:4] + small[:-1])
    cu.fails["cuMemAllocFromPoolAsync"] = 700
    with pytest.raises(cuda_driver.CudaError):
        gpu.alloc(size, 0)


def test_functions_for_native_code(cu, monkeypatch):
    """All of them by their addresses; without one of them calls go through the bindings."""
    gpu = cuda_driver.CudaDriver()
    there = {name: ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0) for name in (
        "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLaunchKernel", "cuLaunchCooperativeKernel",
        "cuTensorMapReplaceAddress",
    )}  # fmt: skip
    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace(**there))
    cuda_driver._functions.cache_clear()
    found = gpu.native()
    assert found.context == 1000 and list(found[1:]) == [ctypes.cast(f, ctypes.c_void_p).value for f in there.values()]
    cuda_driver._functions.cache_clear()
    del there["cuTensorMapReplaceAddress"]
    assert gpu.native() is None
    cuda_driver._functions.cache_clear()


@pytest.mark.parametrize("before", [[], [7], [7, 1000], [1000]])
def test_a_call_leaves_the_callers_context_as_it_was(cu, before):
    gpu = cuda_driver.CudaDriver()
    assert cu.contexts == []
    for _ in range(2):
        cu.contexts[:] = before  # others change it between any two calls, with one GPU too
        seen = []
        cu.hooks["cuLaunchKernel"] = lambda *_: seen.append(cu.contexts[-1])  # noqa: B023
        gpu.launch(1, (1, 1, 1), (1, 1, 1), 0, 0, (), ())
        assert seen == [1000] and cu.contexts == before
        cu.fails["cuStreamSynchronize"] = 700
        with pytest.raises(cuda_driver.CudaError):
            gpu.synchronise(0)
        assert cu.contexts == before
        gpu.clock()
        assert cu.contexts == before
    cu.contexts[:] = [1000]
    cu.entered.clear()
    gpu.alloc(4, 0)
    assert cu.entered == [("cuCtxGetCurrent",)], "where it is ours, looking is all"


def test_a_tensor_map_is_made_in_the_context(cu):
    """The driver refuses where none is current: in a thread that has used arrays of the host alone."""
    gpu = cuda_driver.CudaDriver()
    seen: list[list[int]] = []

    def encode(*_):
        seen.append([*cu.contexts])
        return types.SimpleNamespace(opaque=range(16))

    cu.hooks["cuTensorMapEncodeTiled"] = encode
    found = gpu.tensor_map(4096, "bf16", (64, 8), (128,), (64, 8))
    assert seen == [[1000]] and cu.contexts == []
    assert found.dtype == np.uint8 and found.view(np.uint64).tolist() == [*range(16)]


def test_time_is_the_devices(cu):
    gpu = cuda_driver.CudaDriver()
    cu.answers |= {"cuEventCreate": Handle(8), "cuEventElapsedTime": 2.5}
    clock = gpu.clock()
    cu.calls.clear()
    assert clock.now() == 2.5e-3
    assert cu.names() == ["cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"]


def test_time_is_as_fine_after_an_hour(cu):
    """The driver tells the milliseconds between two events as a float32."""
    gpu = cuda_driver.CudaDriver()
    events, recorded, time = iter((8, 9)), {}, 0.0
    cu.hooks["cuEventCreate"] = lambda flags: next(events)
    cu.hooks["cuEventRecord"] = lambda event, stream: recorded.__setitem__(event, time)
    cu.hooks["cuEventElapsedTime"] = lambda first, last: float(np.float32(1e3 * (recorded[last] - recorded[first])))
    clock = gpu.clock()
    time = 3600.0
    before = clock.now()
    for kernel in range(1, 100):
        time = 3600.0 + kernel * 5e-6
        assert clock.now() - before == pytest.approx(kernel * 5e-6, rel=1e-3)


def test_time_of_a_stand_in_is_the_hosts():
    emulated = Plain()
    emulated.synchronise = lambda stream: None
    assert emulated.clock().now() > 0


def test_memory_is_given_back_after_its_last_use_on_any_stream(cu):
    gpu = cuda_driver.CudaDriver()
    cu.answers["cuEventCreate"] = Handle(8)
    cu.calls.clear()
    gpu.free(4096, [5, 7, 9])
    done = [call for call in cu.calls if call[0] != "cuStreamIsCapturing"]
    after = [("cuEventCreate", 2), ("cuEventRecord", 8, None), ("cuStreamWaitEvent", 5, 8, 0), ("cuEventDestroy", 8)]
    assert done == [tuple(other if part is None else part for part in call) for other in (7, 9) for call in after] + [
        ("cuMemFreeAsync", 4096, 5)]  # fmt: skip


class Kept:
    """The object of a stream."""


@pytest.mark.parametrize("how", ["its stream", "another stream", "the default stream beside it"])
def test_finalizers_stay_out_of_a_capture(cu, how):
    gpu = cuda_driver.CudaDriver()
    captured = {"its stream": {5}, "another stream": {7}, "the default stream beside it": set()}[how]
    cu.hooks["cuStreamIsCapturing"] = lambda stream: int(stream in captured)
    cu.answers["cuMemAllocFromPoolAsync"] = Handle(8192)
    cu.fails["cuStreamIsCapturing"] = 700 if not captured else 0  # as CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    cu.calls.clear()
    streams = {5: Kept(), 7: None}
    alive = weakref.ref(streams[5])
    gpu.free(4096, streams)
    del streams
    assert set(cu.names()) == {"cuStreamIsCapturing"}, "which may be called in a capture"
    gpu.alloc(64, 3)
    assert "cuMemFreeAsync" not in cu.names(), "it still goes on"
    assert alive() is not None, "a stream that is destroyed can't be waited for"
    captured.clear()
    cu.fails.clear()
    cu.calls.clear()
    gpu.alloc(64, 3)
    names = cu.names()
    assert names.index("cuStreamWaitEvent") < names.index("cuMemFreeAsync") < names.index("cuMemAllocFromPoolAsync")
    gpu.alloc(64, 3)
    assert cu.calls.count(("cuMemFreeAsync", 4096, 5)) == 1 and alive() is None


def test_memory_allocated_in_a_capture_is_the_graphs(cu):
    gpu = cuda_driver.CudaDriver()
    captured = {5}
    cu.hooks["cuStreamIsCapturing"] = lambda stream: int(stream in captured)
    gpu.free(gpu.alloc(64, 5), [5])
    assert cu.calls[-1] == ("cuMemFreeAsync", 4096, 5), "scratch memory: a node of the graph"
    result = gpu.alloc(64, 5)
    captured.clear()
    cu.calls.clear()
    gpu.free(result, [5])
    assert set(cu.names()) == {"cuStreamIsCapturing"}
    gpu.free(gpu.alloc(64, 5), [5])  # the same address, out of the pool
    assert cu.calls[-1] == ("cuMemFreeAsync", 4096, 5)


def test_a_stream_follows_another_by_an_event(cu):
    gpu = cuda_driver.CudaDriver()
    cu.answers["cuEventCreate"] = Handle(8)
    cu.calls.clear()
    gpu.follow(5, 7)
    assert cu.calls == [("cuEventCreate", 2), ("cuEventRecord", 8, 7), ("cuStreamWaitEvent", 5, 8, 0),
                        ("cuEventDestroy", 8)]  # fmt: skip
    cu.fails["cuEventRecord"] = 700
    with pytest.raises(cuda_driver.CudaError):
        gpu.follow(5, 7)
    assert "cuStreamWaitEvent" not in cu.names()[4:] and cu.names()[-1] == "cuEventDestroy"


def test_errors_of_the_driver_come_in_words(cu):
    gpu = cuda_driver.CudaDriver()
    cu.fails["cuStreamSynchronize"] = 700
    with pytest.raises(cuda_driver.CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"):
        gpu.synchronise(0)
    cu.fails["cuLaunchKernel"] = 700
    with pytest.raises(cuda_driver.CudaError, match="illegal memory access"):
        gpu.launch(1, (1, 1, 1), (1, 1, 1), 0, 0, (), ())
    with pytest.raises(driver.NoGpu, match="device 1 is not there; this machine has 1 GPU"):
        cuda_driver.CudaDriver(1)


def test_a_machine_without_a_gpu_says_so():
    """In a process of its own, since looking for a driver is done once."""
    code = (
        "from numbaprims.gpu import driver\n"
        "try: print(driver.current())\n"
        "except driver.NoGpu as error: print('NoGpu', error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith(("NoGpu no NVIDIA driver was found", "NoGpu the NVIDIA driver finds no", "<cuda driver"))
