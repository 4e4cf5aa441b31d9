"""Models, training and initial weights of `numbaprims.nn`: batches and shapes that do not fit, and empty ones."""

import numpy as np
import pytest

from numbaprims.nn import init
from numbaprims.nn.cnn import CNN
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


@pytest.mark.parametrize("rows, labels", [(0, 0), (3, 4), (3, 2)])
def test_training_wants_a_label_for_each_sample(rows, labels):
    with pytest.raises(ValueError, match=rf"x is \({rows}, 16\) and labels \({labels},\)"):
        train([MODELS["mlp"][0]()], np.ones((rows, 16), np.float32), np.zeros(labels, int), epochs=1, batch=2, rate=0.1)


@pytest.mark.parametrize("make", [init.xavier_uniform, init.xavier_normal, init.kaiming_uniform, init.kaiming_normal])
def test_weights_without_elements(make):
    for shape in ((5, 0), (0, 5), (0, 0), (3, 2, 0)):
        assert make(shape, seed=1).shape == shape
