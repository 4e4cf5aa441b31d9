"""Streams: where calls run, whose they wait for, and when memory goes back."""

import collections
import functools
import gc
import sys
import types
import weakref

import numpy as np
import pytest
from gpu.helpers import Interface, on_device
from ptx_emulator.driver import EmulatedDriver

import numbaprims
from numbaprims import arrays, device_arrays
from numbaprims.gpu import driver
from numbaprims.gpu.memory import empty, to_device
from numbaprims.ops import gather


class Stream:
    cuda_stream = 77


class CoreStream:
    def __cuda_stream__(self):
        return (0, 78)


def test_a_call_runs_on_the_stream_of_the_settings(gpu, toy_ger, monkeypatch):
    streams = []
    launch = gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda *given: (streams.append(given[4]), launch(*given)))
    _, x = on_device(4)
    numbaprims.ger(x, x)
    for stream in (Stream(), CoreStream(), 79, types.SimpleNamespace(handle=types.SimpleNamespace(value=80))):
        with numbaprims.config(stream=stream):
            numbaprims.ger(x, x)
    assert streams == [0, 77, 78, 79, 80]
    with pytest.raises(TypeError, match="stream is .*; it must be a stream of torch"):
        device_arrays.stream_address(object())


def test_a_call_with_out_allocates_and_waits_for_nothing(gpu, toy_ger, monkeypatch):
    """So that it can be captured in a CUDA graph."""
    _, x = on_device(4)
    out = empty((4, 4), np.float32)
    numbaprims.ger(x, x, out=out)
    for name in ("alloc", "copy", "synchronise", "load"):
        monkeypatch.setattr(gpu, name, lambda *_, name=name: pytest.fail(f"{name} was called"))
    numbaprims.ger(x, x, out=out)


def test_memory_is_given_back_after_the_streams_it_was_used_on(gpu, toy_ger, monkeypatch):
    freed = []
    monkeypatch.setattr(gpu, "free", lambda pointer, streams: freed.append((pointer, *streams)))
    _, x = on_device(4)
    out, stream = empty((4, 4), np.float32, stream=80), Stream()
    alive, pointer = weakref.ref(stream), out.pointer
    for chosen in (stream, 79, None, stream):
        with numbaprims.config(stream=chosen):
            numbaprims.ger(x, x, out=out[:, ::-1])
    del stream, chosen
    assert alive() is not None, "a stream that is destroyed can't be waited for"
    freed.clear()
    del out
    assert freed == [(pointer, 80, 77, 79, 0)]
    del x
    gc.collect()
    assert [streams for _, *streams in freed[1:]] == [[0, 77, 79]] and alive() is None


def test_a_producers_stream_is_waited_for(gpu, toy_ger, monkeypatch):
    """Version 3: the array may be written until what its stream holds has ended."""
    said, launch = [], gpu.launch
    monkeypatch.setattr(gpu, "follow", lambda *streams: said.append(streams))
    monkeypatch.setattr(gpu, "launch", lambda *given: (said.append(given[4]), launch(*given)))
    _, x = on_device(4)
    for stream, chosen, wanted in [
        (None, None, [0]), (1, None, [0]), (2, None, [(0, 2), 0]), (91, None, [(0, 91), 0]),
        (None, 77, [77]), (1, 77, [(77, 0), 77]), (77, 77, [77]), (2, 2, [2]),
    ]:  # fmt: skip
        with numbaprims.config(stream=chosen):
            for _ in range(2):  # the second call takes the short way
                numbaprims.ger(Interface(x, stream=stream), Interface(x))
                assert said == wanted
                said.clear()
    with pytest.raises(ValueError, match="x says it is written on stream 0, which its interface forbids"):
        numbaprims.ger(Interface(x, stream=0), x)
    out = empty((4, 4), np.float32)
    numbaprims.ger(x, x, out=Interface(out, stream=91))
    assert said[-1] == 0 and set(said[:-1]) == {(0, 91)}, "the result is not written while others still read it"


def test_our_arrays_tell_the_stream_they_are_written_on(gpu, toy_ger):
    _, x = on_device(4)

    def told(array):
        return array.__cuda_array_interface__["stream"]

    assert told(x) is None, "a copy from the host has ended"
    assert told(empty((3,), np.float32, stream=5)) == 5 and told(empty((3,), np.float32)) == 1
    result = numbaprims.ger(x, x)
    assert told(result) == told(result[1:].T) == 1, "0 is forbidden"
    with numbaprims.config(stream=Stream()):
        assert told(numbaprims.ger(x, x)) == 77
        assert told(result) == 1
        numbaprims.ger(x, x, out=result)
        assert told(result) == told(result[0]) == 77
    numbaprims.ger(x, x, out=result)
    assert told(result) == 1


