"""Softmax, losses and batch norm inside a user's own `@njit`: the bits, results and errors of the public call."""

import numpy as np
import pytest
from helpers import in_turn
from test_jitted import check, compiled, drawn, refuse_alike, same

from numbaprims.cpu.call_sites import Site

pytestmark = pytest.mark.cpu
#: label -> parameters, shape of x; classes, and one parameter for each channel, follow from it.
CALLS = {
    "softmax": ("nb.softmax(x)", (7, 33)),
    "softmax axis": ("nb.softmax(x, axis=1)", (3, 5, 37)),
    "softmax in place": ("nb.softmax(x, axis=0, out=x)", (33, 20)),
    "softmax_backward": ("nb.softmax_backward(x * y, y, axis=0)", (5, 9)),
    "log_softmax": ("nb.log_softmax(x, axis=-2)", (4, 6, 5)),
    "log_softmax_backward": ("nb.log_softmax_backward(y, x)", (5, 70)),
    "mean": ("nb.softmax_cross_entropy(x, t)", (9, 10)),
    "sum": ("nb.softmax_cross_entropy(x, t, weight=w, label_smoothing=e, reduction='sum')", (9, 10, 3)),
    "rows": ("nb.softmax_cross_entropy(x, t, ignore_index=1, reduction='none')", (9, 4, 3)),
    "soft": ("nb.softmax_cross_entropy(x, y, label_smoothing=e)", (9, 4)),
    "int32": ("nb.softmax_cross_entropy(x, t.astype(np.int32), weight=w)", (9, 4)),
    "mean backward": ("nb.softmax_cross_entropy_backward(y[0, 0, 0:1].reshape(()), x, t, weight=w)", (9, 4, 3)),
    "rows backward": ("nb.softmax_cross_entropy_backward(y[:, 0], x, t, label_smoothing=e, reduction='none')", (9, 4)),
    "nll_loss": ("nb.nll_loss(x, t, weight=w, ignore_index=1)", (9, 4, 3)),
    "nll_loss_backward": ("nb.nll_loss_backward(y[:, 0], x, t, reduction='none')", (9, 4)),
    "nll_loss mean backward": ("nb.nll_loss_backward(y[0, :1].reshape(()), x, t, ignore_index=2)", (9, 4)),
    "batch_norm": ("nb.batch_norm(x, w, -w, w * w, w + 9, eps=e, activation='relu')", (4, 6, 5, 3)),
    "batch_norm rows": ("nb.batch_norm(x, w, -w, w * w, w + 9, eps=e)", (40, 6)),
    "batch_norm last": ("nb.batch_norm(x, w, -w, w * w, w + 9, layout='NHWC', out=x)", (4, 5, 3, 6)),
    "batch_norm mode": ("nb.batch_norm(x, x[:1], x[1:2], x[2:3], y[:1] + 9, mode='per_activation')", (4, 5, 3)),
    "train": ("nb.batch_norm_train(x, w, -w, eps=e)", (4, 6, 5, 3)),
    "train last": ("nb.batch_norm_train(x, w, -w, layout='NHWC')", (4, 5, 3, 6)),
    "running": ("nb.batch_norm_train(x, w, -w, w * w, w + 9, momentum=e, eps=0.5)", (4, 6, 5, 3)),
    "activated backward": (
        "nb.batch_norm_backward(y, x, w, w * w, w + 9, w, activation='tanh', mode='spatial')", (4, 6, 5, 3),
    ),
    "layer_norm": ("nb.layer_norm(x, w, eps=e)", (5, 4, 6)),
    "layer_norm dims": ("nb.layer_norm(x, normalized_dims=2, activation='relu', residual=y)", (4, 6, 5)),
    "layer_norm_train": ("nb.layer_norm_train(x, w, -w, eps=e)", (4, 2, 9)),
    "layer_norm_backward": ("nb.layer_norm_backward(y, x, w, y[:, :1], y[:, 1:2], w, dsum=x)", (4, 6)),
    "rms_norm": ("nb.rms_norm_train(x, w, eps=e, residual=y)", (4, 6)),
    "rms_norm_backward": ("nb.rms_norm_backward(y, x, w, y[:, :1], activation='silu')", (4, 6)),
    "group_norm": ("nb.group_norm(x, 3, w, -w, eps=e, activation='relu')", (4, 6, 5, 3)),
    "group_norm last": ("nb.group_norm_train(x, 2, w, eps=e, layout='NHWC')", (4, 5, 3, 6)),
    "group_norm_backward": ("nb.group_norm_backward(y, x, 3, w, y[:, :3, 0].copy(), y[:, 3:, 0].copy())", (4, 6, 5)),
    "instance_norm": ("nb.instance_norm_train(x, w, eps=e)", (4, 6, 5)),
    "instance_norm_backward": ("nb.instance_norm_backward(y, x, w, y[..., 0].copy(), y[..., 1].copy())", (4, 6, 5)),
    "batch_norm_backward": ("nb.batch_norm_backward(y, x, w, w * w, w + 9)", (4, 6, 5, 3)),
}  # fmt: skip
OWN = "x, y, t, w, e"


