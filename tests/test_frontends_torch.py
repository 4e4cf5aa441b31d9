"""`numbaprims.frontends.torch`: gradients of every order, and what stands around them."""

import pytest
from helpers import in_domain

import numbaprims
from numbaprims.ops.activation_kinds import DOMAINS

torch = pytest.importorskip("torch")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.ops.activation import NAMES  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def both_orders(function, *inputs, fast=False):
    assert gradcheck(function, inputs, fast_mode=fast)
    assert gradgradcheck(function, inputs, fast_mode=fast)


#: Public names without a wrapper of the same name, and why.
NOT_WRAPPED = {
    **dict.fromkeys(
        ("explain", "find", "tune", "config", "share_cpus", "RnnWeights", "rope_frequencies"), "no function of arrays"
    ),
    "attention_train": "attention keeps what its gradient reads",
    "fill": "it writes its argument",
    **dict.fromkeys(("isnan", "isinf", "hardmax"), "it has no gradient"),
    "one_hot": "integers have no gradient",
    **dict.fromkeys(("conv_integer", "qlinear_conv"), "integers have no gradient"),
    **dict.fromkeys(("quantize", "dequantize", "dynamic_quantize"), "integers have no gradient"),
    **dict.fromkeys(("gemm_integer", "qlinear_gemm", "qlinear_add", "qlinear_activation"), "integers have no gradient"),
    **dict.fromkeys(("qlinear_avg_pool", "qlinear_global_avg_pool"), "integers have no gradient"),
    **dict.fromkeys(("random_uniform", "random_normal"), "they are functions of no array"),
    **dict.fromkeys(("ctc_greedy_decode", "ctc_beam_search_decode"), "labels have no gradient"),
    **dict.fromkeys(("stack", "FusionPlan"), "fuse makes stacks of modules, with gradients too"),
}


def test_every_public_function_is_wrapped():
    public = {name for name in numbaprims._LAZY if not name.endswith("_backward")}
    wrapped = {name for name in public if hasattr(nbt, name)}
    missing = public - wrapped - set(NOT_WRAPPED)
    assert not missing, "add it to numbaprims/frontends/torch, or to NOT_WRAPPED with the reason"
    assert set(nbt.__all__) == wrapped - {"abs", "round"} | {"nn"}
    for name in wrapped - {"fuse"}:  # of modules, not of layers
        assert getattr(nbt, name).__doc__ == getattr(numbaprims, name).__doc__


# ---------------------------------------------------------------- activations

PARAMETERS = {
    "leaky_relu": [{"negative_slope": 0.3}],
    "clipped_relu": [{}, {"alpha": 0.5}],
    "elu": [{"alpha": 0.7}],
    "celu": [{"alpha": 0.7}],
    "softplus": [{}, {"beta": 2.0, "threshold": 1.0}, {"beta": -1.5, "threshold": 0.5}],
    "power": [{"alpha": 5.0, "beta": 0.5, "gamma": 2.5}, {"alpha": 1.0, "beta": 2.0, "gamma": 2.0}],
    "gelu": [{}, {"approximate": "tanh"}],
    "hard_tanh": [{"min_val": -0.5, "max_val": 0.7}],
    "clip": [{"min": -0.5}, {"max": 0.5}],
    "threshold": [{"threshold": 0.2, "value": -1.0}],
    "glu": [{}, {"axis": 0}],
}


@pytest.mark.cpu
@pytest.mark.parametrize("kind", [name for name in NAMES if name != "prelu"])
def test_activation(kind):
    x = leaf(4, 6)
    if kind in DOMAINS:
        x = in_domain(x.detach(), kind).requires_grad_()
    for parameters in PARAMETERS.get(kind, [{}]):
        both_orders(lambda x, p=parameters: getattr(nbt, kind)(x, **p), x)
        torch.testing.assert_close(
            nbt.activation(x, kind, **parameters), numbaprims.activation(x.detach(), kind, **parameters)
        )


@pytest.mark.cpu
def test_third_derivatives_exist():
    for function in (nbt.tanh, nbt.gelu, nbt.mish, nbt.glu):
        x = leaf(6)

        def gradient(x, function=function):
            return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]

        both_orders(gradient, x)


@pytest.mark.cpu
@pytest.mark.parametrize("slopes", [1, 3])
def test_prelu(slopes):
    x, weight = leaf(2, 3, 4), leaf(slopes)
    both_orders(nbt.prelu, x, weight)
    both_orders(lambda x: nbt.activation(x, "prelu", weight=weight.detach()), x)
    both_orders(lambda weight: nbt.prelu(x.detach(), weight), weight)


