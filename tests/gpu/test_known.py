"""Calls on a device that native code recognises, and launches itself: as those of arrays of the host, and what only
devices have."""

import concurrent.futures
import sys
import types

import helpers
import numpy as np
import pytest
from gpu.helpers import on_device
from ptx_emulator.driver import EmulatedDriver

import numbaprims
from numbaprims import settings
from numbaprims.gpu import driver
from numbaprims.gpu.memory import DeviceArray, empty, to_device
from numbaprims.ops import primitive, product


@pytest.fixture(autouse=True)
def fresh():
    numbaprims.dispatch.call.forget()


@pytest.fixture
def side(gpu):
    """The emulated driver's functions that native code calls."""
    gpu.native()
    return gpu._native


def host(x):
    return x.to_host() if isinstance(x, DeviceArray) else x


def recognised(call, where=primitive):
    """Whether native code does a call alone, once it is known; what it gives."""
    return helpers.recognised(call, where, "_enter")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_repeated_calls_are_launched_by_native_code(side):
    (hx, x), (hw, w) = on_device(8, 64), on_device(64, seed=1)
    out = empty((8, 64), np.float32)
    for call, want in (
        (lambda: numbaprims.relu(x), np.maximum(hx, 0)),
        (lambda: numbaprims.relu(x, out=out), np.maximum(hx, 0)),
        (lambda: numbaprims.clip(x, -0.5, 0.5, out=out), np.clip(hx, -0.5, 0.5)),
        (lambda: numbaprims.square(x[:, ::2]), hx[:, ::2] ** 2),
        (lambda: numbaprims.square_backward(x, x), 2 * hx * hx),
        (lambda: numbaprims.softmax(x, out=out), softmax(hx)),
        (lambda: numbaprims.reduce(x, "sum"), hx.sum()),
        (lambda: numbaprims.binary(x, w, "add"), hx + hw),
    ):
        launched = side.launched
        known, found = recognised(call)
        assert known and side.launched > launched and type(found) is DeviceArray
        np.testing.assert_allclose(host(found), want, rtol=1e-4, atol=1e-6)
    assert not side.raised


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products(side, dtype):
    """float16 by tensor maps, which hold the addresses of their arrays."""
    (ha, a), (hb, b) = on_device(16, 64, dtype=dtype), on_device(64, 32, dtype=dtype, seed=1)
    out = empty((16, 32), dtype)
    for call in (lambda: numbaprims.gemm(a, b, out=out), lambda: numbaprims.gemm(a, b)):
        known, found = recognised(call, product)
        assert known
        np.testing.assert_allclose(host(found), (ha.astype("f4") @ hb).astype(dtype), rtol=1e-2)
    (hc, c), (hd, d) = on_device(16, 64, dtype=dtype, seed=2), on_device(64, 32, dtype=dtype, seed=3)
    elsewhere = empty((16, 32), dtype)
    for launched in (0, 1):  # what comes from the host is noted in Python, once
        before = side.launched
        numbaprims.gemm(c, d, out=elsewhere)
        assert side.launched == before + launched and not side.raised
        np.testing.assert_allclose(host(elsewhere), (hc.astype("f4") @ hd).astype(dtype), rtol=1e-2)


