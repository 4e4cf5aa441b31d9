"""Arrays in device memory: whose they are, what is refused, and the road of a call through the real dispatcher."""

import sys
import types

import numpy as np
import pytest
from gpu.helpers import Interface, on_device
from helpers import has_module

import numbaprims
from numbaprims import arrays, device_arrays, device_views, dlpack, settings
from numbaprims.gpu import driver, target
from numbaprims.gpu.memory import DeviceArray, empty, to_device

needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")


# ---------------------------------------------------------------- our own arrays


@pytest.mark.parametrize(
    "x",
    [
        np.arange(12.0).reshape(3, 4),
        np.arange(24.0, dtype=np.float32).reshape(4, 6)[::-2, 1::2],
        np.ones(()),
        np.empty((0, 3), np.int8),
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.arange(6, dtype=np.float16).reshape(2, 3).T,
    ],
    ids=["C", "sliced", "scalar", "empty", "broadcast", "F"],
)
def test_there_and_back_keeps_values_and_strides(gpu, x):
    there = to_device(x)
    back = there.to_host()
    assert back.dtype == x.dtype and back.strides == x.strides and np.array_equal(back, x)
    assert np.array_equal(there.T.to_host(), x.T) and there.T.shape == x.T.shape
    assert there.nbytes == x.nbytes and there.size == x.size and there.device == 0


def test_views_are_numpys(gpu):
    x, there = on_device(4, 5, 6)
    for index in ((1,), (slice(1, None), ..., -1), (None, slice(None, None, -2)), (2, 3, 4), (...,)):
        assert np.array_equal(there[index].to_host(), x[index])
    assert np.array_equal(there.transpose(1, 0, 2).to_host(), x.transpose(1, 0, 2))
    assert np.array_equal(there.view(np.int32).to_host(), x.view(np.int32))
    with pytest.raises(TypeError, match="not by"):
        there[[0, 1]]
    with pytest.raises(ValueError, match="takes 4 bytes"):
        there.view(np.float64)
    with pytest.raises(TypeError, match="to_host"):
        np.asarray(there)


def test_memory_is_given_back_with_the_last_view(gpu):
    freed = []
    gpu.free = lambda pointer, stream: freed.append(pointer)
    x = empty((4, 4), np.float32)
    pointer, row = x.pointer, x[1]
    del x
    assert freed == []
    del row
    assert freed == [pointer]


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("with_a", [False, True])
def test_a_call_runs_on_the_device_of_its_arrays(gpu, toy_ger, dtype, with_a):
    (hx, x), (hy, y), (ha, a) = on_device(5, dtype=dtype), on_device(7, dtype=dtype), on_device(5, 7, dtype=dtype)
    got = numbaprims.ger(x, y, a=a if with_a else None, alpha=2.0)
    assert type(got) is DeviceArray and got.dtype == dtype and got.driver is gpu
    want = 2 * np.outer(hx, hy) + (ha if with_a else 0)
    np.testing.assert_array_equal(got.to_host(), want)
    launches = len(gpu.launches)
    np.testing.assert_array_equal(numbaprims.ger(x, y, a=a if with_a else None).to_host(), want - np.outer(hx, hy))
    assert len(gpu.launches) == launches + 1, "the launcher is kept"


def test_out_is_written_in_any_layout(gpu, toy_ger):
    (hx, x), (hy, y) = on_device(9), on_device(8)
    x, hx, y, hy = x[::2], hx[::2], y[::-1], hy[::-1]
    for out in (empty((5, 8), np.float32), empty((8, 5), np.float32).T, empty((10, 16), np.float32)[::2, ::2]):
        assert numbaprims.ger(x, y, out=out) is out
        np.testing.assert_array_equal(out.to_host(), np.outer(hx, hy))