def test_positional_parameters_are_those_of_the_function():
    x = leaf(5)
    torch.testing.assert_close(nbt.threshold(x, 0.1, 2.0), functional.threshold(x, 0.1, 2.0))
    with pytest.raises(TypeError, match="threshold takes 3 positional arguments, 4 were given"):
        nbt.threshold(x, 0.1, 2.0, 3.0)
    with pytest.raises(ValueError, match="kind is 'reluu'"):
        nbt.activation(x, "reluu")


# ---------------------------------------------------------------- products


@pytest.mark.cpu
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize(
    ("lead_a", "lead_b"), [((), ()), ((2,), ()), ((), (2,)), ((2, 1), (3,))], ids=["2d", "a", "b", "broadcast"]
)
def test_gemm(trans_a, trans_b, lead_a, lead_b):
    a = leaf(*lead_a, *((4, 3) if trans_a else (3, 4)))
    b = leaf(*lead_b, *((2, 4) if trans_b else (4, 2)))
    how = {"trans_a": trans_a, "trans_b": trans_b}
    both_orders(lambda a, b: nbt.gemm(a, b, alpha=0.5, **how), a, b, fast=True)
    for bias in (leaf(2), leaf(1, 2), leaf(3, 1)):
        both_orders(lambda a, b, bias: nbt.gemm(a, b, bias=bias, activation="tanh", **how), a, b, bias, fast=True)
    for c in (leaf(3, 2), leaf(2), leaf(3, 1), leaf(1, 1)):
        both_orders(lambda a, c: nbt.gemm(a, b.detach(), c=c, beta=-2.0, activation="gelu", **how), a, c, fast=True)


@pytest.mark.cpu
def test_linear_gemv_ger():
    both_orders(nbt.linear, leaf(3, 4), leaf(2, 4), leaf(2))
    both_orders(nbt.linear, leaf(4), leaf(2, 4), leaf(2))
    both_orders(
        lambda x, w, b: nbt.linear(x, w, b, activation=("elu", {"alpha": 0.5})), leaf(2, 3, 4), leaf(2, 4), leaf(2)
    )
    for trans in (False, True):
        x, y = (leaf(3), leaf(4)) if trans else (leaf(4), leaf(3))
        both_orders(lambda a, x, y, t=trans: nbt.gemv(a, x, y=y, alpha=2.0, beta=0.5, trans=t), leaf(3, 4), x, y)
    both_orders(lambda x, y, a: nbt.ger(x, y, a=a, alpha=-0.5), leaf(3), leaf(4), leaf(3, 4))


@pytest.mark.cpu
def test_empty_arrays():
    x, w, b = leaf(0, 4), leaf(3, 4), leaf(3)
    nbt.linear(x, w, b).sum().backward()
    assert x.grad.shape == (0, 4) and not w.grad.any() and not b.grad.any()


# ---------------------------------------------------------------- convolutions

WINDOWS = [
    {},
    {"stride": 2, "padding": 1, "groups": 2},
    {"padding": "same", "dilation": 2},
    {"padding": ((1, 0),), "stride": 3},
    {"layout": "NHWC", "padding": 1},
]