@pytest.mark.parametrize("bias", [False, True])
def test_plans(side, bias):
    """Their weights lie in the records."""
    (ha, a), (hb, b), (hc, c) = on_device(16, 64), on_device(64, 32, seed=1), on_device(32, seed=2)
    plan = numbaprims.gemm.plan(b, alpha=0.5, bias=c if bias else None)
    out = empty((16, 32), np.float32)
    for call in (lambda: plan(a, out=out), lambda: plan(a)):
        launched = side.launched
        known, found = helpers.recognised(call, numbaprims.arrays, "enter")
        assert known and side.launched > launched
        np.testing.assert_allclose(host(found), 0.5 * (ha @ hb) + bias * hc, rtol=1e-4, atol=1e-4)
    (hx, x), (hw, w), (hk, k) = on_device(2, 3, 8, 8), on_device(4, 3, 3, 3, seed=1), on_device(4, seed=2)
    for algorithm in ("auto", "direct", "winograd_2x2"):
        layer = numbaprims.conv.plan(x.shape, w, padding=1, bias=k if bias else None, algorithm=algorithm)
        want = numbaprims.conv(hx, hw, padding=1, bias=hk if bias else None)
        for _ in range(2):
            launched = side.launched
            known, found = helpers.recognised(lambda: layer(x), numbaprims.arrays, "enter")  # noqa: B023
            assert known and side.launched > launched and not side.raised
            np.testing.assert_allclose(host(found), want, rtol=1e-3, atol=1e-3)
            layer.update(w)


def test_several_kernels_and_scratch_memory(side, gpu):
    """Of a sum that is cut into parts."""
    hx, x = on_device(3, 40_000)
    out = empty((3,), np.float32)
    known, found = recognised(lambda: numbaprims.reduce(x, "sum", axis=1, out=out))
    launched, launches = side.launched, len(gpu.launches)
    numbaprims.reduce(x, "sum", axis=1, out=out)
    assert known and side.launched - launched == len(gpu.launches) - launches > 1
    np.testing.assert_allclose(host(found), hx.sum(1), rtol=1e-5)


def test_numbers_of_a_kind_are_not_remembered(side):
    x = to_device(np.array([-2.0, 2.0], np.float32))
    for slope in (0.5, 0.25, 0.5, 0.125, 0.25, 0.0, 1.0):
        np.testing.assert_array_equal(host(numbaprims.leaky_relu(x, slope)), [-2 * slope, 2])
    assert side.launched == 6
    (ha, a), (hb, b) = on_device(4, 8), on_device(8, 4, seed=1)
    hc, c = on_device(4, 4, seed=2)
    for alpha, beta in ((1.0, 0.0), (2.0, 0.0), (2.0, 0.5), (0.5, 0.25), (1.0, 1.0), (0.5, 0.25), (3.0, 1.0)):
        for _ in range(3):
            found = numbaprims.gemm(a, b, c=c, alpha=alpha, beta=beta)
            np.testing.assert_allclose(host(found), alpha * (ha @ hb) + beta * hc, rtol=1e-5)


def test_random_numbers_go_on(side):
    """Seed and offset travel as the bits of two numbers, and kernels take them as words."""
    x = to_device(np.ones(1000, np.float32))
    found = [host(numbaprims.dropout(x, 0.5, seed=7, offset=at)) for at in (0, 0, 4, 0, 4)]
    assert side.launched == 4
    assert np.array_equal(found[0], found[3]) and np.array_equal(found[2], found[4])
    assert not np.array_equal(found[0], found[2])


def test_every_property_of_an_array_counts(side):
    hx, x = on_device(6, 6)
    out = empty((6, 6), np.float32)
    assert recognised(lambda: numbaprims.abs(x, out=out))[0]
    (hy, y), (hz, z) = on_device(37), on_device(6, 12)
    for there, other in (
        (hx.T, x.T), (hx[::-1], x[::-1]), (hx[:, ::-1], x[:, ::-1]), (hz[:, ::2], z[:, ::2]),
        (hy[1:].reshape(6, 6), y[1:].reshape(6, 6)), (hx, x),
    ):  # fmt: skip
        for _ in range(3):
            np.testing.assert_array_equal(host(numbaprims.abs(other, out=out)), np.abs(there))
    for dtype in (np.float64, np.float16, np.int32):
        hx, x = on_device(6, 6, dtype=dtype)
        for _ in range(3):
            found = host(numbaprims.abs(x)) if dtype is not np.int32 else None
            if found is not None:
                assert found.dtype == dtype
                np.testing.assert_array_equal(found, np.abs(hx))
    with pytest.raises(ValueError, match="shape"):
        numbaprims.abs(x.view(np.float32), out=empty((36,), np.float32))