def test_a_may_be_updated_in_place(gpu, toy_ger):
    (hx, x), (hy, y), (hw, w) = on_device(6), on_device(3), on_device(6, 3)
    for _ in range(2):  # the second call takes the short way
        assert numbaprims.ger(x, y, a=w, alpha=-1.0, out=w) is w
        hw = hw - np.outer(hx, hy)
        np.testing.assert_array_equal(w.to_host(), hw)
    again = DeviceArray(w.memory, w.pointer, w.shape, w.strides, w.dtype, gpu)  # the same memory, another object
    numbaprims.ger(x, y, a=again, alpha=1.0, out=w)
    np.testing.assert_array_equal(w.to_host(), hw + np.outer(hx, hy))


def test_overlaps_are_refused_by_their_addresses(gpu, toy_ger):
    (_, x), (_, y), (_, w) = on_device(4), on_device(4), on_device(8, 4)
    with pytest.raises(ValueError, match="out shares memory with a; only out=a itself"):
        numbaprims.ger(x, y, a=w[:4], out=w[1:5])
    with pytest.raises(ValueError, match="out shares memory with x"):
        numbaprims.ger(w[0], y, out=w[:4])
    with pytest.raises(ValueError, match="out shares memory with x"):
        numbaprims.ger(w[0], y, out=w[:4])
    interleaved = empty((4, 8), np.float32)
    numbaprims.ger(x, y, a=to_device(np.zeros((4, 4), np.float32)), out=interleaved[:, ::2])
    numbaprims.ger(x, y, a=interleaved[:, ::2], out=interleaved[:, 1::2])  # between one another, not on top


def test_what_is_refused_is_refused_in_words(gpu, toy_ger):
    (hx, x), (_, y) = on_device(4), on_device(4, dtype=np.float64)
    with pytest.raises(TypeError, match="x is a float32 DeviceArray .* and y a float64"):
        numbaprims.ger(x, y)
    with pytest.raises(TypeError, match=r"on \w+:0 and y a float32 array \(4,\) on cpu; .* one device"):
        numbaprims.ger(x, hx)
    with pytest.raises(TypeError, match=r"out is a float32 array .* the inputs are numbaprims arrays on \w+:0"):
        numbaprims.ger(x, x, out=np.empty((4, 4), np.float32))
    with pytest.raises(ValueError, match="out is a float32 DeviceArray .*; the result has shape"):
        numbaprims.ger(x, x, out=empty((3, 4), np.float32))
    with pytest.raises(TypeError, match="its dtype must be one of"):
        numbaprims.ger(to_device(np.zeros(3, np.int16)), x)
    with pytest.raises(NotImplementedError, match=r"no ger solver takes this problem \(toy: it converts nothing\)"):
        numbaprims.ger(*[to_device(np.zeros(3, np.float16))] * 2)
    for device in ("cpu", "reference", "cuda:1"):
        with numbaprims.config(device=device), pytest.raises(TypeError, match=r"x lies on \w+:0 and the settings"):
            numbaprims.ger(x, x)


def test_a_stem_without_gpu_kernels_says_so(gpu):
    from numbaprims.dispatch import registry

    with pytest.raises(NotImplementedError, match="toy has no kernels for GPUs yet; copy its arrays to the CPU"):
        registry.solvers("toy", "cuda")


def test_two_gpus(toy_ger):
    from ptx_emulator.driver import EmulatedDriver

    first, second = EmulatedDriver(target.A100, 0), EmulatedDriver(target.H200, 1)
    with driver.use(first, second):
        x, y = to_device(np.ones(3, np.float32)), to_device(np.ones(3, np.float32), device=1)
        numbaprims.ger(x, x)
        assert len(first.launches) == 1 and not second.launches
        result = numbaprims.ger(y, y)
        assert result.driver is second and len(second.launches) == 1 and len(first.launches) == 1
        with pytest.raises(TypeError, match="on emulated:0 and y a .* on emulated:1"):
            numbaprims.ger(x, y)
        with pytest.raises(driver.NoGpu, match="device 2 is not there"):
            to_device(np.ones(3), device=2)


