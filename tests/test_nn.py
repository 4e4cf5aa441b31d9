"""Models, training and initial weights of `numbaprims.nn`: batches and shapes that do not fit, and empty ones."""

import numpy as np
import pytest

from numbaprims.nn import init
from numbaprims.nn.cnn import CNN
from numbaprims.nn.lstm import LSTM, Piece, pieces
from numbaprims.nn.mlp import MLP
from numbaprims.nn.training import train

pytestmark = pytest.mark.cpu
MODELS = {"mlp": (lambda: MLP((16, 5, 3)), ("weights", "biases")), "cnn": (lambda: CNN(4, 3), ("weights", "shifts"))}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows, labels, error, words", [
    (3, [1], ValueError, r"x is \(3, 16\) and labels \(1,\); they must be as many, one or more"),
    (1, [[1]], ValueError, r"labels \(1, 1\)"),
    (0, [], ValueError, "one or more"),
    (2, [1.7, 0.9], TypeError, "labels are float64; they must be integers"),
    (2, [0, -100], ValueError, "labels go from -100 to 0; they must be 0 to 2"),
    (1, [3], ValueError, "labels go from 3 to 3; they must be 0 to 2"),
])  # fmt: skip
def test_a_step_refuses_before_it_changes_anything(name, rows, labels, error, words):
    make, parts = MODELS[name]
    model = make()
    with pytest.raises(error, match=words):
        model.train_step(np.ones((rows, 16), np.float32), np.array(labels), 0.1)
    for part in parts:
        for mine, untouched in zip(getattr(model, part), getattr(make(), part), strict=True):
            np.testing.assert_array_equal(mine, untouched)
    if name == "cnn":
        assert all(not mean.any() and (var == 1).all() for mean, var in model.running)


@pytest.mark.parametrize("name", MODELS)
def test_no_rows_have_no_classes(name):
    found = MODELS[name][0]().predict(np.empty((0, 16), np.float32))
    assert found.shape == (0,) and found.dtype == np.int64


@pytest.mark.parametrize("name", MODELS)
def test_what_is_no_array_of_rows_is_refused(name):
    model, x = MODELS[name][0](), np.ones((2, 16), np.float32)
    with pytest.raises(TypeError, match="labels must be an array, not a list"):
        model.train_step(x, [0, 1], 0.1)
    for call in (model.predict, lambda x: model.train_step(x, np.zeros(len(x), int), 0.1)):
        with pytest.raises(TypeError, match="x must be an array, not a list"):
            call(x.tolist())
        for given in (x[0], x[:, :15]):
            with pytest.raises(ValueError, match=r"x is \(.*\); it must be \(rows, 16\)"):
                call(given)


@pytest.mark.parametrize("name", MODELS)
def test_images_are_rows(name):
    x, labels = np.random.default_rng(1).random((3, 4, 4), np.float32), np.arange(3)
    for count in (1, 3):
        models = [MODELS[name][0]() for _ in range(2)]
        losses = [
            model.train_step(given[:count], labels[:count], 0.1)
            for model, given in zip(models, (x, x.reshape(3, 16)), strict=True)
        ]
        assert losses[0] == losses[1] and (models[0].predict(x) == models[1].predict(x.reshape(3, 16))).all()


@pytest.mark.parametrize("make, words", [
    (lambda: LSTM(5, 0), "characters is 5 and hidden 0; both must be 1 or more"),
    (lambda: LSTM(-1, 4), "characters is -1 and hidden 4"),
    (lambda: next(pieces(np.arange(9), 0, 3)), "streams is 0 and steps 3; both must be 1 or more"),
    (lambda: next(pieces(np.arange(9), 2, 0)), "streams is 2 and steps 0"),
])  # fmt: skip
def test_sizes_below_one_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("codes, error, words", [
    ([1, 5], ValueError, "go from 1 to 5; they must be 0 to 4"),
    ([-1, 2], ValueError, "go from -1 to 2; they must be 0 to 4"),
    ([0.0, 1.0], TypeError, "are float64; they must be integers"),
    ([], ValueError, "they must be one or more"),
])  # fmt: skip
def test_characters_that_there_are_not(codes, error, words):
    model, codes = LSTM(5, 4, seed=1), np.array(codes)
    before, good = [each.copy() for each in model.parameters], np.zeros((len(codes), 1), int)
    for piece in (Piece(codes[:, None], good), Piece(good, codes[:, None])):
        with pytest.raises(error, match=words):
            model.train_step(piece, 0.1)
    with pytest.raises(error, match=f"characters of start {words}" if len(codes) else words):
        model.write(codes, 3)
    if len(codes):
        with pytest.raises(error, match=f"characters {words}"):
            model.bits(np.append(codes, 0 * codes[:1]), 1)
    with pytest.raises(TypeError, match="characters of start must be an array, not a list"):
        model.write([0], 3)
    for mine, untouched in zip(model.parameters, before, strict=True):
        np.testing.assert_array_equal(mine, untouched)


@pytest.mark.parametrize("rows, labels", [(0, 0), (3, 4), (3, 2)])
def test_training_wants_a_label_for_each_sample(rows, labels):
    with pytest.raises(ValueError, match=rf"x is \({rows}, 16\) and labels \({labels},\)"):
        train([MODELS["mlp"][0]()], np.ones((rows, 16), np.float32), np.zeros(labels, int), epochs=1, batch=2, rate=0.1)


@pytest.mark.parametrize("make", [init.xavier_uniform, init.xavier_normal, init.kaiming_uniform, init.kaiming_normal])
def test_weights_without_elements(make):
    for shape in ((5, 0), (0, 5), (0, 0), (3, 2, 0)):
        assert make(shape, seed=1).shape == shape
