"""Calls of torch's tensors that native code recognises: the same as of arrays, and what only tensors have."""

import concurrent.futures
import gc
import sys
import weakref

import helpers
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import numbaprims  # noqa: E402
from numbaprims.cpu import known_tensors  # noqa: E402
from numbaprims.ops import conv_plan, gemm_plan, primitive, product  # noqa: E402

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch older than DLPack's C interface"
    ),
]


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    numbaprims.dispatch.call.forget()


def recognised(call, where=primitive):
    return helpers.recognised(call, where, "_enter")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", ["plain", "turned", "stepped", "one element in front", "channels last"])
def test_any_tensor(dtype, form):
    x = torch.randn(2, 3, 4, 6).to(getattr(torch, dtype))
    x = {
        "plain": lambda: x,
        "turned": lambda: x.permute(3, 1, 0, 2),
        "stepped": lambda: x[:, ::2, 1:, ::3],
        "one element in front": lambda: x.flatten()[1:25],
        "channels last": lambda: x.to(memory_format=torch.channels_last),
    }[form]()
    for call, want in (
        (lambda: numbaprims.relu(x), x.relu()),
        (lambda: numbaprims.binary(x, x, "less"), x < x),
        (lambda: numbaprims.cast(x, "int32"), x.int()),
        (lambda: numbaprims.reduce(x, "max"), x.max()),
    ):
        known, found = recognised(call)
        assert known and type(found) is torch.Tensor and not found.requires_grad
        assert found.dtype == want.dtype and torch.equal(found, want)
        numbaprims.dispatch.call.forget()
        assert found.stride() == call().stride(), "lies as that of the first call does"
    out = torch.empty_like(x)
    known, found = recognised(lambda: numbaprims.relu(x, out=out))
    assert known and found is out and torch.equal(out, x.relu())


def test_products_and_plans():
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    for out in (None, torch.empty(4, 6)):
        known, found = recognised(lambda out=out: numbaprims.gemm(a, b, out=out), product)
        assert known and (out is None or found is out)
        torch.testing.assert_close(found, a @ b)
    plan = numbaprims.gemm.plan(b)
    known, found = helpers.recognised(lambda: plan(a), gemm_plan.arrays, "enter")
    assert known
    torch.testing.assert_close(found, a @ b)
    images, filters, bias = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 1, 1), torch.randn(4)
    plan = numbaprims.conv.plan(images.shape, filters, bias=bias)
    known, found = helpers.recognised(lambda: plan(images), conv_plan.arrays, "enter")
    assert known
    torch.testing.assert_close(found, torch.nn.functional.conv2d(images, filters, bias), rtol=1e-4, atol=1e-5)


def test_several_results_and_operands_that_are_not_given():
    x, one = torch.randn(4, 3, 5), torch.ones(3)
    for statistics in ((None, None), (one - 1, one)):
        call = lambda statistics=statistics: numbaprims.batch_norm_train(x, one, one - 1, *statistics)  # noqa: E731
        known, found = recognised(call)
        numbaprims.dispatch.call.forget()
        assert known
        for mine, first in zip(found, call(), strict=True):
            assert torch.equal(mine, first)


@pytest.mark.parametrize("threads", [1, 2])
def test_programs_that_native_code_does_not_run_alone(threads):
    """Those that need much scratch memory, or several threads."""
    x = torch.randn(1 << 19).to(torch.bfloat16)
    wide = torch.randn(99, 4000).T
    images, filters = torch.randn(1, 32, 28, 28), torch.randn(32, 32, 3, 3)
    with numbaprims.config(threads=threads):
        for call, want in (
            (lambda: numbaprims.binary(x, x, "add"), x + x),
            (lambda: numbaprims.softmax(wide, axis=1), wide.softmax(1)),
            (lambda: numbaprims.conv(images, filters), torch.nn.functional.conv2d(images, filters)),
        ):
            for _ in range(4):
                found = call()
                assert type(found) is torch.Tensor and found.dtype == want.dtype
                torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-3)


def test_arrays_and_tensors_are_two_kinds():
    x = torch.randn(3, 4)
    for _ in range(4):
        assert type(numbaprims.relu(x)) is torch.Tensor
        assert type(numbaprims.relu(x.numpy())) is np.ndarray
    out = torch.empty(3, 4)
    assert recognised(lambda: numbaprims.relu(x, out=out))[0]
    assert recognised(lambda: numbaprims.binary(x, x, "add"))[0]
    for wrong in (lambda: numbaprims.relu(x, out=out.numpy()), lambda: numbaprims.binary(x, x.numpy(), "add")):
        with pytest.raises(TypeError):
            wrong()


