"""arrays and shapes: what is taken in, what is refused in which words, what goes out, and overlap."""

import subprocess
import sys

import numpy as np
import pytest
from helpers import FLOATS, LAYOUTS, OUT_LAYOUTS, from_float64, has_module, in_library, lay_out, nan_filled
from hypothesis import given, strategies as st

import numbaprims
from numbaprims import arrays, libraries, shapes

needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
LIBRARIES = ["numpy", pytest.param("torch", marks=needs_torch)]
DTYPES = tuple(arrays.DTYPES)


def an_array(dtype: str, library: str, shape=(3, 4)):
    storage = from_float64(np.arange(np.prod(shape)).reshape(shape), dtype)
    return storage, in_library(storage, dtype, library)


class Foreign:
    """An array of a library that numbaprims has never heard of, known by DLPack alone."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.device


# ---------------------------------------------------------------- in


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_enter_shares_memory(dtype, library):
    storage, x = an_array(dtype, library)
    view, name, of = arrays.enter(x, "x")
    assert type(view) is np.ndarray and view.dtype == arrays.DTYPES[dtype].storage
    assert (name, of.name) == (dtype, library)
    np.testing.assert_array_equal(view, storage)
    assert np.shares_memory(view, storage)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_enter_takes_any_strides(layout, dtype):
    storage = lay_out(from_float64(np.arange(12.0).reshape(3, 4), dtype), layout)
    view, name, _ = arrays.enter(in_library(storage, dtype), "x")
    np.testing.assert_array_equal(view, storage)
    assert name == dtype and view.flags.aligned
    assert np.shares_memory(view, storage) == (layout != "unaligned")
    if layout != "unaligned":
        assert view.strides == storage.strides


def test_enter_reads_subclasses_as_plain_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3))
    view, dtype, _ = arrays.enter(mapped, "x")
    assert type(view) is np.ndarray and dtype == "f32" and np.shares_memory(view, mapped)
    with pytest.raises(TypeError, match="x is a masked array"):
        arrays.enter(np.ma.zeros(3), "x")


def test_enter_reads_dlpack():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    view, dtype, library = arrays.enter(Foreign(array), "x")
    assert dtype == "f32" and library is arrays.NUMPY and np.shares_memory(view, array)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([1.0, 2.0], r"weight is a list; it must be a NumPy array, a torch tensor, or an array that speaks DLPack"),
        (1.0, r"weight is a float; it must be"),
        (None, r"weight is a NoneType"),
        (np.float32(1), r"weight is a float32 scalar"),
        (
            np.zeros(2, ">f4"),
            r"weight is big-endian \(>f4\); call weight.astype\(weight.dtype.newbyteorder\('='\)\)",
        ),
        (
            np.zeros((2, 3), np.complex64),
            r"weight is a complex64 array \(2, 3\); its dtype must be one of float64,",
        ),
        (
            np.zeros(2, np.uint16),
            r"weight is a uint16 array \(2,\); .*view bfloat16 bits as ml_dtypes.bfloat16",
        ),
        (np.array(["a"]), r"weight is a <U1 array \(1,\)"),
        (np.float32, "weight is the class float32; it must be a NumPy array"),
        (np.ndarray, "weight is the class ndarray; it must be a NumPy array"),
        (np.zeros(2, object), r"weight is a object array \(2,\)"),
        (Foreign(np.zeros(2, np.float32), (10, 1)), r"weight lives on DLPack device 10:1; CPUs and CUDA devices"),
        (
            type("Cuda", (), {"__cuda_array_interface__": {}})(),
            r"weight has a CUDA array interface of version None; 2 and 3 are read",
        ),
    ],
)
def test_enter_refuses_in_words(x, words):
    with pytest.raises(TypeError, match=words):
        arrays.enter(x, "weight")


@needs_torch
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_values_of_tensors_are_refused_in_words():
    import torch

    for x in (torch.ones(2, requires_grad=True), torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])):
        with pytest.raises(TypeError, match="lengths is a .*tensor.* whose values cannot be read") as refused:
            arrays.values_of(x, "lengths")
        assert "file an issue" not in str(refused.value)
    np.testing.assert_array_equal(arrays.values_of(torch.tensor([1, 2]), "lengths"), [1, 2])


@needs_torch
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_enter_refuses_tensors_in_words():
    import torch

    leaf = torch.zeros(3, requires_grad=True)
    for x, words in [
        (leaf, "x requires grad .* numbaprims.frontends.torch, or pass x.detach"),
        (leaf.bfloat16(), "x requires grad"),
        (torch.zeros(3, device="meta"), r"x lives on meta; move it with x.cpu\(\)"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "x is a nested tensor; pass its tensors one by"),
        (torch.Tensor, "x is the class Tensor; it must be a NumPy array"),
        (torch.eye(3).to_sparse(), r"x is a float32 tensor \(3, 3\) that has no plain CPU memory"),
        (torch.zeros(3, dtype=torch.int16), r"x is a int16 tensor \(3,\); its dtype must be one of"),
    ]:
        with pytest.raises(TypeError, match=words):
            arrays.enter(x, "x")
    with torch.no_grad():
        for x in (leaf, leaf.bfloat16()):
            assert np.shares_memory(arrays.enter(x, "x")[0], arrays.enter(x.detach(), "x")[0])


@needs_torch
def test_enter_resolves_lazy_negation():
    import torch

    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert x.is_neg()
    view, dtype, _ = arrays.enter(x, "x")
    assert dtype == "f32" and view.tolist() == [-2.0, 4.0]
    with pytest.raises(ValueError, match="out is read-only"):
        arrays.check_out(x, (2,), "f32")


def test_torch_and_ml_dtypes_are_not_imported_for_the_user():
    code = (
        "import sys, numpy as np; from numbaprims import arrays; arrays.enter(np.zeros(3), 'x'); "
        "arrays.dtype_of(np.zeros(3, complex)); print({'torch', 'ml_dtypes', 'numba'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_names_of_dtypes():
    for name, long in arrays.LONG_NAMES.items():
        assert arrays.dtype_name(name) == arrays.dtype_name(long) == name
        if name != "bf16":
            assert arrays.dtype_name(np.dtype(long)) == arrays.dtype_name(np.dtype(long).type) == name
            assert arrays.dtype_of(np.zeros(1, long)) == name
    assert arrays.dtype_of(np.zeros(1, complex)) is None
    for unknown in ("float8", np.int16, 3):
        with pytest.raises(TypeError, match="out_dtype is .*must be one of float64"):
            arrays.dtype_name(unknown)


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.ones((2, 3), ml_dtypes.bfloat16)
    assert arrays.dtype_of(x) == "bf16" == arrays.dtype_name(x.dtype) == arrays.dtype_name(ml_dtypes.bfloat16)
    view, dtype, library = arrays.enter(x, "x")
    assert dtype == "bf16" and view.dtype == np.uint16 and (view == 0x3F80).all()
    out, storage = library.empty((2, 2), dtype)
    storage[...] = view[:, :2]
    assert out.dtype == x.dtype and (out == 1).all()


@needs_torch
def test_names_of_torch_dtypes():
    import torch

    assert [arrays.dtype_name(getattr(torch, long)) for long in arrays.LONG_NAMES.values()] == list(DTYPES)


def test_describe():
    assert arrays.describe(np.zeros((8, 8), np.float32)) == "float32 array (8, 8)"
    assert arrays.describe([1]) == "list"
    assert arrays.describe(np.float64(1)) == "float64 scalar"


# ---------------------------------------------------------------- out


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_of_the_callers_library(dtype, library):
    _, x = an_array(dtype, library)
    of = arrays.enter(x, "x")[2]
    result, storage = of.empty((2, 5), dtype)
    assert type(result) is type(x) and result.dtype == x.dtype and tuple(result.shape) == (2, 5)
    values = from_float64(np.arange(10.0).reshape(2, 5), dtype)
    storage[...] = values
    np.testing.assert_array_equal(arrays.enter(result, "result")[0], values)
    assert storage.flags.c_contiguous
    np.testing.assert_array_equal(arrays.check_out(result, (2, 5), dtype, library=of), values)


@pytest.mark.parametrize("library", LIBRARIES)
def test_large_results_begin_at_a_line(library, monkeypatch):
    """Of each call, in any order of the dimensions; native code makes those that need not."""
    monkeypatch.setattr(libraries, "LARGE", 1 << 12)
    x = in_library(np.ones((40, 41, 3), np.float32), "f32", library)
    small = x[:4]
    for _ in range(3):
        for each in (x, x.swapaxes(0, 1)):
            y = arrays.enter(numbaprims.scale(each, 2.0), "y")[0]
            assert y.ctypes.data % 64 == 0 and (y == 2).all()
            assert y.strides == np.empty_like(arrays.enter(each, "x")[0]).strides
        assert (arrays.enter(numbaprims.scale(small, 2.0), "y")[0] == 2).all()


@pytest.mark.parametrize("layout", OUT_LAYOUTS)
def test_out_may_have_any_strides(layout):
    out = nan_filled((3, 4), "f32", layout)
    assert np.shares_memory(arrays.check_out(out, (3, 4), "f32"), out)


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (
            np.zeros((3, 5), np.float32),
            ValueError,
            r"out is a float32 array \(3, 5\); the result has shape \(3, 4\)",
        ),
        (np.zeros((3, 4)), TypeError, r"out is a float64 array \(3, 4\); the result is float32"),
        (lay_out(np.zeros((3, 4), np.float32), "readonly"), ValueError, "out is read-only"),
        (np.broadcast_to(np.float32(0), (3, 4)), ValueError, "out is read-only"),
        (
            lay_out(np.zeros((3, 4), np.float32), "unaligned"),
            ValueError,
            "out is not aligned to its 4-byte elements",
        ),
        (
            np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (3, 4), (4, 4)),
            ValueError,
            "its elements share memory with one another",
        ),
        (
            np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (3, 4), (0, 4)),
            ValueError,
            "its elements share memory with one another",
        ),
        ([[0.0] * 4] * 3, TypeError, "out is a list"),
    ],
)
def test_out_is_refused_in_words(out, error, words):
    with pytest.raises(error, match=words):
        arrays.check_out(out, (3, 4), "f32")


@needs_torch
def test_out_of_another_library_is_refused():
    import torch

    x, out = np.zeros((3, 4), np.float32), torch.zeros(3, 4)
    with pytest.raises(TypeError, match="the inputs are numpy arrays, so out must be one too"):
        arrays.check_out(out, (3, 4), "f32", library=arrays.NUMPY)
    with pytest.raises(TypeError, match=r"a is a float32 array \(3, 4\) and b a float32 tensor \(3, 4\)"):
        arrays.require_same(x, "a", out, "b")


# ---------------------------------------------------------------- overlap


def test_overlap():
    base = np.zeros((8, 8), np.float32)
    for out, x, exact_is_legal, legal in [
        (base[:4], base[4:], False, True),
        (base[:, ::2], base[:, 1::2], False, True),
        (base, base, True, True),
        (base, base[:], True, True),
        (base, base, False, False),
        (base, base.T, True, False),
        (base[:4], base[3:7], True, False),
        (base, np.broadcast_to(base[0], (8, 8)), True, False),
        (base[1:1], base, False, True),
        (base, base.view(np.int32), True, False),
    ]:
        if legal:
            arrays.check_overlap(out, [(x, "c", exact_is_legal)])
        else:
            with pytest.raises(ValueError, match="out shares memory with c"):
                arrays.check_overlap(out, [(np.zeros(3), "a", False), (x, "c", exact_is_legal)])


def test_overlap_that_is_too_hard_to_tell_is_refused():
    memory = np.zeros(1 << 20, np.int8)
    sizes, primes = (7, 7, 7, 7, 7), (97, 1009, 5003, 20011, 100003)
    one = np.lib.stride_tricks.as_strided(memory, sizes, primes)
    two = np.lib.stride_tricks.as_strided(memory[1:], sizes, tuple(p + 2 for p in primes))
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(one, two, max_work=1)
    with pytest.raises(ValueError, match="out (may share|shares)"):
        arrays.check_overlap(one, [(two, "a", False)])


@given(st.integers(0, 5), st.integers(0, 5), st.integers(-6, 6), st.integers(-6, 6))
def test_may_overlap_itself_is_never_wrongly_false(rows, columns, row_stride, column_stride):
    addresses = {i * row_stride + j * column_stride for i in range(rows) for j in range(columns)}
    overlaps = len(addresses) < rows * columns
    said = shapes.may_overlap_itself((rows, columns), (4 * row_stride, 4 * column_stride), 4)
    assert said or not overlaps


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["C", "F", "negative", "sliced", "padded"]))
def test_may_overlap_itself_accepts_slices(rows, columns, layout):
    x = lay_out(np.zeros((rows, columns), np.float32), layout)
    assert not shapes.may_overlap_itself(x.shape, x.strides, 4)
    assert shapes.element_strides(x) == tuple(s // 4 for s in x.strides)
