"""batch_norm: what is its own beside the contract suite: torch's statistics, stability, layouts, refusals."""

import numpy as np
import pytest
from helpers import has_module

import numbaprims
from numbaprims.ops.activation_kinds import DOMAINS, KINDS
from numbaprims.ops.epilogue import NOT_FUSED
from numbaprims.ops.examples import parameters

needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
ONES = np.ones(3, np.float32)


@needs_torch
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 7), (2, 3, 5, 6), (2, 3, 4, 3, 5)])
def test_training_is_torchs(shape, last):
    """Result, running statistics and gradients; channels_last memory by its strides, and as layout="NHWC"."""
    import torch

    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape, np.float32) * 2 + 3 for _ in range(2))
    scale, shift, mean, var = (rng.random(shape[1]).astype(np.float32) + 0.5 for _ in range(4))
    t, w, b = (torch.from_numpy(a.copy()).requires_grad_() for a in (x, scale, shift))
    running = torch.from_numpy(mean.copy()), torch.from_numpy(var.copy())
    y = torch.nn.functional.batch_norm(t, *running, w, b, training=True, momentum=0.3, eps=1e-3)
    y.backward(torch.from_numpy(dy))
    back = np.moveaxis if last else None
    ours, grad = (np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1) if back else a for a in (x, dy))
    found = numbaprims.batch_norm_train(ours, scale, shift, mean, var, momentum=0.3, eps=1e-3)
    for have, want in zip((found[0], found[3], found[4]), (y.detach(), *running), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-5)
    assert found[0].strides == ours.strides or not last
    gradients = numbaprims.batch_norm_backward(grad, ours, scale, *found[1:3])
    for have, want in zip(gradients, (t.grad, w.grad, b.grad), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)
    if last:
        moved = np.moveaxis(x, 1, -1).copy()
        again = numbaprims.batch_norm_train(moved, scale, shift, mean, var, momentum=0.3, eps=1e-3, layout="NHWC")
        np.testing.assert_allclose(np.moveaxis(again[0], -1, 1), found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(8, 3, 30, 31), (70000, 3), (2, 3, 300, 301)])
def test_statistics_far_from_zero(shape, layout):
    """Mean 1e4, standard deviation 1: a variance by means of squares has no digit left."""
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(shape) + 1e4).astype(np.float32)
    wide, axes = x.astype(np.float64), tuple(axis for axis in range(len(shape)) if axis != 1)
    if layout == "NHWC":
        x = np.moveaxis(x, 1, -1).copy()
    _, mean, inv_std = numbaprims.batch_norm_train(x, ONES, ONES, eps=0.0, layout=layout)
    np.testing.assert_allclose(mean, wide.mean(axes), rtol=2e-7)
    np.testing.assert_allclose(inv_std, 1 / wide.std(axes), rtol=2e-5)


def test_one_value_has_no_variance():
    x = np.full((1, 3, 1, 1), 7.0, np.float32)
    y, mean, inv_std, new_mean, new_var = numbaprims.batch_norm_train(x, 2 * ONES, ONES, 0 * ONES, ONES, eps=0.25)
    assert (y == 1).all() and (mean == 7).all() and (inv_std == 2).all()
    np.testing.assert_allclose(new_mean, 0.7, rtol=1e-6)
    np.testing.assert_allclose(new_var, 0.9, rtol=1e-6)


def test_modes_differ_in_what_shares_statistics():
    x = np.random.default_rng(2).standard_normal((6, 3, 2, 5)).astype(np.float32)
    each = np.ones((1, 3, 2, 5), np.float32)
    y, mean, _ = numbaprims.batch_norm_train(x, each, 0 * each, mode="per_activation")
    assert mean.shape == (1, 3, 2, 5)
    np.testing.assert_allclose(mean[0], x.mean(0), atol=1e-6)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-6)
    y, mean, _ = numbaprims.batch_norm_train(x, ONES, 0 * ONES)
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)), atol=1e-6)


def test_parameters_may_be_wider_than_halves():
    x = np.random.default_rng(3).standard_normal((4, 3, 9)).astype(np.float16)
    y, mean, inv_std = numbaprims.batch_norm_train(x, ONES, 0 * ONES)
    assert y.dtype == np.float16 and mean.dtype == inv_std.dtype == np.float32
    halves = numbaprims.batch_norm_train(x, ONES.astype(np.float16), 0 * ONES.astype(np.float16))
    np.testing.assert_array_equal(halves[0], y)
    again = numbaprims.batch_norm(x, ONES, 0 * ONES, mean, inv_std**-2 - 1e-5)
    np.testing.assert_allclose(again.astype(np.float32), y.astype(np.float32), atol=2e-3)


