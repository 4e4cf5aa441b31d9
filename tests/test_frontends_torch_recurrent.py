"""Recurrent networks of `numbaprims.frontends.torch`: modules beside torch's, gradients of both orders."""

import copy
import io

import pytest

import numbaprims

torch = pytest.importorskip("torch")
from test_frontends_torch import both_orders, leaf  # noqa: E402
from torch.nn.utils import rnn as packing  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.philox import dropout_mask  # noqa: E402
from numbaprims.recurrent.weights import RnnWeights  # noqa: E402

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")]
NETWORKS = {
    "LSTM": [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2, "num_layers": 2}, {"bias": False}],
    "GRU": [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False, "num_layers": 3}],
    "RNN": [{}, {"nonlinearity": "relu", "num_layers": 2}, {"bidirectional": True, "bias": False}],
}
EACH_NETWORK = pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name, each in NETWORKS.items() for words in each], ids=str
)
CELLS = [("LSTMCell", {}), ("GRUCell", {"bias": False}), ("RNNCell", {"nonlinearity": "relu"}), ("RNNCell", {})]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def twins(name, *args, **words):
    """(ours, torch's) of the same parameters."""
    theirs, ours = (getattr(layers, name)(*args, **words) for layers in (torch.nn, nbt.nn))
    assert list(ours.state_dict()) == list(theirs.state_dict()) and isinstance(ours, type(theirs))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def flat(found):
    """The tensors of a result."""
    if isinstance(found, packing.PackedSequence):
        return [found.data]
    return [found] if isinstance(found, torch.Tensor) else [x for each in found for x in flat(each)]


def states_of(module, batch):
    """First states, of which gradients are asked."""
    lead = (module.num_layers * (1 + module.bidirectional), *batch)
    h0 = leaf(*lead, module.proj_size or module.hidden_size, dtype=torch.float32)
    return (h0, leaf(*lead, module.hidden_size, dtype=torch.float32)) if module.mode == "LSTM" else h0


def same(modules, x, *hx, pack=lambda x: x, tolerance=1e-4):
    """Results and gradients of both modules are the same."""
    leaves, found = [state for state in flat(hx) if state is not None], []
    for module in modules:
        given = x.clone().requires_grad_()
        results = flat(module(pack(given), *hx))
        loss = sum((torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y) * y).sum() for y in results)
        found.append([*results, *torch.autograd.grad(loss, [given, *leaves, *module.parameters()])])
        with torch.no_grad():
            found[-1] += flat(module(pack(given), *hx))
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


@EACH_NETWORK
def test_networks_are_torchs(name, words):
    modules = twins(name, 3, 5, **words)
    x = torch.randn(4, 6, 3)
    same(modules, x)
    same(modules, x, states_of(modules[0], (4 if words.get("batch_first") else 6,)))
    same(modules, x[0])
    same(modules, x[0], states_of(modules[0], ()))
    same(modules, x.transpose(0, 1))
    assert modules[0](torch.randn(4, 6, 3))[0].requires_grad


@EACH_NETWORK
@pytest.mark.parametrize("lengths", [[5, 5, 2, 1], [2, 5, 1, 4]], ids=["sorted", "unsorted"])
def test_packed_sequences_are_torchs(name, words, lengths):
    modules = twins(name, 3, 5, **words)
    first = words.get("batch_first", False)
    x = torch.randn(4, 5, 3) if first else torch.randn(5, 4, 3)

    def pack(x):
        return packing.pack_padded_sequence(x, torch.tensor(lengths), first, enforce_sorted=lengths[0] == 5)

    same(modules, x, pack=pack)
    same(modules, x, states_of(modules[0], (4,)), pack=pack)
    ours, theirs = (module(pack(x))[0] for module in modules)
    assert isinstance(ours, packing.PackedSequence)
    torch.testing.assert_close(packing.pad_packed_sequence(ours), packing.pad_packed_sequence(theirs))


