"""Pooling of `numbaprims.frontends.torch`: gradients of both orders, layouts, what is kept."""

import pytest

import numbaprims

torch = pytest.importorskip("torch")
from test_frontends_torch import both_orders, leaf  # noqa: E402
from torch.nn import functional  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402

pytestmark = pytest.mark.cpu
WINDOW = {"stride": 2, "padding": 1, "ceil_mode": True}
CALLS = [
    ("max_pool", (3,), {**WINDOW, "dilation": 2}),
    ("avg_pool", (3,), {**WINDOW, "count_include_pad": False}),
    ("avg_pool", (2,), {}),
    ("lp_pool", (3,), WINDOW),
    ("lp_pool", (2,), {"p": 1.0}),
    ("lp_pool", (2,), {"p": 3.0}),
    ("adaptive_max_pool", (3,), {}),
    ("adaptive_avg_pool", (3,), {}),
    ("global_max_pool", (), {}),
    ("global_avg_pool", (), {}),
]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name, args, words", CALLS, ids=[f"{call[0]}-{n}" for n, call in enumerate(CALLS)])
def test_gradients(name, args, words, layout):
    for size in ((7,), (6, 5)):
        x = leaf(2, *size, 3) if layout == "NHWC" else leaf(2, 3, *size)

        def pool(x):
            return getattr(nbt, name)(x, *args, layout=layout, **words)

        torch.testing.assert_close(pool(x), getattr(numbaprims, name)(x.detach(), *args, layout=layout, **words))
        both_orders(pool, x, fast=True)


@pytest.mark.parametrize("name, args, words", CALLS, ids=[f"{call[0]}-{n}" for n, call in enumerate(CALLS)])
def test_channels_that_lie_last_stay_there(name, args, words):
    plain = leaf(2, 3, 6, 5)
    last = plain.detach().to(memory_format=torch.channels_last).requires_grad_()
    found = []
    for x in (plain, last):
        y = getattr(nbt, name)(x, *args, **words)
        y.square().sum().backward()
        found.append((y, x.grad))
    torch.testing.assert_close(*found)
    assert y.is_contiguous(memory_format=torch.channels_last) and last.grad.permute(0, 2, 3, 1).is_contiguous()
    with torch.no_grad():
        again = getattr(nbt, name)(last, *args, **words)
    assert again.stride() == y.stride() and torch.equal(again, y)


def test_what_is_kept():
    x = leaf(2, 3, 8, 8)
    assert [z is x for z in nbt.max_pool(x, 2).grad_fn.saved_tensors] == [True]
    assert not nbt.avg_pool(x, 2).grad_fn.saved_tensors
    y, places = nbt.max_pool(x, 2, return_indices=True)
    assert y.requires_grad and not places.requires_grad
    unpooled = functional.max_unpool2d(y, places, 2)
    torch.testing.assert_close(unpooled.amax((2, 3)), x.amax((2, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_is_torchs_in_other_types(dtype):
    x, tolerance = leaf(2, 3, 9, 8, dtype=dtype), 1e-5 if dtype == torch.float32 else 0.02
    for ours, theirs in (
        (lambda x: nbt.max_pool(x, 3, stride=2, padding=1), lambda x: functional.max_pool2d(x, 3, 2, 1)),
        (lambda x: nbt.avg_pool(x, 3, stride=2, padding=1), lambda x: functional.avg_pool2d(x, 3, 2, 1)),
        (lambda x: nbt.adaptive_avg_pool(x, 2), lambda x: functional.adaptive_avg_pool2d(x, 2)),
    ):
        dy = torch.randn_like(theirs(x))
        pairs = [(f(x), torch.autograd.grad(f(x), x, dy)[0]) for f in (ours, theirs)]
        torch.testing.assert_close(*pairs, rtol=tolerance, atol=tolerance)


def test_autocast_is_torchs():
    image, volume = torch.randn(2, 3, 8, 8).bfloat16(), torch.randn(2, 3, 4, 4, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nbt.max_pool(image, 2).dtype == functional.max_pool2d(image, 2).dtype
        for ours, theirs in ((nbt.max_pool, functional.max_pool3d), (nbt.avg_pool, functional.avg_pool3d)):
            assert ours(volume, 2).dtype == theirs(volume, 2).dtype == torch.float32