def test_what_requires_grad_is_refused_again():
    x, out = torch.randn(3, 4), torch.empty(3, 4)
    weight = torch.nn.Parameter(torch.randn(3, 4))
    assert recognised(lambda: numbaprims.relu(x, out=out))[0]
    for given, target in ((x.clone().requires_grad_(), out), (x, out.clone().requires_grad_()), (weight, out)):
        for _ in range(3):
            with pytest.raises(TypeError, match="requires grad"):
                numbaprims.relu(given, out=target)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            known, found = recognised(lambda: numbaprims.relu(weight))
            assert (
                known and torch.equal(found, weight.relu()) and found.is_inference() == (mode is torch.inference_mode)
            )
    with pytest.raises(TypeError, match="requires grad"):
        numbaprims.relu(weight)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")
def test_what_is_unusual_of_a_tensor_goes_the_long_way():
    x = torch.randn(3, 4)
    want = x.relu()
    assert recognised(lambda: numbaprims.relu(x))[0]
    negated = torch._neg_view((-x).clone())
    assert negated.is_neg() and torch.equal(numbaprims.relu(negated), want)
    unaligned = torch.frombuffer(bytearray(b"\0" + x.numpy().tobytes()), dtype=torch.float32, offset=1)
    assert unaligned.data_ptr() % 4
    for _ in range(3):
        assert torch.equal(numbaprims.relu(unaligned.reshape(3, 4)), want)

    class Own(torch.Tensor):
        pass

    assert torch.equal(numbaprims.relu(x.as_subclass(Own)), want)
    with pytest.raises(TypeError, match="vmap"):
        torch.func.vmap(numbaprims.relu)(torch.zeros(2, 3, 4))
    with pytest.raises(TypeError, match="traced"):
        torch.jit.trace(numbaprims.relu, (x,), check_trace=False)
    for other in (torch.zeros(3, 4, device="meta"), x.to_sparse()):
        with pytest.raises(TypeError):
            numbaprims.relu(other)
    assert recognised(lambda: numbaprims.relu(x))[0], "and afterwards as before"


def test_overlap_and_places_are_seen_again():
    room = torch.randn(32)
    assert recognised(lambda: numbaprims.abs(room[:10], out=room[10:20]))[0]
    for begin in (1, 9):
        with pytest.raises(ValueError, match="overlap|shares|memory"):
            numbaprims.abs(room[:10], out=room[begin : begin + 10])
    want = room[:10].abs()
    assert torch.equal(numbaprims.abs(room[:10], out=room[:10]), want)
    for n in (3, 4, 5, 3, 4):
        x = torch.randn(n)
        assert torch.equal(numbaprims.abs(x), x.abs())


def test_a_call_keeps_none_of_its_tensors():
    x = torch.randn(3, 4)

    def called():
        y = torch.randn(3, 4)
        assert recognised(lambda: numbaprims.binary(x, y, "add"))[0]
        return weakref.ref(y)

    kept = called()
    gc.collect()
    assert kept() is None


def test_references_are_kept_even():
    x = torch.randn(3, 4).to(torch.bfloat16)
    out = torch.empty_like(x)
    for call in (lambda: numbaprims.relu(x), lambda: numbaprims.relu(x, out=out)):
        kept = [call() for _ in range(4)]
        watched = (True, None, torch.from_numpy, torch.bfloat16, x, out, np.dtype(np.uint16))
        before = [sys.getrefcount(each) for each in watched]
        for _ in range(1000):
            result = call()
        after = [sys.getrefcount(each) for each in watched]
        assert all(abs(a - b) < 100 for a, b in zip(before, after, strict=True))
        assert all(torch.equal(each, result) for each in kept)
    result = numbaprims.relu(x)
    gone = weakref.ref(result)
    del result
    gc.collect()
    assert gone() is None


def test_calls_of_several_threads_at_once():
    x = torch.randn(1 << 19)
    want = x + x

    def work(_):
        out = torch.empty_like(x)
        for _ in range(10):
            out.zero_()
            if numbaprims.binary(x, x, "add", out=out) is not out or not torch.equal(out, want):
                return False
            if not torch.equal(numbaprims.binary(x, x, "add"), want):
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(3)))


def test_an_interface_that_says_something_else_is_not_taken(monkeypatch):
    monkeypatch.setattr(known_tensors, "_agrees", lambda tensor, view: False)
    known_tensors._interface.cache_clear()
    try:
        x = torch.randn(3, 4)
        known, found = recognised(lambda: numbaprims.relu(x))
        assert not known and torch.equal(found, x.relu())
    finally:
        known_tensors._interface.cache_clear()