def test_what_may_not_be_written_is_refused(side):
    room, (_, x), out = empty((32,), np.float32), on_device(10), empty((10,), np.float32)
    assert recognised(lambda: numbaprims.abs(x, out=out))[0]
    for begin in (1, 9):
        with pytest.raises(ValueError, match="overlap|shares|memory"):
            numbaprims.abs(room[:10], out=room[begin : begin + 10])
    with pytest.raises(TypeError):
        numbaprims.abs(x, out=np.empty(10, np.float32))
    with pytest.raises(TypeError):
        numbaprims.abs(np.ones(10, np.float32), out=out)


def test_in_place_and_beside_are_two_calls(side):
    out = empty((10,), np.float32)
    for target in ("out", "x", "out", "x"):
        for _ in range(3):
            x = to_device(np.full(10, -1.0, np.float32))
            numbaprims.abs(x, out=out if target == "out" else x)
            assert (host(out if target == "out" else x) == 1).all()


def test_another_context_is_left_as_it_was(side):
    _, x = on_device(10)
    out = empty((10,), np.float32)
    assert recognised(lambda: numbaprims.abs(x, out=out))[0]
    launched, side.usual = side.launched, 7
    numbaprims.abs(x, out=out)
    assert side.launched == launched + 1 and side.contexts == [] and not side.raised


def test_the_stream_of_the_settings(side, gpu, monkeypatch):
    streams, launch = [], gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda *given: (streams.append(given[4]), launch(*given)))
    _, x = on_device(10)
    out = empty((10,), np.float32)
    for _ in range(3):
        numbaprims.abs(x, out=out)
        with numbaprims.config(stream=77):
            for _ in range(3):
                numbaprims.abs(x, out=out)
    assert streams == [0, 77, 77, 77] * 3
    assert side.launched == 2 + 2 + 2, "the first on each other stream is noted in Python"
    assert list(x.memory.streams) == [0, 77]


def test_what_fails_is_said_in_words(side, gpu, monkeypatch):
    _, x = on_device(10)
    out = empty((10,), np.float32)
    for call in (lambda: numbaprims.abs(x, out=out), lambda: numbaprims.abs(x)):
        assert recognised(call)[0]
        with monkeypatch.context() as patch:
            patch.setattr(gpu, "launch", lambda *_: (_ for _ in ()).throw(RuntimeError("an illegal address")))
            with pytest.raises(RuntimeError, match="an illegal address"):
                call()
        assert side.raised
        launched = side.launched
        assert (host(call()) == np.abs(host(x))).all() and side.launched == launched + 1
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "alloc", lambda *_: (_ for _ in ()).throw(MemoryError("no memory")))
        with pytest.raises(MemoryError, match="no memory"):
            numbaprims.abs(x)


def test_results_are_given_back(side, gpu):
    _, x = on_device(1000)
    for _ in range(3):
        numbaprims.abs(x)
    freed, free = [], gpu.free
    gpu.free = lambda pointer, streams: (freed.append((pointer, *streams)), free(pointer, streams))
    kept = numbaprims.abs(x)
    pointer = kept.pointer
    count = sys.getrefcount(kept)
    del kept
    assert freed == [(pointer, 0)] and count == 2


def test_threads(side):
    """Their calls share records, and their parameters do not lie in one place."""
    hx, x = on_device(4, 16)

    def work(number):
        y = to_device(hx + number)
        out = empty((4, 16), np.float32)
        for _ in range(5):
            numbaprims.square(y, out=out)
        return np.array_equal(host(out), (hx + number) ** 2)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))
    assert side.launched > 40