def test_explain_looks_at_the_device(gpu, toy_ger):
    _, x = on_device(4)
    assert [row.solver for row in numbaprims.explain("ger", x, x)] == ["toy"]
    assert numbaprims.explain("ger", x, y=x).chosen.source.endswith("toy.py")
    with numbaprims.config(device="emulated"):
        assert numbaprims.explain("ger", np.ones(3, np.float32), np.ones(3, np.float32)).chosen.solver == "toy"
    assert numbaprims.explain("ger", np.ones(3, np.float32), np.ones(3, np.float32)).chosen.solver != "toy"


def test_explain_measures_by_the_clock_of_the_device(gpu, toy_ger, monkeypatch):
    from numbaprims.gpu.seam import HostClock

    asked = []
    monkeypatch.setattr(gpu, "clock", lambda: asked.append(1) or HostClock(gpu))
    _, x = on_device(4)
    table = numbaprims.explain("ger", x, x, measure=True)
    assert table["toy"].measured > 0 and asked
    host = np.ones(4, np.float32)
    assert all(row.measured is None for row in numbaprims.explain("ger", host, host)), "another device's times"


# ---------------------------------------------------------------- arrays of the host


def test_arrays_of_the_host_are_copied_both_ways(gpu, toy_ger, capsys):
    x, y = np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32)
    w = np.ones((6, 8), np.float32)
    for device in ("cuda", "emulated", "cuda:0"):
        with numbaprims.config(device=device, verbose=1):
            got = numbaprims.ger(x, y, alpha=2.0)
            assert type(got) is np.ndarray and np.array_equal(got, 2 * np.outer(x, y))
            numbaprims.ger(x, y, a=w[::2, ::2], out=w[::2, ::2])
    want = np.ones((6, 8), np.float32)
    want[::2, ::2] += 3 * np.outer(x, y)
    np.testing.assert_array_equal(w, want)
    said = capsys.readouterr().err
    assert "ger: 28 B copied to cuda, 48 B back" in said and "ger: 76 B copied to cuda:0, 48 B back" in said
    assert len(gpu.launches) == 6
    assert np.array_equal(numbaprims.ger(x, y), np.outer(x, y)) and len(gpu.launches) == 6


def test_repeated_calls_stay_on_the_device(gpu, toy_ger):
    """The short ways of calls that repeat are for kernels of the CPU."""
    x = np.arange(3, dtype=np.float32)
    out = np.empty((3, 3), np.float32)
    with numbaprims.config(device="cuda"):
        for _ in range(4):
            numbaprims.ger(x, x, out=out)
    assert len(gpu.launches) == 4
    _, there = on_device(3)
    for _ in range(4):
        numbaprims.ger(there, there)
    assert len(gpu.launches) == 8


@needs_torch
def test_tensors_of_the_host_are_copied_both_ways(gpu, toy_ger):
    import torch

    x = torch.arange(3.0)
    with numbaprims.config(device="emulated"):
        got = numbaprims.ger(x, x)
    assert isinstance(got, torch.Tensor) and torch.equal(got, torch.outer(x, x)) and len(gpu.launches) == 1


def test_without_a_gpu_the_words_are_clear(monkeypatch, toy_ger):
    from numbaprims.gpu import cuda_driver

    def none():
        raise driver.NoGpu("no NVIDIA driver was found on this machine")

    monkeypatch.setattr(cuda_driver, "bindings", none)
    monkeypatch.setattr(driver, "_drivers", {})
    x = np.ones(3, np.float32)
    with numbaprims.config(device="cuda"), pytest.raises(driver.NoGpu, match="no NVIDIA driver was found"):
        numbaprims.ger(x, x)


# ---------------------------------------------------------------- other libraries


