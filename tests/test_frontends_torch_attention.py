"""Attention and transformer layers of `numbaprims.frontends.torch.nn` beside torch's."""

import contextlib
import copy
import doctest

import pytest

torch = pytest.importorskip("torch")

from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.frontends.torch import nn_attention  # noqa: E402

TRIL = torch.ones(5, 5).tril() == 0
KEYS = torch.tensor([[False, False, True, False, True], [False, True, False, False, False]])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def asked(monkeypatch):
    """Which of our functions was called."""
    calls = []
    for name in ("attention", "linear"):
        own = getattr(nn_attention, name)
        monkeypatch.setattr(
            nn_attention, name, lambda *a, own=own, name=name, **w: (calls.append(name), own(*a, **w))[1]
        )
    return calls


@contextlib.contextmanager
def slow_torch():
    """torch layer by layer, as its definition says."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


MASKS = {
    "none": {},
    "pairs": {"attn_mask": TRIL},
    "causal": {"attn_mask": TRIL, "is_causal": True},
    "keys": {"key_padding_mask": KEYS},
    "both": {"attn_mask": TRIL, "key_padding_mask": KEYS, "is_causal": True},
    "added": {"attn_mask": torch.randn(2 * 4, 5, 5), "key_padding_mask": torch.randn(2, 5)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", ["self", "cross", "other sizes"])
def test_attention(form, mask, asked):
    words = {"batch_first": form != "cross"} | ({"kdim": 6, "vdim": 7} if form == "other sizes" else {})
    theirs = torch.nn.MultiheadAttention(8, 4, **words)
    torch.nn.init.normal_(theirs.in_proj_bias)
    ours = nbt.nn.replace(copy.deepcopy(theirs))
    q = torch.randn(2, 5, 8) if words["batch_first"] else torch.randn(5, 2, 8)
    k = q if form == "self" else torch.randn(*q.shape[:2], words.get("kdim", 8))
    v = q if form == "self" else torch.randn(*q.shape[:2], words.get("vdim", 8))
    found = []
    for module in (ours, theirs):
        given = [x.clone().requires_grad_() for x in (q, k, v)]
        given = [given[0]] * 3 if form == "self" else given
        y, weights = module(*given, need_weights=False, **MASKS[mask])
        assert weights is None
        (y * torch.linspace(0, 1, 8)).square().sum().backward()
        found.append([y, *(x.grad for x in given), *(p.grad for p in module.parameters())])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert asked.count("attention") == 1 and asked.count("linear") == (2 if form == "self" else 4)


def test_one_sequence_and_no_bias(asked):
    theirs = torch.nn.MultiheadAttention(8, 2, bias=False).eval()
    ours = nbt.nn.replace(copy.deepcopy(theirs))
    x = torch.randn(5, 8)
    for masks in ({}, {"key_padding_mask": KEYS[0]}, {"attn_mask": torch.randn(2, 5, 5)}):
        found = (module(x, x, x, need_weights=False, **masks)[0] for module in (ours, theirs))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert asked.count("attention") == 3


def test_a_query_to_which_no_key_is_open():
    module = nbt.nn.MultiheadAttention(8, 2, batch_first=True)
    torch.nn.init.ones_(module.out_proj.bias)
    x = torch.randn(1, 5, 8)
    y, _ = module(x, x, x, need_weights=False, key_padding_mask=torch.ones(1, 5, dtype=torch.bool))
    assert torch.equal(y, torch.ones_like(y))


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ({}, {"need_weights": True}),
        ({}, {"need_weights": True, "average_attn_weights": False}),
        ({"dropout": 0.5}, {"need_weights": False}),
        ({"add_bias_kv": True}, {"need_weights": False}),
        ({"add_zero_attn": True}, {"need_weights": False}),
    ],
)
def test_what_torch_computes(words, call, asked):
    theirs = torch.nn.MultiheadAttention(8, 2, **words)
    ours, x = nbt.nn.replace(copy.deepcopy(theirs)), torch.randn(5, 2, 8)
    found = []
    for module in (ours, theirs):
        torch.manual_seed(3)
        found.append([y for y in module(x, x, x, **call) if y is not None])
    torch.testing.assert_close(*found)
    assert not asked


def test_refusals_are_torchs():
    x = torch.randn(2, 5, 8)
    for layers in (torch.nn, nbt.nn):
        with pytest.raises((RuntimeError, AssertionError), match="causal"):
            layers.MultiheadAttention(8, 2, batch_first=True)(x, x, x, need_weights=False, is_causal=True)


@pytest.mark.parametrize(
    ("masks", "error", "words"),
    [
        ({"attn_mask": TRIL.byte()}, TypeError, "attn_mask is of torch.uint8"),
        ({"key_padding_mask": KEYS.int()}, TypeError, "key_padding_mask is of torch.int32"),
        ({"attn_mask": TRIL[:, :1]}, ValueError, r"attn_mask has shape \(5, 1\); it must be \(5, 5\) or \(4, 5, 5\)"),
        ({"attn_mask": TRIL.expand(3, 5, 5)}, ValueError, r"attn_mask has shape \(3, 5, 5\)"),
        ({"key_padding_mask": KEYS[:1]}, ValueError, r"key_padding_mask has shape \(1, 5\); it must be \(2, 5\)"),
    ],
)
def test_masks_that_torch_refuses(masks, error, words):
    x = torch.randn(2, 5, 8)
    with pytest.raises(error, match=words):
        nbt.nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x, need_weights=False, **masks)
    with pytest.raises((RuntimeError, AssertionError)):
        torch.nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x, need_weights=False, **masks)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("activation", ["relu", "gelu", torch.nn.SiLU()])
@pytest.mark.parametrize("first", [False, True])
def test_transformers(activation, first, asked):
    words = {"activation": activation, "norm_first": first, "batch_first": True, "dropout": 0.0}
    theirs = torch.nn.Transformer(8, 2, 1, 1, 16, **words)
    ours = nbt.nn.replace(copy.deepcopy(theirs))
    assert type(ours.encoder.layers[0]) is nbt.nn.TransformerEncoderLayer
    assert type(ours.decoder.layers[0].self_attn) is nbt.nn.MultiheadAttention
    assert list(ours.state_dict()) == list(theirs.state_dict())
    source, target = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    masks = {"tgt_mask": torch.nn.Transformer.generate_square_subsequent_mask(3), "src_key_padding_mask": KEYS}
    found = []
    for module in (ours, theirs):
        y = module(source, target, **masks)
        module.zero_grad()
        y.square().sum().backward()
        found.append([y, *(p.grad for p in module.parameters())])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert asked.count("attention") == 3
    del asked[:]
    with torch.no_grad(), slow_torch():
        want = theirs.eval()(source, target, **masks)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(source, target, **masks), want, rtol=1e-4, atol=1e-5)
    assert asked.count("attention") == 3, "no kernel of torch's takes the layer as a whole"


@pytest.mark.parametrize("mask", ["keys", "causal", "both", "added"])
def test_masks_under_autocast(mask):
    theirs = torch.nn.MultiheadAttention(8, 4, batch_first=True)
    ours, x = nbt.nn.replace(copy.deepcopy(theirs)), torch.randn(2, 5, 8)
    masks = {
        name: torch.zeros(y.shape).masked_fill(y, -torch.inf) if torch.is_tensor(y) and y.dtype == torch.bool else y
        for name, y in MASKS[mask].items()
    }
    with torch.autocast("cpu", torch.bfloat16):
        y, want = (module(x, x, x, need_weights=False, **masks)[0] for module in (ours, theirs))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, want, rtol=2e-2, atol=2e-2)


def test_hooks_of_a_layer_are_called():
    layer = nbt.nn.replace(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    seen = []
    layer.linear1.register_forward_hook(lambda module, given, y: seen.append(y.shape))
    layer(torch.randn(2, 5, 8))
    assert seen == [(2, 5, 16)]
    layer.linear1._forward_hooks.clear()
    layer.linear1.register_full_backward_hook(lambda module, dx, dy: seen.append(dy[0].shape))
    layer(torch.randn(2, 5, 8)).sum().backward()
    assert seen == [(2, 5, 16)] * 2


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def with_own_forward(module):
    forward = module.forward
    module.forward = lambda x: 2 * forward(x)
    return module


LINEARS = {
    "subclass": lambda: Doubled(8, 16),
    "instance": lambda: with_own_forward(torch.nn.Linear(8, 16)),
    "sequence": lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh()),
    "activation": lambda: nbt.nn.Linear(8, 16, activation="tanh"),
}


@pytest.mark.parametrize("what", LINEARS)
@pytest.mark.parametrize("layer", ["Encoder", "Decoder"])
def test_a_linear_layer_of_ones_own_is_called(layer, what):
    theirs = getattr(torch.nn, f"Transformer{layer}Layer")(8, 2, 16, dropout=0.0, batch_first=True)
    theirs.linear1 = LINEARS[what]()
    given = [torch.randn(2, 5, 8)] * (1 if layer == "Encoder" else 2)
    want = theirs(*given)
    torch.testing.assert_close(nbt.nn.replace(theirs)(*given), want, rtol=1e-4, atol=1e-5)


def test_examples_run():
    failed, tried = doctest.testmod(nn_attention)
    assert failed == 0 < tried