def test_two_devices_are_two_calls():
    with driver.use(EmulatedDriver(), EmulatedDriver(device=1)):
        arrays = [to_device(np.full(10, -1.0 - device, np.float32), device=device) for device in (0, 1)]
        for _ in range(3):
            for device, x in enumerate(arrays):
                found = numbaprims.abs(x)
                assert found.device == device and (host(found) == 1 + device).all()
        assert [driver.current(device)._native.launched for device in (0, 1)] == [2, 2]
    with driver.use(EmulatedDriver()):  # another one in its place
        for _ in range(2):
            assert (host(numbaprims.abs(to_device(np.full(10, -3.0, np.float32)))) == 3).all()


@pytest.fixture
def cupy(gpu, monkeypatch):
    """A library with CuPy's attributes, in the memory of the emulated device."""
    module = types.ModuleType("cupy")
    current = types.SimpleNamespace(ptr=0)

    class ndarray:  # noqa: N801
        def __init__(self, shape, dtype, memptr=None, strides=None):
            self.kept = memptr = memptr or empty(shape, dtype)
            self.data = types.SimpleNamespace(ptr=memptr.pointer, device_id=0)
            self.shape, self.dtype = shape, np.dtype(dtype)
            self.strides = strides or empty(shape, dtype).strides
            self.device = types.SimpleNamespace(id=0)

        @property
        def __cuda_array_interface__(self):
            return {
                "shape": self.shape, "strides": self.strides, "typestr": self.dtype.str, "version": 3,
                "data": (self.data.ptr, False), "stream": current.ptr or 1,
            }  # fmt: skip

        def to_host(self):
            return DeviceArray(None, self.data.ptr, self.shape, self.strides, self.dtype, gpu).to_host()

    class Device:
        def __init__(self, index):
            pass

        __enter__ = __exit__ = lambda *_: None

    ndarray.__module__ = "cupy"
    module.ndarray = ndarray
    module.cuda = types.SimpleNamespace(
        Device=Device,
        runtime=types.SimpleNamespace(getDevice=lambda: module.device),
        alloc=lambda nbytes: empty((nbytes,), np.uint8),
        get_current_stream=lambda index: current,
    )
    module.current, module.device = current, 0
    module.of = lambda x: ndarray(x.shape, x.dtype, to_device(x))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_arrays_of_cupy(cupy, side, gpu, monkeypatch):
    hx = np.arange(-5.0, 5, dtype=np.float32).reshape(2, 5)
    x, out = cupy.of(hx), cupy.of(hx)
    for call in (lambda: numbaprims.abs(x, out=out), lambda: numbaprims.abs(x)):
        launched = side.launched
        known, found = recognised(call)
        assert known and side.launched > launched and type(found) is cupy.ndarray
        np.testing.assert_array_equal(found.to_host(), np.abs(hx))
    cupy.device = 1  # CuPy's current device is another
    np.testing.assert_array_equal(numbaprims.abs(x).to_host(), np.abs(hx))
    streams, launch = [], gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda *given: (streams.append(given[4]), launch(*given)))
    cupy.current.ptr = 99
    numbaprims.abs(x, out=out)
    assert streams == [99], "CuPy's current stream is asked for each time"