@pytest.mark.cpu
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_conv(rank, window):
    window = dict(window)
    if isinstance(window.get("padding"), tuple):
        window["padding"] *= rank
    last, groups = "layout" in window, window.get("groups", 1)
    x = leaf(2, *(5,) * rank, 4) if last else leaf(2, 4, *(5,) * rank)
    weight, bias = leaf(6, 4 // groups, *(2,) * rank), leaf(6)
    both_orders(lambda *a: nbt.conv(*a, **window), x, weight, bias, fast=True)
    c = leaf(6) if last else leaf(6, *(1,) * rank)

    def ended(x, c):
        return nbt.conv(x, weight.detach(), c=c, alpha=0.5, beta=2.0, activation="tanh", **window)

    both_orders(ended, x, c, fast=True)
    both_orders(lambda x: nbt.conv(x, weight.detach(), activation="gelu", **window), x, fast=True)
    if window.get("padding") != "same":
        weight = leaf(4, 6 // groups, *(2,) * rank)
        both_orders(lambda *a: nbt.conv_transpose(*a, activation="sigmoid", **window), x, weight, bias, fast=True)
        both_orders(lambda *a: nbt.conv_transpose(*a, activation="silu", **window), x, weight, bias, fast=True)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "window", [{"stride": 3, "output_padding": 2}, {"dilation": 3, "padding": 1, "output_padding": (2, 1)}], ids=str
)
def test_conv_transpose_output_padding(window):
    x, weight, bias = leaf(1, 2, 4, 3), leaf(2, 3, 2, 2), leaf(3)
    torch.testing.assert_close(
        nbt.conv_transpose(x, weight, bias, **window), functional.conv_transpose2d(x, weight, bias, **window)
    )
    both_orders(lambda *a: nbt.conv_transpose(*a, **window), x, weight, bias, fast=True)
    last = x.detach().permute(0, 2, 3, 1).requires_grad_()
    both_orders(lambda *a: nbt.conv_transpose(*a, layout="NHWC", **window), last, weight, bias, fast=True)


@pytest.mark.cpu
def test_gradients_of_conv_as_functions():
    dy, weight, x = leaf(2, 6, 4, 4), leaf(6, 3, 2, 2), leaf(2, 3, 5, 5)
    scales = {"alpha": 0.5, "beta": 2.0}

    def data(dy, weight, c):
        return nbt.conv_backward_data(dy, weight, (2, 3, 5, 5), c=c, **scales)

    def kernel(dy, x, c):
        return nbt.conv_backward_weight(dy, x, (6, 3, 2, 2), c=c, **scales)

    both_orders(data, dy, weight, leaf(3, 1, 1), fast=True)
    both_orders(kernel, dy, x, leaf(6, 3, 2, 2), fast=True)
    both_orders(nbt.conv_backward_bias, dy)
    both_orders(lambda dy: nbt.conv_backward_bias(dy, layout="NHWC"), dy)
    back = leaf(2, 3, 5, 5)
    both_orders(lambda dy, w: nbt.conv_transpose_backward_data(dy, w), back, weight, fast=True)
    both_orders(lambda dy, x: nbt.conv_transpose_backward_weight(dy, x, (6, 3, 2, 2)), back, dy, fast=True)


# ---------------------------------------------------------------- beside torch


def values_and_gradients(function, *inputs):
    given = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    y = function(*given)
    return [y, *torch.autograd.grad(y, given, torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape))]


@pytest.mark.cpu  # two minutes in the emulator
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.06)], ids=["f32", "bf16"])
def test_is_torchs(dtype, tolerance):
    def close(ours, theirs, *inputs):
        pairs = zip(values_and_gradients(ours, *inputs), values_and_gradients(theirs, *inputs), strict=True)
        for mine, other in pairs:
            assert mine.dtype == other.dtype and mine.isfinite().all() and mine.any()
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance * float(other.detach().abs().max()))

    x, weight, bias = leaf(6, 8, 10, dtype=dtype), leaf(5, 10, dtype=dtype), leaf(5, dtype=dtype)
    close(nbt.linear, functional.linear, x, weight, bias)
    # every second column of a transposed matrix, a row backwards: what is read where it lies
    views = x.transpose(0, 2)[:, ::2, 1:], weight.T[:6].T.flip(0)[:, 1:]
    close(nbt.linear, functional.linear, views[0], views[1], bias)
    image, filters, shift = leaf(2, 8, 9, 7, dtype=dtype), leaf(6, 4, 3, 3, dtype=dtype), leaf(6, dtype=dtype)
    window = {"stride": 2, "padding": 1, "groups": 2}
    for layout in (torch.contiguous_format, torch.channels_last):
        given = (image.to(memory_format=layout), filters.to(memory_format=layout), shift)
        close(lambda *a: nbt.conv(*a, **window), lambda *a: functional.conv2d(*a, **window), *given)
        assert nbt.conv(*given, **window).is_contiguous(memory_format=layout)
    close(nbt.gelu, functional.gelu, image.transpose(1, 3)[::2])


def test_a_sum_in_another_type():
    x, weight = leaf(3, 4, dtype=torch.bfloat16), leaf(2, 4, dtype=torch.bfloat16)
    y = nbt.gemm(x, weight, trans_b=True, out_dtype=torch.float32)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, 4), rtol=0.02, atol=0.02)
    image, filters = leaf(1, 2, 4, 4, dtype=torch.float16), leaf(3, 2, 3, 3, dtype=torch.float16)
    nbt.conv(image, filters, out_dtype="f32").sum().backward()
    assert filters.grad.dtype == torch.float16 and filters.grad.any()


# ---------------------------------------------------------------- what is recorded, and what is not