@pytest.mark.parametrize("version", [2, 3])
def test_any_cuda_array_interface_enters(gpu, toy_ger, version):
    (hx, x), (hy, y) = on_device(6), on_device(4)
    got = numbaprims.ger(Interface(x[::2], version), Interface(y, version))
    assert type(got) is DeviceArray, "results for a library unknown are ours"
    np.testing.assert_array_equal(got.to_host(), np.outer(hx[::2], hy))


def test_what_an_interface_may_not_be(gpu):
    _, x = on_device(4, 4)
    for change, words in [
        ({"version": 1}, "version 1; 2 and 3"),
        ({"mask": x}, "has a mask"),
        ({"typestr": ">f4"}, "x is big-endian|dtype must be"),
        ({"data": (x.pointer + 2, False)}, "not aligned to its 4-byte elements"),
        ({"strides": (18, 4)}, "not aligned"),
        ({"typestr": "<c8"}, "dtype must be"),
    ]:
        with pytest.raises(TypeError, match=words):
            arrays.enter(Interface(x, **change), "x")
    for kind, words in [
        (">f4", "x is big-endian"), ("<u2", "of uint16; .*; view bfloat16"), ("<c8", "of complex64; its dtype must"),
        ("|V4", "its dtype must"),
    ]:  # fmt: skip
        bare = types.SimpleNamespace(__cuda_array_interface__=Interface(x, typestr=kind).__cuda_array_interface__)
        with pytest.raises(TypeError, match=words):
            arrays.enter(bare, "x")
    with pytest.raises(TypeError, match="version None; 2 and 3"):
        arrays.enter(Interface(x, version=None), "x")
    assert arrays.enter(Interface(x, shape=(0, 4), strides=None, data=(None, False)), "x")[0].pointer == 0
    with pytest.raises(ValueError, match="out is read-only"):
        arrays.check_out(Interface(x, readonly=True), (4, 4), "f32")
    broadcast = Interface(x, strides=(0, 4))
    with pytest.raises(ValueError, match="its elements share memory with one another"):
        arrays.check_out(broadcast, (4, 4), "f32")


