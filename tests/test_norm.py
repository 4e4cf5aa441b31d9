"""Layer, rms, group and instance norm: what the contract suite does not ask."""

import numpy as np
import pytest
from contract import CALLS, made
from helpers import assert_close, has_module

import numbaprims
from numbaprims.cpu import joined, target
from numbaprims.dispatch import call, examples, find
from numbaprims.ops import norm
from numbaprims.ops._norm_problem import STEPS
from numbaprims.stems import PUBLIC

pytestmark = pytest.mark.cpu
OURS = [each for each in CALLS if each.function in PUBLIC["norm"]]


def far(*shape, mean=1e4):
    return (np.random.default_rng(0).standard_normal(shape) + mean).astype(np.float32)


def normal(x, axes, eps=1e-5):
    x = x.astype(np.float64)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps), mean, 1 / np.sqrt(var + eps)


@pytest.mark.parametrize("n", [67, 1000, 20000])
def test_rows_far_from_zero(n):
    x = far(5, n)
    y, mean, inv_std = numbaprims.layer_norm_train(x)
    for have, want in zip((y, mean, inv_std), normal(x, 1), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 3, 12])
@pytest.mark.parametrize("contiguous", [True, False])
def test_channels_far_from_zero(layout, groups, contiguous):
    x = far(2, 12, 9, 40)
    x += np.linspace(-3, 3, 12, dtype=np.float32)[:, None, None]  # channels of a group differ
    wanted, mean, inv_std = normal(x.reshape(2, groups, -1, 9, 40), (2, 3, 4))
    given = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "NHWC" else x
    given = given if contiguous else np.concatenate([given, given], 2)[:, :, : given.shape[2]]
    y, *saved = numbaprims.group_norm_train(given, groups, layout=layout)
    y = y.transpose(0, 3, 1, 2) if layout == "NHWC" else y
    np.testing.assert_allclose(y, wanted.reshape(x.shape), rtol=3e-5, atol=3e-5)
    for have, want in zip(saved, (mean, inv_std), strict=True):
        np.testing.assert_allclose(have, want.reshape(2, groups), rtol=3e-5)


def test_every_launch_is_posed_again(monkeypatch):
    """Those behind the first one too, which `find` and `tune` may be asked for."""
    found = {}
    bind = call.bind

    def keep(problem, *args, **words):
        found[problem.key()] = problem
        return bind(problem, *args, **words)

    monkeypatch.setattr(call, "bind", keep)
    call.forget()
    for each in OURS:
        args, words = made(each, "f32")
        getattr(numbaprims, each.function)(*args, **words)
    assert {problem.formula.partition("+")[0].partition("/")[0] for problem in found.values()} == set(STEPS)
    for key, problem in found.items():
        assert examples.restore("norm", examples.records.fields_of(problem)).key() == key, problem.formula


@pytest.mark.parametrize("shape", [(1, 40), (7, 33), (8, 64), (65, 130), (2100, 17)])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_one_walk_gives_what_two_launches_give(name, shape):
    rng = np.random.default_rng(1)
    dy, x, dsum = (rng.standard_normal(shape, np.float32) for _ in range(3))
    weight = rng.random(shape[1], np.float32)
    saved = getattr(numbaprims, f"{name}_train")(x, weight)[1:]
    backward = getattr(numbaprims, f"{name}_backward")
    whole = backward(dy, x, weight, *saved, dsum=dsum)
    gaps = np.concatenate([x, x], 1)[:, : shape[1]]
    for have, want in zip(whole, backward(dy, gaps, weight, *saved, dsum=dsum), strict=True):
        assert_close(have, want.astype(np.float64), k=64 + shape[0])
    for at, name in enumerate(("dy", "x", "dsum")):  # over what is read too
        given = {"dy": dy.copy(), "x": x.copy(), "dsum": dsum.copy()}
        words = {"dsum": given["dsum"], "out": given[name]}
        again = backward(given["dy"], given["x"], weight, *saved, **words)
        assert again[0] is given[name], at
        for have, want in zip(again, whole, strict=True):
            np.testing.assert_array_equal(have, want)