@pytest.fixture
def cuda(gpu, monkeypatch):
    """torch, whose tensors of the host stand for such in the memory of the emulated device."""
    torch = pytest.importorskip("torch")
    from numbaprims import device_arrays
    from numbaprims.cpu import known_tensors

    interface = known_tensors._interface()
    if interface is None:
        pytest.skip("torch older than DLPack's C interface")
    words, look, kept = interface
    there: dict[int, DeviceArray] = {}
    side = types.SimpleNamespace(torch=torch, stream=0, asked=0)
    address_of, real_empty = torch.Tensor.data_ptr, torch.empty

    def send(tensor):
        there[address_of(tensor)] = to_device(tensor.numpy())
        return tensor

    def looked(tensor, view):
        found = look(tensor, view)
        fields = (known_tensors.ctypes.c_int64 * 2).from_address(view)
        fields[:] = there[fields[0]].pointer, 2
        return found

    def stream(index):
        side.asked += 1
        return side.stream

    C = known_tensors.ctypes  # noqa: N806
    side.callback = C.PYFUNCTYPE(C.c_int, C.py_object, C.c_void_p)(looked)
    changed = words.copy()
    changed[known_tensors._LOOK] = C.cast(side.callback, C.c_void_p).value
    monkeypatch.setattr(known_tensors, "_interface", lambda: (changed, looked, kept))
    for name, value in (("is_cuda", True), ("is_cpu", False)):
        monkeypatch.setattr(torch.Tensor, name, property(lambda self, value=value: value), raising=False)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0, raising=False)
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: there[address_of(self)].pointer, raising=False)
    library = device_arrays._Torch(0)
    library._empty = lambda shape, dtype, device: send(real_empty(shape, dtype=dtype))
    strided = torch.empty_strided
    library._empty_strided = lambda shape, steps, dtype, device: send(strided(shape, steps, dtype=dtype))
    library._stream = stream
    monkeypatch.setitem(device_arrays._libraries, (device_arrays._Torch, 0), library)
    side.send, side.host = send, lambda tensor: there[address_of(tensor)].to_host()
    side.there = there
    return side


def test_tensors_of_torch(cuda, side, gpu, monkeypatch):
    torch = cuda.torch
    hx = torch.arange(-300.0, 300).reshape(12, 50)
    x, out = cuda.send(hx.clone()), cuda.send(torch.zeros(12, 50))
    for call, want in (
        (lambda: numbaprims.abs(x, out=out), hx.abs()),
        (lambda: numbaprims.abs(x), hx.abs()),
        (lambda: numbaprims.softmax(x), torch.softmax(hx, 1)),
        (lambda: numbaprims.reduce(x, "max", axis=1), hx.max(1)[0]),
    ):
        launched = side.launched
        known, found = recognised(call)
        assert known and side.launched > launched and type(found) is torch.Tensor and not side.raised
        np.testing.assert_allclose(cuda.host(found), want.numpy(), rtol=1e-5, atol=1e-7)
    streams, launch = [], gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda *given: (streams.append(given[4]), launch(*given)))
    cuda.stream = 99
    numbaprims.abs(x, out=out)
    with numbaprims.config(stream=5):
        for _ in range(3):
            numbaprims.abs(x, out=out)
    assert streams == [99, 5, 5, 5]
    x.requires_grad_()
    with pytest.raises(TypeError, match="requires grad"):
        numbaprims.abs(x, out=out)


def test_scratch_memory_of_torch(cuda, side):
    torch = cuda.torch
    x, out = cuda.send(torch.randn(3, 40_000)), cuda.send(torch.zeros(3))
    known, found = recognised(lambda: numbaprims.reduce(x, "sum", axis=1, out=out))
    before = len(cuda.there)
    launched = side.launched
    numbaprims.reduce(x, "sum", axis=1, out=out)
    assert known and side.launched > launched + 1 and len(cuda.there) >= before
    np.testing.assert_allclose(cuda.host(found), x.numpy().sum(1), rtol=1e-4, atol=1e-3)


def test_calls_of_compiled_code_go_to_the_device(gpu):
    """Where the process computes on GPUs: each through Python, as such launches are no programs of the host."""
    import numba

    @numba.njit
    def inside(a, b, out):
        numbaprims.gemm(a, b, out=out)
        return numbaprims.dropout(out, 0.5, seed=3)

    a, b = (np.arange(12, dtype=np.float32).reshape(shape) for shape in ((3, 4), (4, 3)))
    settings.set_defaults(device=gpu.kind)  # host_arrays_stay sets it back
    for _ in range(2):
        out = np.empty((3, 3), np.float32)
        gpu.launches.clear()
        dropped = inside(a, b, out)
        assert len(gpu.launches) == 2
        np.testing.assert_array_equal(out, a @ b)
        assert set((dropped / out).ravel()[1:]) <= {0.0, 2.0}
