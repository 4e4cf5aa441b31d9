"""Resizing under torch: interpolate's results, gradients, memory formats, modules."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from test_frontends_torch import both_orders, leaf  # noqa: E402
from torch.nn import functional  # noqa: E402

import numbaprims  # noqa: E402
import numbaprims.frontends.torch as nbt  # noqa: E402
from numbaprims.frontends.torch import nn  # noqa: E402

pytestmark = pytest.mark.cpu
_NAMES = {("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}


def _theirs(mode, rank):
    return _NAMES.get((mode, rank), mode.replace("_", "-"))


def _cases():
    rng = np.random.default_rng(3)
    for number in range(40):
        mode = ("nearest", "nearest_exact", "linear", "cubic")[number % 4]
        rank = 2 if mode == "cubic" else 1 + number // 4 % 3
        words = {"align_corners": bool(number // 8 % 2)} if mode in ("linear", "cubic") else {}
        if words and rank == 2 and number % 5 == 0:
            words["antialias"] = True
        # of odd sizes no place lies between two pixels, which torch rounds by the number of dimensions
        shape = (1, 2, *(2 * rng.integers(0, 12, rank) + 1).tolist())
        given = {"size": tuple(rng.integers(1, 24, rank).tolist())}
        if number % 3 == 0 and "antialias" not in words and max(shape[2:]) * 0.6 >= 1 and min(shape[2:]) > 2:
            given = {"scale": tuple((0.6 + rng.random(rank)).tolist())}
        yield pytest.param(mode, shape, given, words, id=f"{number}-{mode}-{rank}")


@pytest.mark.parametrize(("mode", "shape", "given", "words"), list(_cases()))
def test_it_is_interpolate(mode, shape, given, words):
    x = leaf(*shape)
    size = {{"size": "size", "scale": "scale_factor"}[name]: value for name, value in given.items()}
    wanted = functional.interpolate(x, mode=_theirs(mode, len(shape) - 2), **size, **words)
    more = {"cubic_coeff": -0.5} if mode == "cubic" and words.get("antialias") else {}
    with numbaprims.config(device="reference"):
        defined = numbaprims.resize(x.detach().numpy(), mode=mode, **given, **words, **more)
    torch.testing.assert_close(torch.from_numpy(defined), wanted.detach())
    ours = nbt.resize(x, mode=mode, **given, **words, **more)
    torch.testing.assert_close(ours, wanted)
    dy = torch.randn_like(wanted)
    if mode.startswith("nearest") and len(shape) == 5 and "scale" in given:
        return  # torch's gradient of volumes takes the scales for one another
    (theirs,) = torch.autograd.grad(wanted, x, dy)
    torch.testing.assert_close(torch.autograd.grad(ours, x, dy)[0], theirs)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_gradients_of_any_order_and_memory_formats(mode):
    x = leaf(1, 2, 4, 3)
    both_orders(lambda x: nbt.resize(x, (5, 7), mode=mode), x, fast=True)
    last = x.detach().contiguous(memory_format=torch.channels_last)
    y = nbt.resize(last, (5, 7), mode=mode)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, nbt.resize(x.detach(), (5, 7), mode=mode))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_bytes_are_within_one(mode):
    x = torch.randint(0, 256, (1, 3, 9, 20), dtype=torch.uint8)
    wanted = functional.interpolate(x, (17, 31), mode=_theirs(mode, 2))
    difference = (nbt.resize(x, (17, 31), mode=mode).int() - wanted.int()).abs()
    assert difference.max() <= (mode == "linear")


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Upsample(scale_factor=2),
        torch.nn.Upsample(size=(7, 5), mode="bilinear", align_corners=True),
        torch.nn.Upsample(scale_factor=1.3, mode="bicubic", recompute_scale_factor=True),
        torch.nn.UpsamplingBilinear2d(scale_factor=2),
        torch.nn.UpsamplingNearest2d(size=9),
    ],
)
def test_modules(module):
    x = torch.randn(2, 3, 6, 5)
    wanted = module(x)
    ours = nn.replace(torch.nn.Sequential(module))
    assert type(ours[0]).__module__.startswith("numbaprims")
    torch.testing.assert_close(ours(x), wanted)
