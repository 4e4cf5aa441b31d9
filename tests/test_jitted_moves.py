"""What moves elements, and random numbers, inside a user's own `@njit`: the bits and errors of the public calls."""

import numpy as np
import pytest
from helpers import in_turn
from numba.core.errors import TypingError
from test_jitted import compiled, drawn, refuse_alike, same

import numbaprims
from numbaprims.cpu.call_sites import Site

pytestmark = pytest.mark.cpu
INDICES, SHAPE = np.array([[4, -5, 0], [1, 2, -1]]), (3, 5, 4)
#: A label -> an expression of x (3, 5, 4), integers i (2, 3) from -5 to 4 and a number k.
CALLS = {
    "transform": "nb.transform(x, (k, 2 - k, 1)) if k != 1 else nb.transform(x, (2, 0, k))",
    "transform, strided": "nb.transform(x[:, ::2, ::-1], (1, 2, 0))",
    "transform of none": "nb.transform(np.array(k * 2.0), ())",
    "fill": "nb.fill(x, k + 0.5)",
    "fill of bools": "nb.fill(x > 0, -k - 0.5)",
    "fill, strided": "(nb.fill(x[:, ::2], -k), x)[1]",
    "concat": "nb.concat((x, x[:k], x[::2]), 0)",
    "concat, last": "nb.concat((x, x[..., :k]), axis=k - 3 if k < 1 else 2)",
    "concat, out": "nb.concat((x, x), 1, out=np.empty((3, 10, 4), x.dtype))",
    "split": "nb.split(x, (k, 3 - k))",
    "split in a number": "nb.split(x, 3, axis=1)",
    "split in one": "nb.split(x, 1, axis=k)",
    "pad": "nb.pad(x, k)",
    "pad by a pair": "nb.pad(x, (k, 1), value=k + 0.25)",
    "pad by pairs": "nb.pad(x, ((0, k), (1, -2), (-k, 2)), 'edge')",
    "pad, reflected": "nb.pad(x[::-1], ((k, k),), mode='reflect')",
    "pad of integers": "nb.pad(i, k, 'constant', 7 - k)",
    "pad backward": "nb.pad_backward(nb.pad(x, k, 'wrap'), (3, 5, 4), k, 'wrap')",
    "pad backward, constant": "nb.pad_backward(x, (3, 5 - k, 3), ((0, 0), (k, 0), (0, 1)))",
    "one hot": "nb.one_hot(i, 5 + k)",
    "one hot, strided": "nb.one_hot(i.T, 5, axis=k - 1, on_value=k + 0.5, off_value=-1, dtype='float64')",
    "one hot of bytes": "nb.one_hot(i, 4, on_value=k, dtype='int8', out=np.empty((2, 3, 4), np.int8))",
    "gather": "nb.gather(x, i[:, :k], 1)",
    "gather, last": "nb.gather(x[..., ::-1], i // 2, axis=-1)",
    "gather, first": "nb.gather(x.T.copy().T, i[0] // 2, out=np.empty((3, 5, 4), x.dtype))",
    "gather one": "nb.gather(x, np.array(k), k)",
    "gather backward": "nb.gather_backward(x[:, :, :3], i[0], 5 + k, axis=2)",
    "embedding": "nb.embedding(x[k], i, padding_idx=k)",
    "embedding backward": "nb.embedding_backward(x[:2, :3], i, 5, padding_idx=k, scale_grad_by_freq=k > 1)",
    "embedding backward, plain": "nb.embedding_backward(x[:2, :3].copy(), i, 6)",
    "uniform": "nb.random_uniform((k, 3), low=-k, high=2.5, seed=k, offset=3)",
    "uniform, out": "nb.random_uniform(out=x, seed=k)",
    "normal": "nb.random_normal(40 + k, mean=k, std=0.5, seed=k, dtype='float64')",
    "normal, out": "(nb.random_normal((3, 2, 4), seed=7, out=x[:, 1::2]), x)",
    "lp pool": "nb.lp_pool(x, k, p=k + 0.5, padding=k // 2)",
    "lp pool backward": "nb.lp_pool_backward(nb.lp_pool(x, k), x, nb.lp_pool(x, k), k)",
}


@pytest.mark.parametrize("label, dtype", in_turn(CALLS, [np.float32, np.float64]))
def test_calls(rng, monkeypatch, label, dtype):
    direct, real = [], Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: direct.append(1) or real(*given))
    inside, outside = compiled("x, i, k", CALLS[label])
    for k in (1, 2, 1):
        x = drawn(rng, *SHAPE, dtype=dtype)
        mine = x.copy()
        same(inside(mine, INDICES, k), outside(x, INDICES, k))
        same(mine, x)
    same(inside(x, INDICES.astype(np.int32), k), outside(x, INDICES.astype(np.int32), k))
    assert not direct, "every launch was recorded"


def test_split_gives_a_tuple_of_one(rng):
    inside, _ = compiled("x", "nb.split(x, 1)")
    assert type(inside(drawn(rng, 3))) is tuple