def operands(rng, expression, shape, dtype):
    """x, another of its shape, classes, a parameter of each class or channel, a number."""
    last = "NHWC" in expression
    classes = shape[-1 if last or "layer" in expression or "rms" in expression else 1]
    targets = rng.integers(0, max(classes, 1), (shape[0], *shape[2:]))
    positive = np.abs(drawn(rng, *shape, dtype=dtype)) + dtype(0.1)
    return drawn(rng, *shape, dtype=dtype), positive, targets, np.abs(drawn(rng, classes, dtype=dtype)), 0.25


@pytest.mark.parametrize("label, dtype", in_turn(CALLS, [np.float32, np.float64]))
def test_calls(rng, monkeypatch, label, dtype):
    expression, shape = CALLS[label]
    direct = []
    real = Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: direct.append(1) or real(*given))
    check(OWN, expression, *operands(rng, expression, shape, dtype))
    inside, outside = compiled(OWN, expression)
    for batch in (1, shape[0], 2 * shape[0]):
        for number in (0.25, 0.5):
            given = (*operands(rng, expression, (batch, *shape[1:]), dtype)[:-1], number)
            if "x[2:3]" in expression and batch < 3:
                continue
            wanted = outside(*[x.copy() if isinstance(x, np.ndarray) else x for x in given])
            same(inside(*[x.copy() if isinstance(x, np.ndarray) else x for x in given]), wanted)
    assert not direct, "every launch was recorded"


def test_sums_follow_the_memory_of_the_arrays(rng):
    """So do results: elsewhere another kernel, with another order of sums, would be taken than for the public call."""
    functions = [
        compiled("x, w, t", expression)
        for expression in (
            "nb.softmax(x)",
            "nb.softmax(x, axis=0)",
            "nb.batch_norm_train(x, w, w)",
            "nb.softmax_cross_entropy_backward(w[:1].reshape(()), x, t)",
        )
    ]
    x = drawn(rng, 3, 7, 900)
    for view in (x.transpose(0, 2, 1), x.transpose(2, 0, 1), x[::2], x[:, ::-1, ::2], x.transpose(1, 2, 0)):
        classes = rng.integers(0, view.shape[1], (view.shape[0], view.shape[2]))
        for inside, outside in functions:
            got, want = (f(view, x[0, 0, : view.shape[1]] + 9, classes) for f in (inside, outside))
            same(got, want)
            lies = [y[0].strides if isinstance(y, tuple) else y.strides for y in (got, want)]
            assert lies[0] == lies[1]


@pytest.mark.parametrize(
    "expression, shape",
    [
        ("nb.softmax_cross_entropy(x, t, reduction='sum')", (0, 4)),
        ("nb.softmax_cross_entropy(x, t, reduction='none')", (0, 4)),
        ("nb.softmax(x)", (0, 4)),
        ("nb.softmax(x)", (4, 0)),
        ("nb.batch_norm(x, w, w, w, w)", (0, 4, 3)),
    ],
)
def test_nothing_to_compute(rng, expression, shape):
    check(OWN, expression, *operands(rng, expression, shape, np.float32))


@pytest.mark.parametrize(
    "expression",
    [
        "nb.softmax(x, axis=2)",
        "nb.softmax_backward(x, x[:2])",
        "nb.softmax_cross_entropy(x, t[:3])",
        "nb.softmax_cross_entropy(x, t + 2)",
        "nb.softmax_cross_entropy(x, t, label_smoothing=1.5)",
        "nb.softmax_cross_entropy(x, t, reduction='all')",
        "nb.softmax_cross_entropy(x[0], t)",
        "nb.nll_loss(x, y)",
        "nb.nll_loss_backward(x[:, 0], x, t)",
        "nb.nll_loss(x, t, weight=w[:2])",
        "nb.batch_norm(x, w, w, w, w[:2])",
        "nb.batch_norm(x, w, w, w, w, mode='all')",
        "nb.batch_norm(x, w, w, w, w, layout='CN')",
        "nb.batch_norm_train(x, w, w, w)",
        "nb.batch_norm_train(x[:0], w, w)",
        "nb.batch_norm_backward(x, x[:2], w, w, w)",
    ],
)
def test_errors_are_those_of_the_public_call(rng, expression):
    given = operands(rng, expression, (9, 4), np.float32)
    inside, outside = compiled(OWN, expression)
    refuse_alike(inside, outside, *given)