@pytest.mark.parametrize("rows", (3, 70))
@pytest.mark.parametrize("dtype", ("f8", "f4", "f2"))
def test_channels_last_have_the_bits_of_planes(dtype, rows, rng):
    """Of many pixels the factors of channels are computed once, into scratch memory. Exponentials, as gelu's, have
    other last bits in whole AVX-512 registers than in parts of one."""
    x = rng.standard_normal((2, 37, rows)).astype(dtype)
    parameters = [(rng.random(37) + 0.5).astype(dtype) for _ in range(4)]
    last = np.ascontiguousarray(x.transpose(0, 2, 1))
    for activation in (None, "hard_swish", "gelu"):
        want = numbaprims.batch_norm(x, *parameters, eps=0.25, activation=activation)
        for threads in (1, 2):
            with numbaprims.config(threads=threads):
                y = numbaprims.batch_norm(last, *parameters, eps=0.25, layout="NWC", activation=activation)
            if activation == "gelu":
                few = 8 * np.finfo(dtype).eps
                np.testing.assert_allclose(y.transpose(0, 2, 1), want, rtol=few, atol=few)
            else:
                np.testing.assert_array_equal(y.transpose(0, 2, 1), want)


def test_an_activation_is_applied_to_the_result():
    x = np.random.default_rng(4).standard_normal((4, 3, 9)).astype(np.float32)
    plain = numbaprims.batch_norm(x, ONES, ONES, ONES, ONES)
    np.testing.assert_array_equal(
        numbaprims.batch_norm(x, ONES, ONES, ONES, ONES, activation="relu"), np.maximum(plain, 0)
    )
    bent = numbaprims.batch_norm(x, ONES, ONES, ONES, ONES, activation=("leaky_relu", {"negative_slope": 0.5}))
    np.testing.assert_array_equal(bent, np.where(plain > 0, plain, plain * np.float32(0.5)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (*NOT_FUSED, "identity")])
def test_the_gradient_goes_through_every_activation(kind):
    """As one after the other, and by its definition; nothing comes through next to a jump of the slope."""
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((4, 3, 5, 7), np.float32), rng.standard_normal((4, 3, 5, 7), np.float32)
    middle = sum(DOMAINS.get(kind, (0.9, 1.0))) / 2  # positive where nothing else is asked for
    scale, shift = (rng.random(3).astype(np.float32) * 0.1 + by for by in (0.1, middle - 0.05))
    act = kind, parameters(kind)
    plain, mean, inv_std = numbaprims.batch_norm_train(x, scale, shift)
    far = np.full(plain.shape, True)
    for jump in (0.0, 1.0, 3.0, 6.0, *(v for v in act[1].values() if isinstance(v, float))):
        far &= np.abs(plain - jump) > 1e-4
    dy = np.where(far, dy, 0).astype(np.float32)
    found = numbaprims.batch_norm_backward(dy, x, scale, mean, inv_std, shift, activation=act)
    with numbaprims.config(device="reference"):
        exact = [each.astype(np.float64) for each in (dy, x, scale, mean, inv_std, shift)]
        want = numbaprims.batch_norm_backward(*exact, activation=act)
    y = numbaprims.activation(plain, kind, **act[1])
    dz = numbaprims.activation_backward(dy, plain, y, kind, **act[1])
    apart = numbaprims.batch_norm_backward(dz, x, scale, mean, inv_std)
    for have, exactly, beside in zip(found, want, apart, strict=True):
        top = 1 + np.abs(exactly).max()
        np.testing.assert_allclose(have, exactly, rtol=0, atol=2e-5 * top)
        np.testing.assert_allclose(have, beside, rtol=0, atol=2e-5 * top)
    assert kind in ("round", "sign", "floor", "ceil") or np.abs(want[0]).max() > 1e-3


def test_an_activation_behind_asks_for_the_shift():
    x = np.ones((2, 3, 4), np.float32)
    given = (x, x, ONES, ONES, ONES)
    with pytest.raises(ValueError, match="shift is None; with an activation it must be that of the forward call"):
        numbaprims.batch_norm_backward(*given, activation="relu")
    with pytest.raises(ValueError, match=r"shift is a float32 array \(4,\).* takes shift of shape \(3,\)"):
        numbaprims.batch_norm_backward(*given, np.ones(4, np.float32), activation="relu")
    with pytest.raises(ValueError, match="cannot be fused"):
        numbaprims.batch_norm_backward(*given, ONES, activation="glu")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"mode": "channel"}, ValueError, "mode is 'channel'; it must be one of spatial, per_activation"),
        ({"layout": "NCL"}, ValueError, "layout is 'NCL'"),
        (
            {"scale": np.ones(4, np.float32)},
            ValueError,
            r"scale is a float32 array \(4,\).* takes scale of shape \(3,\)",
        ),
        ({"shift": np.ones(3)}, TypeError, "shift is a float64 array .* must be float32"),
        ({"x": np.zeros((0, 3, 4), np.float32)}, ValueError, "one value at least for each channel"),
        ({"x": np.zeros(3, np.float32)}, ValueError, r"batch norm takes \(N, C\)"),
        ({"running_mean": ONES}, ValueError, "give both, or neither"),
        ({"eps": "small"}, TypeError, "eps"),
    ],
)
def test_what_is_wrong_is_said(change, error, words):
    given = {"x": np.zeros((2, 3, 4), np.float32), "scale": ONES, "shift": ONES, **change}
    with pytest.raises(error, match=words):
        numbaprims.batch_norm_train(**given)