@pytest.fixture
def calls(monkeypatch):
    """The public functions of numbaprims that are called, in order."""
    made = []
    for name in [name for name in numbaprims._LAZY if callable(getattr(numbaprims, name)) and name != "config"]:
        real = getattr(numbaprims, name)

        def noted(*args, _name=name, _real=real, **kwargs):
            made.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(numbaprims, name, noted)
    return made


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((1, 0, 0), ["conv_backward_data"]),
        ((0, 1, 0), ["conv_backward_weight"]),
        ((0, 0, 1), ["conv_backward_bias"]),
        ((1, 1, 1), ["conv_backward_data", "conv_backward_weight", "conv_backward_bias"]),
    ],
    ids=["x", "weight", "bias", "all"],
)
def test_only_what_is_asked_for_is_computed(calls, wanted, expected):
    x, weight, bias = leaf(1, 2, 4, 4), leaf(3, 2, 3, 3), leaf(3)
    for tensor, want in zip((x, weight, bias), wanted, strict=True):
        tensor.requires_grad_(bool(want))
    y = nbt.conv(x, weight, bias)
    kept = [tensor is not None for tensor in y.grad_fn.saved_tensors]
    assert kept == [bool(wanted[1]), bool(wanted[0]), False, False, False], "what no gradient reads is not kept"
    y.backward(torch.ones_like(y))
    assert calls == ["conv", *expected]
    assert [tensor.grad is not None for tensor in (x, weight, bias)] == [bool(want) for want in wanted]


def test_gemm_computes_only_what_is_asked_for(calls):
    a, b = leaf(3, 4), leaf(4, 2).requires_grad_(False)
    nbt.gemm(a, b, activation="relu").sum().backward()
    assert calls == ["gemm", "activation_backward", "gemm"]


def test_no_wrapper_where_nothing_is_recorded(calls):
    x, weight = leaf(3, 4), leaf(2, 4)
    with torch.no_grad():
        y = nbt.linear(x, weight, activation="relu")
    assert y.grad_fn is None and calls == ["linear"]
    with torch.inference_mode():
        nbt.linear(x, weight, out=y.clone())
    assert nbt.relu(x.detach()).grad_fn is None
    assert nbt.relu(torch.ones(3)[:0]).shape == (0,)


def test_out():
    x, weight, out = leaf(3, 4), leaf(2, 4), torch.empty(3, 2, dtype=torch.float64)
    with pytest.raises(TypeError, match="out is given and an input requires grad"):
        nbt.linear(x, weight, out=out)
    with torch.no_grad():
        assert nbt.linear(x, weight, out=out) is out
    torch.testing.assert_close(out, functional.linear(x, weight).detach())
    y = nbt.exp(x)  # its gradient reads the result
    with torch.no_grad():
        nbt.relu(y, out=y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_tensor_that_requires_grad_is_still_refused_by_numbaprims():
    with pytest.raises(TypeError, match=r"numbaprims\.frontends\.torch"):
        numbaprims.relu(leaf(3))


@pytest.mark.cpu
def test_torch_func():
    x = torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(torch.func.grad(lambda x: nbt.tanh(x).sum())(x), 1 - x.tanh() ** 2)
    for function in (nbt.tanh, numbaprims.tanh):
        with pytest.raises(TypeError, match=r"x is a float64 tensor \(4,\) inside torch.vmap .* pass the whole"):
            torch.func.vmap(function)(x[None])


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_a_trace_would_keep_the_numbers_of_one_call():
    x = torch.randn(3, 3)
    for function in (nbt.relu, numbaprims.relu, lambda x: numbaprims.gemm(x, x), lambda x: numbaprims.gemv(x, x[0])):
        function(x)
        with pytest.raises(TypeError, match=r" is traced by torch.jit.trace, .* use torch.compile"):
            torch.jit.trace(function, (x,))
        for pre_dispatch in (False, True):
            with pytest.raises(TypeError, match=r" is traced by make_fx or torch.export, .* use torch.compile"):
                make_fx(lambda y: function(y), pre_dispatch=pre_dispatch)(x)  # noqa: B023
        with FlopCounterMode(display=False):
            function(x)  # a mode that keeps nothing


def test_autocast():
    x, weight, bias = leaf(3, 4, dtype=torch.float32), leaf(2, 4, dtype=torch.float32), leaf(2, dtype=torch.float32)
    image, filters, slope = leaf(1, 2, 4, 4, dtype=torch.float32), leaf(3, 2, 3, 3, dtype=torch.float32), torch.ones(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = nbt.relu(nbt.linear(x, weight, bias))
        pixels = nbt.conv(image, filters)
        up = nbt.conv_transpose(pixels, filters)
        assert [t.dtype for t in (y, pixels, up, nbt.prelu(pixels, slope))] == [torch.bfloat16] * 4
        assert nbt.gemv(x.double(), weight[0].double()).dtype == torch.float64, "as torch, float64 stays"
        assert nbt.ger(bias.detach(), bias.detach()).dtype == torch.bfloat16
        assert nbt.sigmoid(x).dtype == torch.float32, "activations run in the type of their input"
        assert nbt.gemm(x, weight, trans_b=True, c=bias, beta=1.0).dtype == torch.bfloat16
        with torch.no_grad():
            assert nbt.linear(x, weight).dtype == torch.bfloat16
    (y.float().sum() + up.float().sum()).backward()
    assert {t.grad.dtype for t in (x, weight, bias, image, filters)} == {torch.float32}
    wanted = torch.autograd.grad(functional.relu(functional.linear(x, weight, bias)).sum(), weight)[0]
    torch.testing.assert_close(weight.grad, wanted, rtol=0.05, atol=0.05)


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore")
def test_torch_compile_breaks_its_graph_and_is_right():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 3))
    x = torch.randn(2, 1, 4, 4)
    want = model(x)
    compiled = torch.compile(nbt.nn.replace(model), backend="eager")
    torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
    compiled(x).sum().backward()
    assert model[0].weight.grad.any()