def test_one_walk_in_parts_of_rows():
    rng = np.random.default_rng(2)
    dy, x = (rng.standard_normal((2, 3, 4, 5), np.float32) for _ in range(2))
    weight, bias = rng.random((2, 4, 5), np.float32)
    y, mean, inv_std = numbaprims.layer_norm_train(x, weight, bias, normalized_dims=2)
    assert mean.shape == (2, 3, 1, 1)
    given = dy, x, weight, mean, inv_std, bias
    for have, want in zip(
        numbaprims.layer_norm_backward(*given, normalized_dims=2, activation="silu"),
        numbaprims.layer_norm_backward(dy, x.swapaxes(0, 1).copy().swapaxes(0, 1), *given[2:], normalized_dims=2,
                                       activation="silu"),
        strict=True,
    ):  # fmt: skip
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_rows_is_one_launch_and_small_ones():
    x = np.ones((300, 200), np.float32)
    problem = numbaprims.explain("layer_norm_backward", x, x, x[0], x[:, :1], x[:, :1]).problem
    assert problem.formula == "layer_norm_gradient/weight"
    assert [array.kind for array in problem.arrays[:3]] == ["row", "column", "column"]
    assert problem.bytes_moved() < 1.2 * 3 * x.nbytes
    image = np.ones((2, 8, 5, 6), np.float32)
    assert numbaprims.explain("group_norm", image, 4, image[0, :, 0, 0].copy()).problem.formula.startswith("whole")


@pytest.mark.parametrize("shape, groups", [((1, 32, 7, 7), 8), ((3, 16, 40, 40), 8), ((2, 64, 5), 16), ((2, 6, 9), 2)])
@pytest.mark.parametrize("lies", ["plain", "gaps", "turned"])
def test_gradients_of_groups_are_one_program(shape, groups, lies):
    """Of what lies in one piece phases take turns; the bits are those of its launches one by one."""
    rng = np.random.default_rng(4)
    dy, x = (rng.standard_normal(shape, np.float32) for _ in range(2))
    weight = rng.random(shape[1], np.float32)
    saved = numbaprims.group_norm_train(x, groups, weight)[1:]
    if lies == "gaps":
        x = np.concatenate([x, x], -1)[..., : shape[-1]]
    if lies == "turned":
        x = x.swapaxes(0, 1).copy().swapaxes(0, 1)
    given = dy, x, weight, *saved, None
    want = norm._group_backward(given, (groups, "NCHW", ""), None)
    call.forget()
    for threads in (1, 2):
        with numbaprims.config(threads=threads):
            for _ in range(4):  # each has another way to its program
                for have, each in zip(numbaprims.group_norm_backward(dy, x, groups, *given[2:5]), want, strict=True):
                    np.testing.assert_array_equal(have, each)
    one, several = norm._GROUP_BACKWARD._launchers._bound.values()  # settings of one thread have a key of their own
    turns = groups * shape[0] >= joined.FEWEST and (lies != "turned" or shape[0] == 1)
    assert [("interleaved" in str(bound.launch.program)) for bound in (one, several)] == [turns, turns]
    over = x.copy()
    assert numbaprims.group_norm_backward(dy, over, groups, *given[2:5], out=over)[0] is over
    np.testing.assert_allclose(over, want[0], rtol=1e-5, atol=1e-5)  # rows with gaps are summed up otherwise


def test_settings_under_which_launches_are_not_joined(monkeypatch):
    measured = []
    monkeypatch.setattr(find, "before_call", lambda problem, device: measured.append(problem.formula))
    x = np.random.default_rng(5).standard_normal((4, 70), np.float32)
    saved = numbaprims.layer_norm_train(x, x[0])[1:]
    want = numbaprims.layer_norm_backward(x, x, x[0], *saved)
    for words in ({"find_mode": "normal"}, {"verbose": 1}, {"device": "reference"}):
        with numbaprims.config(**words):
            for have, each in zip(numbaprims.layer_norm_backward(x, x, x[0], *saved), want, strict=True):
                np.testing.assert_allclose(have, each, rtol=1e-4, atol=1e-4)
    assert measured == ["layer_norm_gradient/weight", "sample_sums/by_bias/weight"]


def test_a_residual_is_added_before_it_is_rounded():
    x, r = np.full((2, 4), 2048, np.float16), np.float16([[1, 0, 1, 0], [1, 1, 0, 0]])
    y, total = numbaprims.layer_norm(x, residual=r)
    np.testing.assert_array_equal(total, x + r)  # 2049 is no float16
    np.testing.assert_allclose(y, normal(x.astype(np.float32) + r, 1)[0], rtol=2e-3, atol=2e-3)