@pytest.mark.parametrize(("name", "words"), CELLS, ids=str)
def test_cells_are_torchs(name, words):
    modules = twins(name, 3, 5, **words)
    for shape in ((7,), ()):
        x, state = torch.randn(*shape, 3), leaf(*shape, 5, dtype=torch.float32)
        hx = (state, leaf(*shape, 5, dtype=torch.float32)) if name == "LSTMCell" else state
        for given in ((), (hx,)):
            same(modules, x, *given)
    h = modules[0](x)
    assert all(isinstance(each, torch.Tensor) for each in (h if name == "LSTMCell" else [h]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["f64", "bf16"])
def test_other_types(dtype):
    modules = [module.to(dtype) for module in twins("LSTM", 3, 5, num_layers=2)]
    same(modules, torch.randn(4, 6, 3, dtype=dtype), tolerance=1e-6 if dtype == torch.float64 else 0.1)
    ours = nbt.nn.GRU(3, 5, dtype=dtype, device="cpu")
    assert ours(torch.randn(2, 1, 3, dtype=dtype))[0].dtype == dtype


def test_a_module_that_has_run_takes_another_type_and_other_weights():
    modules = twins("GRU", 3, 5)
    x = torch.randn(4, 6, 3)
    same(modules, x)
    same([module.double() for module in modules], x.double())
    weight = torch.nn.Parameter(torch.randn(15, 5, dtype=torch.float64))
    for module in modules:
        module.weight_hh_l0 = weight
    same(modules, x.double())
    with torch.no_grad():
        weight.mul_(0.5)
    same(modules, x.double())
    # transposed memory
    weight = torch.nn.Parameter(torch.randn(5, 15, dtype=torch.float64).T)
    for module in modules:
        module.weight_hh_l0 = weight
    same(modules, x.double())


def test_refusals():
    for layers in (torch.nn, nbt.nn):
        network, cell = layers.LSTM(3, 5), layers.GRUCell(3, 5)
        with pytest.raises(ValueError, match="2D or 3D, got 4D"):
            network(torch.zeros(1, 2, 3, 3))
        with pytest.raises(RuntimeError, match=r"For batched 3-D|For 3-D"):
            network(torch.zeros(2, 1, 3), (torch.zeros(1, 5), torch.zeros(1, 5)))
        with pytest.raises(RuntimeError, match="Expected 3, got 4"):
            network(torch.zeros(2, 1, 4))
        with pytest.raises(RuntimeError, match=r"Expected hidden\[1\] size \(1, 1, 5\), got \[1, 2, 5\]"):
            network(torch.zeros(2, 1, 3), (torch.zeros(1, 1, 5), torch.zeros(1, 2, 5)))
        with pytest.raises(ValueError, match="does not match weight dtype"):
            network(torch.zeros(2, 1, 3, dtype=torch.float64))
        with pytest.raises(ValueError, match="1D or 2D, got 3D"):
            cell(torch.zeros(2, 1, 3))


# ---------------------------------------------------------------- a model's modules


def test_replace_shares_weights():
    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.cell = torch.nn.LSTM(3, 4, 2, dropout=0.5), torch.nn.GRUCell(4, 2)

        def forward(self, x):
            return self.cell(self.rnn(x)[0][-1])

    model = Tagger().eval()
    x, twin, parameters = torch.randn(5, 2, 3), copy.deepcopy(model), list(model.parameters())
    assert nbt.nn.replace(model) is model
    assert (type(model.rnn), type(model.cell)) == (nbt.nn.LSTM, nbt.nn.GRUCell)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    torch.testing.assert_close(model(x), twin(x))
    for again in (copy.deepcopy(model), saved(model)):
        assert type(again.rnn) is nbt.nn.LSTM and again.rnn.weight_ih_l0 is not model.rnn.weight_ih_l0
        torch.testing.assert_close(again(x), twin(x))


def saved(model):
    """The networks of a model, written and read."""
    for name in ("rnn", "cell"):
        file = io.BytesIO()
        torch.save(getattr(model, name), file)
        file.seek(0)
        model = copy.copy(model)
        model._modules = {**model._modules, name: torch.load(file, weights_only=False)}
    return model


def test_training_reaches_torchs_weights():
    def trained(layers):
        torch.manual_seed(1)
        model, head, x = layers.LSTM(2, 8, 2), torch.nn.Linear(8, 1), torch.randn(6, 16, 2)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.5)
        losses = []
        for _ in range(20):
            loss = (head(model(x)[0][-1])[:, 0] - x.sum((0, 2)) / 6).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    ours = trained(nbt.nn)
    torch.testing.assert_close(ours, trained(torch.nn), rtol=1e-3, atol=1e-4)
    assert ours[-1] < 0.8 * ours[0]