class Deferring(EmulatedDriver):
    """A kernel on another stream than the default one runs when that stream is waited for, no sooner."""

    def __init__(self):
        super().__init__()
        self.waiting = collections.defaultdict(list)

    def launch(self, function, grid, block, shared, stream, *more):
        self.later(stream, functools.partial(super().launch, function, grid, block, shared, stream, *more))

    def free(self, pointer, streams):
        self.later(next(iter(streams)), functools.partial(super().free, pointer, streams))

    def later(self, stream, run):
        self.waiting[stream].append(run)
        if stream == 0:
            self.synchronise(0)

    def synchronise(self, stream):
        while self.waiting[stream]:
            self.waiting[stream].pop(0)()

    def copy(self, destination, source, nbytes, stream):
        self.synchronise(stream)
        super().copy(destination, source, nbytes, stream)

    def native(self):
        return None  # it would launch past us


def test_the_host_reads_and_writes_after_the_stream_of_a_call():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    here = Deferring()
    with driver.use(here), numbaprims.config(stream=77):
        x, good, bad = map(to_device, (values, np.array([2, 0]), np.array([0, 9])))
        for function in (numbaprims.gather, numbaprims.embedding):
            with pytest.raises(IndexError, match=r"indices\[1\] is 9; of 3 elements"):
                function(x, bad)
            result = function(x, good)
            assert np.array_equal(result.to_host(), values[[2, 0]])
        with pytest.raises(IndexError, match=r"indices\[1\] is 9; of 5 elements"):
            numbaprims.gather_backward(x[:2], bad, 5)
        made = numbaprims.cast(x[0], "int64")
        assert here.waiting[77] and arrays.values_of(made, "lengths").tolist() == [0, 1, 2, 3]
        made = numbaprims.cast(x[0], "int64")
        assert here.waiting[77] and gather._element(Interface(made), 3) == 3, "of any library"
        made = numbaprims.cast(x[0], "int64")
        made.set(np.full(4, 7))
        assert (made.to_host() == 7).all()


@pytest.fixture(params=["torch", "cupy"])
def library(request, monkeypatch):
    """A library of device arrays, as far as allocating goes: `given` notes the stream of each allocation."""
    name, given, current = request.param, [], [33]

    class Under:
        def __init__(self, stream, device=None):
            self.ptr = stream

        def __enter__(self):
            current.append(self.ptr)

        def __exit__(self, *_):
            current.pop()

    class Array:
        def __init__(self, *_, **__):
            self.data = types.SimpleNamespace(ptr=4096)

    class TorchsExternal(Under):
        def __init__(self, stream, device=None):
            super().__init__(stream or 99, device)  # any stream of its pool

    module = types.ModuleType(name)
    module.cuda = types.SimpleNamespace(
        ExternalStream=TorchsExternal if name == "torch" else Under, default_stream=lambda device: Under(0),
        stream=lambda stream: stream, Device=lambda index: Under(current[-1]),
        alloc=lambda nbytes: given.append(current[-1]), get_current_stream=lambda index: Under(30 + index),
    )  # fmt: skip
    module.empty = module.empty_strided = lambda *_, **__: (
        given.append(current[-1]) or types.SimpleNamespace(data_ptr=lambda: 4096)
    )
    module.ndarray, module.device = Array, lambda kind, index: (kind, index)
    module._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 30 + index)
    for long in arrays.LONG_NAMES.values():
        setattr(module, long, long)
    monkeypatch.setitem(sys.modules, name, module)
    kind = {"torch": device_arrays._Torch, "cupy": device_arrays._Cupy}[name]
    return types.SimpleNamespace(of=kind(3), given=given, current=current)


def test_memory_of_a_call_is_allocated_under_its_stream(library):
    """Else the library gives scratch memory to others while kernels of the call still use it."""
    like = np.empty((3, 2), np.float32).T
    for chosen, stream in [(None, 33), (79, 79), (Stream(), 77), (0, 0), (1, 0), (33, 33)]:
        with numbaprims.config(stream=chosen):
            library.of.empty((2, 3), "f32")
            library.of.empty_like(like, "f32")
            _pointer, _owner = library.of.scratch(100)
            assert library.of.stream() == stream
        assert library.given == [stream] * 3 and library.current == [33]
        library.given.clear()


def test_results_for_numba_lie_on_the_device_of_its_arrays(monkeypatch):
    entered = []

    class Gpu:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            entered.append(self.index)

        def __exit__(self, *_):
            entered.pop()

    module = types.ModuleType("numba.cuda")
    module.gpus = {2: Gpu(2)}
    module.device_array = lambda shape, dtype, strides: (tuple(entered), shape, dtype, strides)
    monkeypatch.setitem(sys.modules, "numba.cuda", module)
    assert device_arrays._Numba(2).allocate((3,), (4,), "f32") == ((2,), (3,), np.float32, (4,)) and not entered
    memory = types.SimpleNamespace(context=types.SimpleNamespace(device=types.SimpleNamespace(id=2)))
    theirs = types.SimpleNamespace(gpu_data=memory, __cuda_array_interface__={})
    assert device_arrays.device_of(theirs) == "cuda:2", "they tell it in no other way"