class OnlyDlpack:
    """A NumPy array that says it lies on a GPU."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **how):
        self.how = how
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (2, 0)


@pytest.mark.parametrize("dtype", [getattr(np, long) for long in arrays.LONG_NAMES.values() if long != "bfloat16"])
def test_dlpack_alone_enters(gpu, dtype):
    x = OnlyDlpack(np.arange(12).astype(dtype).reshape(3, 4)[:, ::2])
    view, name, library = arrays.enter(x, "x")
    assert view.pointer == x.array.ctypes.data and view.shape == (3, 2) and view.strides == x.array.strides
    assert arrays.LONG_NAMES[name] == x.dtype.name and view.dtype == arrays.DTYPES[name].storage
    assert library.device == f"{gpu.kind}:0" and x.how == {"stream": 1, "max_version": (1, 0)}
    with pytest.raises(TypeError, match="DLPack type 5 of 128 bits"):
        arrays.enter(OnlyDlpack(np.zeros(3, np.complex128)), "x")
    if view.itemsize > 1:
        with pytest.raises(TypeError, match=f"x is not aligned to its {view.itemsize}-byte elements"):
            arrays.enter(OnlyDlpack(np.zeros(33, np.uint8)[1:].view(dtype)), "x")


def test_a_capsule_lives_as_long_as_the_views_of_it(gpu):
    """Not as long as the array, which would collect one a call."""
    x = OnlyDlpack(np.zeros((3, 4), np.float32))
    counts = [sys.getrefcount(x.array)]
    view = arrays.enter(x, "x")[0].T
    counts.append(sys.getrefcount(x.array))
    del view
    counts.append(sys.getrefcount(x.array))
    assert counts[1] > counts[0] == counts[2]


@needs_torch
def test_dlpack_reads_both_versions_of_a_capsule():
    import torch

    x = torch.arange(6.0).reshape(2, 3)[:, 1:].bfloat16()
    for how in ({}, {"max_version": (1, 0)}):
        capsule = x.__dlpack__(**how)
        found = dlpack.read(capsule)
        assert found == (x.data_ptr(), (2, 2), tuple(x.stride()), "bf16", False)
    torch.from_dlpack(capsule)
    with pytest.raises(ValueError, match="used before"):
        dlpack.read(capsule)


@needs_torch
def test_torch_tensors_of_a_gpu_enter(gpu, monkeypatch):
    import torch

    class Cuda(torch.Tensor):
        """A tensor of the host that says it lies on a GPU."""

        is_cuda = property(lambda self: True)
        get_device = lambda self: 0  # noqa: E731

    device_arrays._libraries.clear()
    monkeypatch.setattr(torch, "device", lambda kind, index: "cpu")
    raw = torch._C.__dict__.get("_cuda_getCurrentRawStream")
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 40 + index, raising=raw is not None)
    base = torch.arange(24.0).reshape(4, 6).as_subclass(Cuda)
    view, dtype, library = arrays.enter(base[1:, ::2], "x")
    assert dtype == "f32" and view.shape == (3, 3) and view.strides == (24, 8) and view.writeable
    assert view.pointer == base.data_ptr() + 24 and library.device == "cuda:0" and library.stream() == 40
    assert arrays.enter(base.bfloat16(), "x")[0].dtype == np.uint16
    negated = torch.zeros(2, dtype=torch.complex64).conj().imag.as_subclass(Cuda)
    assert negated.is_neg() and not arrays.enter(negated, "x")[0].writeable, "a copy of lazily negated values"
    with pytest.raises(TypeError, match="x requires grad"):
        arrays.enter(base.clone().requires_grad_(), "x")
    with pytest.raises(TypeError, match="int16 tensor"):
        arrays.enter(base.to(torch.int16), "x")
    result, storage = library.empty((2, 3), "f16")
    assert result.dtype is torch.float16 and storage.pointer == result.data_ptr() and storage.strides == (6, 2)
    result, storage = library.empty_like(view.T, "f32")
    assert tuple(result.stride()) == (1, 3) and storage.strides == (4, 12)
    pointer, owner = library.scratch(100)
    assert owner.nbytes == 100 and pointer == owner.data_ptr()
    part = base[1:, ::2]
    turned = library.over(part, view.through(lambda x: x.T[1:]), "f32")
    assert torch.equal(turned, part.T[1:]) and turned.data_ptr() == part.data_ptr() + 8
    device_arrays._libraries.clear()


@pytest.fixture
def cupy(gpu, monkeypatch):
    """As much of CuPy as is asked for, over our own arrays."""
    module = types.ModuleType("cupy")

    class Pointer(int):
        ptr = property(int)
        __add__ = lambda self, by: Pointer(int(self) + by)  # noqa: E731

    class Array:
        def __init__(self, shape, dtype, memptr, strides):
            self.kept, self.shape, self.dtype, self.strides = memptr, shape, np.dtype(dtype), strides
            self.data = Pointer(getattr(memptr, "pointer", memptr))
            self.device = types.SimpleNamespace(id=0)

        @property
        def __cuda_array_interface__(self):
            return {"shape": self.shape, "typestr": self.dtype.str, "strides": self.strides, "version": 3,
                    "data": (self.data.ptr, False), "stream": 1}  # fmt: skip

    class Device:
        def __init__(self, index):
            assert index == 0

        __enter__ = __exit__ = lambda *_: None

    Array.__module__ = "cupy"
    Array.__name__ = "ndarray"
    module.ndarray = Array
    module.cuda = types.SimpleNamespace(
        alloc=lambda nbytes: empty((nbytes,), np.uint8), Device=Device,
        get_current_stream=lambda index: types.SimpleNamespace(ptr=33),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", module)
    device_arrays._libraries.clear()
    yield module
    device_arrays._libraries.clear()


def test_cupy_arrays_give_cupy_arrays(cupy, gpu, toy_ger, monkeypatch):
    monkeypatch.setattr(device_arrays._Cupy, "__init__", lambda self, index: super(
        device_arrays._Cupy, self).__init__(index, "emulated"))  # fmt: skip
    values = np.arange(4, dtype=np.float32)
    there = to_device(values)
    x = cupy.ndarray((4,), np.float32, there, (4,))
    streams = []
    launch = gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda *given: (streams.append(given[4]), launch(*given)))
    got = numbaprims.ger(x, x)
    assert type(got) is cupy.ndarray and got.shape == (4, 4) and got.strides == (16, 4) and streams == [33]
    np.testing.assert_array_equal(got.kept.view(np.uint8).to_host().view(np.float32).reshape(4, 4),
                                  np.outer(values, values))  # fmt: skip
    view, dtype, library = arrays.enter(x, "x")
    part = library.over(x, view.through(lambda x: x[1:].reshape(3, 1)), dtype)
    assert type(part) is cupy.ndarray and (part.data.ptr, part.shape, part.strides) == (x.data.ptr + 4, (3, 1), (4, 4))


def test_views_answer_what_checks_ask(gpu):
    _, x = on_device(4, 6)
    view, _, _ = arrays.enter(x, "x")
    like = np.empty((4, 6), np.float32)
    assert (view.ndim, view.size, view.nbytes, view.itemsize) == (2, 24, 96, 4)
    for change in (
        lambda v: v.T,
        lambda v: v.swapaxes(0, 1),
        lambda v: v[1],
        lambda v: v[:, 0],
        lambda v: v[::-1, 2:],
        lambda v: np.broadcast_to(v, (3, 4, 6)),
    ):
        got, want = change(view), change(like)
        assert got.shape == want.shape and got.strides == want.strides
        offset = want.__array_interface__["data"][0] - like.__array_interface__["data"][0]
        assert got.pointer - view.pointer == offset
        assert got.flags.c_contiguous == want.flags.c_contiguous
    assert view[1].reshape(-1, 1, 1).shape == (6, 1, 1) and view[1].reshape(-1, 1, 1).strides == (4, 4, 4)
    assert view[:1, :1].reshape(()).shape == () and view[:, :1].reshape((1, 4)).strides == (4, 24)
    with pytest.raises(ValueError, match="by a copy only"):
        view.T.reshape(-1)
    assert view[:, :4].reshape((2, 2, 4)).strides == (48, 24, 4)
    for shape in (16, (2, 8), (3, 5)):
        with pytest.raises(ValueError, match="by a copy only"):
            view[:, :4].reshape(shape)
    assert view.reshape(2, -1).shape == (2, 12) and view.reshape((3, 2, 4)).strides == (32, 16, 4)
    assert np.may_share_memory(view, view[1]) and not np.shares_memory(view[:, ::2], view[:, 1::2])
    assert not np.may_share_memory(view, like)
    with pytest.raises(TypeError):
        np.add(view, 1)
    with pytest.raises(TypeError):
        np.sum(view)
    for order in (view, view.T, view[:, ::-1]):
        like_order = np.lib.stride_tricks.as_strided(like, order.shape, [abs(s) for s in order.strides])
        assert device_views.dense_strides(order) == np.empty_like(like_order).strides


def test_settings_stay_as_they_were():
    assert settings.current().device is None


def test_results_of_another_size_lie_as_their_operand(gpu):
    """In the order of its memory, by strides of their own elements."""
    x = to_device(np.arange(15, dtype=np.float16).reshape(3, 5)).T
    for to in ("float64", "int8"):
        y = numbaprims.cast(x, to)
        assert y.strides == (y.dtype.itemsize, 5 * y.dtype.itemsize)
        np.testing.assert_array_equal(y.to_host(), x.to_host())