# ---------------------------------------------------------------- dropout


def test_dropout_between_layers():
    ours, theirs = twins("GRU", 3, 8, num_layers=2, dropout=0.5)
    x = torch.randn(5, 4, 3)
    torch.manual_seed(3)
    y = ours(x)[0]
    torch.manual_seed(3)
    assert torch.equal(ours(x)[0], y) and not torch.equal(ours(x)[0], y)
    torch.manual_seed(3)
    seed = int(torch.randint((1 << 63) - 1, ()))
    below, above = torch.nn.GRU(3, 8), torch.nn.GRU(8, 8)
    for layer, module in enumerate((below, above)):
        weights = {name[:-1] + "0": x for name, x in theirs.state_dict().items() if name.endswith(str(layer))}
        module.load_state_dict(weights)
    mask = torch.from_numpy(dropout_mask((5, 4, 8), 0.5, seed)) * 2.0
    torch.testing.assert_close(y, above(below(x)[0] * mask)[0])
    same([module.eval() for module in (ours, theirs)], x)


# ---------------------------------------------------------------- functions

CASES = {
    "plain": {},
    "two ways": {"layers": 2, "directions": 2, "start": True},
    "lengths": {"words": {"lengths": [2, 0, 3]}, "directions": 2, "start": True},
    "packed": {"words": {"batch_sizes": [3, 2, 1]}, "start": True},
    "reverse": {"words": {"reverse": True, "batch_first": True}, "bias": False},
    "sum": {"words": {"merge": "sum"}, "directions": 2, "layers": 2},
    "skip": {"skip": True},
}


def network(
    cell, *, layers=1, directions=1, bias=True, skip=False, words=None, inputs=2, hidden=2, after=True, more=()
):
    """The leaves of a network, and how it is made of them."""
    rows = {"lstm": 4, "gru": 3}.get(cell, 1) * hidden
    width = hidden * (1 if (words or {}).get("merge") == "sum" else directions)
    lists = {name: [] for name in ("w_ih", "w_hh", *(["b_ih", "b_hh"] if bias else []), *more)}
    for k in range(layers * directions):
        shapes = {
            "w_ih": (rows, inputs if k < directions else width), "w_hh": (rows, 1 if "w_hr" in more else hidden),
            "b_ih": (rows,), "b_hh": (rows,), "w_hr": (1, hidden), "peephole": (3, hidden),
        }  # fmt: skip
        for name, found in lists.items():
            found.append(None if skip and name == "w_ih" else leaf(*shapes[name]))
    leaves = [x for found in lists.values() for x in found if x is not None]
    words = {"directions": directions, "reset_after": after, "skip_input": skip}

    def made(arrays):
        given = iter(arrays)
        return RnnWeights.from_arrays(
            cell, **{name: [None if x is None else next(given) for x in each] for name, each in lists.items()}, **words
        )

    return leaves, made