@pytest.mark.parametrize(
    "expression",
    [
        "nb.transform(x, (0, 1))",
        "nb.transform(x, (0, 1, 3))",
        "nb.transform(x, (0, 1, 1))",
        "nb.concat((x, x[0]))",
        "nb.concat((x, x[:, :2]))",
        "nb.concat((x, x), 3)",
        "nb.concat((x, i))",
        "nb.split(x, (1, 1))",
        "nb.split(x, (4, -1))",
        "nb.split(x, 2, axis=3)",
        "nb.split(x, 9)",
        "nb.pad(x, (1, 2, 3))",
        "nb.pad(x, ((1, 2), (3, 4)))",
        "nb.pad(x, -3)",
        "nb.pad(x, 1, 'some')",
        "nb.pad(i, 1, value=0.5)",
        "nb.pad_backward(x, (1, 2, 3), 1)",
        "nb.one_hot(i, -1)",
        "nb.one_hot(i, 3, axis=3)",
        "nb.one_hot(i, 3, on_value=0.5, dtype='int8')",
        "nb.one_hot(x, 3)",
        "nb.one_hot(i, ())",
        "nb.topk(x, ())",
        "nb.dynamic_quantize(x, axis=())",
        "nb.split(x, ())",
        "nb.gemm(x[0], x[0], trans_b=True, out_dtype='float8')",
        "nb.gather(x, i)",
        "nb.gather(x, i.T, 2)",
        "nb.gather(x, np.array(17), 1)",
        "nb.gather(x, i, 3)",
        "nb.gather(x, x)",
        "nb.gather_backward(x, i[0], 3, 1)",
        "nb.gather_backward(x[:, :3], i[0], 4, 1)",
        "nb.gather_backward(x, i[0], -1, 1)",
        "nb.embedding(x, i)",
        "nb.embedding(x[0], i + 1)",
        "nb.embedding(x[0], i, padding_idx=5)",
        "nb.embedding_backward(x[:2, :3], i, 3)",
        "nb.random_uniform(-1, seed=1)",
        "nb.random_uniform(3, high=np.inf, seed=1)",
        "nb.random_normal((2, 2), seed=1, out=x)",
        "nb.lp_pool(x, 2, p=-1.0)",
    ],
)
def test_errors_are_those_of_the_public_call(rng, expression):
    x = drawn(rng, *SHAPE)
    inside, outside = compiled("x, i", expression)
    refuse_alike(inside, outside, x, INDICES)


def test_an_index_out_of_range_after_a_good_one(rng):
    """The same record: nothing is written, and the place of the first one is told."""
    inside, outside = compiled("x, i, out", "nb.gather(x, i, out=out)")
    x, out = drawn(rng, 5, 3), np.full((2, 3, 3), 7, np.float32)
    same(inside(x, INDICES, np.empty_like(out)), x[INDICES])
    wrong = INDICES.copy()
    wrong[1, 1] = 9
    for function in (inside, outside):
        with pytest.raises(IndexError, match=r"indices\[1, 1\] is 9; of 5 elements the indices are -5 to 4"):
            function(x, wrong, out)
        assert (out == 7).all()


@pytest.mark.parametrize(
    "expression, words",
    [
        ("nb.split(x, k)", "sizes must be a literal int or a tuple of ints"),
        ("nb.concat([x, x])", "parts is"),
        ("nb.concat(())", "parts is"),
        ("nb.gather(x, np.arange(k), out=x[:, ::2])", "out is .* it must lie in C order"),
        ("nb.random_uniform(seed=k)", "shape is None and so is out"),
        ("nb.random_uniform(3, seed=1.5)", "seed is"),
        ("nb.pad(x, 0.5)", "pads is"),
        ("nb.cast(x, 'bfloat16')", "cast inside @njit: dtype is 'bfloat16', and Numba has no such arrays"),
        ("nb.cast(x, np.float16)", "dtype is 'float16', and Numba has no such arrays"),
        ("nb.gemm(x[0], x[0], out_dtype='bfloat16')", "out_dtype is 'bfloat16', and Numba has no such arrays"),
    ],
)
def test_refusals_name_the_argument(rng, expression, words):
    with pytest.raises((TypeError, TypingError), match=words):
        compiled("x, k", expression)[0](drawn(rng, *SHAPE), 2)


def test_an_empty_result(rng):
    inside, outside = compiled("x, i", "nb.gather(x, i), nb.pad(x[:0], ((1, 0), (0, 0))), nb.split(x, (0, 2))[0]")
    for got, want in zip(inside(drawn(rng, 2, 3), INDICES[:0]), outside(drawn(rng, 2, 3), INDICES[:0]), strict=True):
        assert got.shape == want.shape and (got == want).all()


def test_numbers_of_a_layer_are_those_of_its_seed():
    inside, _ = compiled("n, seed", "nb.random_normal((n, 2), seed=seed)")
    same(inside(5, 3), numbaprims.random_normal((5, 2), seed=3))