def own_and_derived(x):
    """Calls with an input twice, or one that is computed from another, by us and by torch."""
    return [
        (nbt.binary(x, x, "mul"), x * x),
        (nbt.binary(x, x.mean(), "sub"), x - x.mean()),
        (nbt.binary(x, torch.sigmoid(x), "mul"), x * torch.sigmoid(x)),
        (nbt.where(x.detach() > 0, x, x), x * 1),
        (nbt.layer_norm(x, x.mean(0)), torch.nn.functional.layer_norm(x, x.shape[1:], x.mean(0))),
        (nbt.attention(x[None, None], x[None, None], x[None, None])[0, 0],
         torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]),
    ]  # fmt: skip


@pytest.mark.cpu
@pytest.mark.parametrize("case", range(6))
def test_an_input_twice_and_one_computed_from_another(case):
    """Each has a gradient of its own, which autograd adds up; second ones too."""
    found = []
    for which in (0, 1):
        x = torch.linspace(-2, 3, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
        (first,) = torch.autograd.grad(own_and_derived(x)[case][which].sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x)
        x.grad = None
        own_and_derived(x)[case][which].cos().sum().backward()
        found.append((first, second, x.grad))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.cpu
def test_torch_func_of_sums():
    """Whose gradient depends on no input; derivatives of derivatives."""
    x, w = torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    for ours, theirs in (
        (lambda x: nbt.linear(x, w).sum(), lambda x: torch.nn.functional.linear(x, w).sum()),
        (lambda x: nbt.cumsum(x, 1).sum(), lambda x: x.cumsum(1).sum()),
        (lambda x: nbt.concat([x, x], 0)[1:].sum(), lambda x: torch.cat([x, x])[1:].sum()),
        (lambda x: nbt.layer_norm(x)[0].sum(), lambda x: torch.nn.functional.layer_norm(x, (3,))[0].sum()),
    ):
        torch.testing.assert_close(torch.func.grad(ours)(x), torch.func.grad(theirs)(x))
        twice = [torch.func.grad(lambda x, f=f: (torch.func.grad(f)(x) * x).sum())(x) for f in (ours, theirs)]
        torch.testing.assert_close(*twice)


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # make_dual's own
def test_what_is_no_memory_or_only_a_part_is_refused():
    x = torch.ones(3)
    for function in (nbt.relu, numbaprims.relu):
        function(x)
        with pytest.raises(TypeError, match="no plain CPU memory: it has none, as within torch.func.functionalize"):
            torch.func.functionalize(function)(x)
    with torch.autograd.forward_ad.dual_level():
        for function in (nbt.relu, nbt.nn.Softmax(0), lambda x: nbt.linear(x, torch.ones(2, 3))):
            with pytest.raises(NotImplementedError, match="jvp"):
                function(torch.autograd.forward_ad.make_dual(x, x))


@pytest.mark.cpu
def test_checkpoints():
    x = torch.randn(3, 6, requires_grad=True)
    lstm = nbt.nn.LSTM(6, 4)
    for module in (nbt.nn.LayerNorm(6), nbt.nn.BatchNorm1d(6), nbt.nn.Softmax(1), lambda x: lstm(x)[0]):
        found = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).square().sum()
        want = torch.autograd.grad(module(x).square().sum(), x)
        torch.testing.assert_close(torch.autograd.grad(found, x), want)