def check_orders(cell, *, start=False, words=None, train=None, **more):
    leaves, made = network(cell, words=words, **more)
    name = cell.partition("_")[0]
    packed = "batch_sizes" in (words or {})
    x = leaf(6, 2) if packed else leaf(3, 3, 2)
    count = more.get("layers", 1) * more.get("directions", 1)
    states = [leaf(count, 3, 2) for _ in range(2 if name == "lstm" else 1)] if start else []
    function = getattr(nbt, f"{name}_train" if train else name)

    def run(x, *given):
        found = function(x, made(given[len(states) :]), *given[: len(states)], **(words or {}), **(train or {}))
        return found[: 3 if name == "lstm" else 2]

    plain = getattr(numbaprims, f"{name}_train" if train else name)
    with torch.no_grad():
        wanted = plain(x, made(leaves), *states, **(words or {}), **(train or {}))
    torch.testing.assert_close(
        list(run(x, *states, *leaves)), [y.clone() for y in wanted[: 3 if name == "lstm" else 2]]
    )
    both_orders(run, x, *states, *leaves, fast=True)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_gradients(cell, case):
    check_orders(cell, **CASES[case])


def test_gradients_of_variants():
    check_orders("gru", after=False, start=True)
    check_orders("rnn_relu", layers=2)
    check_orders("lstm", more=("peephole",), words={"lengths": [3, 1, 2]})
    check_orders("lstm", more=("w_hr",), layers=1)
    check_orders("lstm", layers=2, train={"dropout": 0.5, "seed": 7})


def test_only_what_is_asked_for_has_a_gradient():
    leaves, made = network("gru")
    for tensor in leaves[1:]:
        tensor.requires_grad_(False)
    x = leaf(3, 3, 2)
    y, h_n = nbt.gru(x, made(leaves))
    h_n.sum().backward()
    assert leaves[0].grad.any() and x.grad.any() and all(tensor.grad is None for tensor in leaves[1:])
    assert not any(tensor.requires_grad for tensor in nbt.gru(x.detach(), made([w.detach() for w in leaves])))
    weights = made(leaves)
    tied = RnnWeights("gru", (*weights.parts, *weights.parts))  # a tensor that is given twice
    grads = [
        torch.autograd.grad(nbt.gru(x, tied)[0].square().sum(), leaves[0], create_graph=create)[0]
        for create in (False, True)
    ]
    torch.testing.assert_close(*grads)


def test_inference_keeps_nothing(monkeypatch):
    called = []
    for name in ("lstm", "lstm_train"):
        real = getattr(numbaprims, name)
        monkeypatch.setattr(numbaprims, name, lambda *a, _r=real, _n=name, **k: (called.append(_n), _r(*a, **k))[1])
    module = nbt.nn.LSTM(3, 5)
    with torch.no_grad():
        module(torch.randn(2, 1, 3))
    assert called == ["lstm"]
    y, _ = module(torch.randn(2, 1, 3))
    assert called == ["lstm", "lstm_train"] and y.requires_grad


def test_refusals_of_functions():
    leaves, made = network("lstm")
    x = leaf(3, 3, 2)
    with pytest.raises(TypeError, match=r"numbaprims\.frontends\.torch"):
        numbaprims.lstm(x.detach(), made(leaves))
    with pytest.raises(TypeError, match="weights is a list; lstm takes RnnWeights"):
        nbt.lstm(x, leaves)
    with pytest.raises(TypeError, match="out is given and an input requires grad"):
        nbt.lstm(x, made(leaves), out=torch.empty(3, 3, 2))
    with pytest.raises(TypeError, match="clip is given and an input requires grad"):
        nbt.lstm(x, made(leaves), clip=1.0)
    with torch.no_grad():
        out = torch.empty(3, 3, 2, dtype=torch.float64)
        assert nbt.lstm(x, made(leaves), clip=1.0, out=out)[0] is out


def test_autocast():
    module = nbt.nn.LSTM(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, (h_n, c_n) = module(torch.randn(4, 2, 3))
    assert {y.dtype, h_n.dtype, c_n.dtype} == {torch.bfloat16}
    y.float().sum().backward()
    assert module.weight_hh_l0.grad.dtype == torch.float32 and module.weight_hh_l0.grad.any()