@pytest.mark.skipif(not has_module("onnxruntime"), reason="onnxruntime is not installed")
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_onnx(axis):
    import onnxruntime

    from numbaprims.bench.onnx_model import Tensor, model

    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 4, 5), np.float32)
    weight, bias = rng.random((2, *x.shape[axis:]), np.float32)
    tensors = [Tensor(name, x.shape, "float32") for name in "xy"]
    content = model("LayerNormalization", tensors[:1], tensors[1], {"w": weight, "b": bias}, {"axis": axis})
    (want,) = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    y = numbaprims.layer_norm(x, weight, bias, normalized_dims=x.ndim - axis)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x, w: numbaprims.layer_norm(x, w, normalized_dims=0), ValueError, "normalized_dims is 0"),
        (lambda x, w: numbaprims.layer_norm(x, w, normalized_dims="all"), TypeError, "normalized_dims is 'all'"),
        (lambda x, w: numbaprims.layer_norm(x, w[:2]), ValueError, "takes weight of shape"),
        (lambda x, w: numbaprims.layer_norm(x, w.astype(np.float64)), TypeError, "it must be float32"),
        (lambda x, w: numbaprims.layer_norm(x, residual=x[:1]), ValueError, "takes residual of shape"),
        (lambda x, w: numbaprims.layer_norm(x[:, :, :0]), ValueError, "one value at least"),
        (lambda x, w: numbaprims.layer_norm_backward(x, x, w, x, x), ValueError, "takes saved_mean of shape"),
        (lambda x, w: numbaprims.layer_norm(x, eps=-1.0), ValueError, "eps is -1.0; it must be finite, and 0 at least"),
        (lambda x, w: numbaprims.group_norm_backward(x, x, 1, None, w[0], x), TypeError, "saved_mean is a float32 sca"),
        (lambda x, w: numbaprims.group_norm_backward(x, x, 1, None, x[:1, :1, 0], x), ValueError, "saved_mean is a fl"),
        (lambda x, w: numbaprims.group_norm_backward(x, x, 1, None, x[:, :1, 0], w), ValueError, "saved_inv_std is a"),
        (lambda x, w: numbaprims.group_norm_backward(x[0, 0], w, 1, None, w, w), ValueError, "x has 1 dimensions"),
        (lambda x, w: numbaprims.group_norm(x, 4), ValueError, "groups is 4; it must divide the 3"),
        (lambda x, w: numbaprims.group_norm(x, 1.0), TypeError, "groups is 1.0"),
        (lambda x, w: numbaprims.group_norm(x, 1, w), ValueError, "takes weight of shape"),
        (lambda x, w: numbaprims.group_norm(x[0, 0], 1), ValueError, "x has 1 dimensions"),
        (lambda x, w: numbaprims.instance_norm(x, layout="CN"), ValueError, "layout is 'CN'"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call(np.ones((2, 3, 5), np.float32), np.ones(5, np.float32))


def test_what_is_empty():
    x, w = np.ones((0, 5), np.float32), np.ones(5, np.float32)
    assert numbaprims.layer_norm(x, w).shape == (0, 5)
    dx, dweight, dbias = numbaprims.layer_norm_backward(x, x, w, x[:, :1], x[:, :1])
    assert dx.shape == (0, 5) and not dweight.any() and not dbias.any() and dbias.shape == (5,)
    w = np.ones(4, np.float32)
    for shape, groups in (((0, 4), 2), ((0, 4, 3), 1), ((0, 4, 3), 4)):
        x, saved = np.ones(shape, np.float32), np.ones((0, groups), np.float32)
        dx, dweight, dbias = numbaprims.group_norm_backward(x, x, groups, w, saved, saved)
        assert dx.shape == shape and not dweight.any() and not dbias.any() and dbias.shape == (4,)


def test_only_whole_rows_sum_up_columns():
    x = np.ones((300, 200), np.float32)
    problem = numbaprims.explain("rms_norm_backward", x, x, x[0], x[:, :1]).problem
    from numbaprims.cpu.reduce.solvers import SOLVERS

    able = [each.name for each in SOLVERS if each.why_not(problem, target.current()) is None]
    assert able == ["rows"]
