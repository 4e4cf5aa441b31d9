"""The same perceptron in plain NumPy, to train beside ours: same weights at the start, same steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbaprims.nn.losses import softmax_cross_entropy_by
from numbaprims.nn.mlp import MLP

_FORWARD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "relu": lambda z: np.maximum(z, 0),
    "tanh": np.tanh,
}
_SLOPE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda y: y * (1 - y),
    "relu": lambda y: y > 0,
    "tanh": lambda y: 1 - y * y,
}


class NumpyMLP:
    """An `MLP` whose products are numpy.matmul and whose exponentials numpy.exp, from the weights of one."""

    def __init__(self, like: MLP) -> None:
        self.activation = like.activation
        self.weights, self.biases = like.on_host()

    def _forward(self, x: np.ndarray) -> list[np.ndarray]:
        outputs = [x]
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            z = outputs[-1] @ weight.T
            z += bias
            outputs.append(_FORWARD[self.activation](z) if i < len(self.weights) - 1 else z)
        return outputs

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Give the most likely class of each row of x, as `MLP.predict`."""
        return self._forward(x)[-1].argmax(axis=1)

    def train_step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """Take one step of gradient descent on a batch, as `MLP.train_step`."""
        outputs = self._forward(x)
        loss, delta = softmax_cross_entropy_by(np.exp, np.log, outputs.pop(), labels)
        for i in range(len(self.weights) - 1, -1, -1):
            below = outputs[i]
            back = (delta @ self.weights[i]) * _SLOPE[self.activation](below) if i else delta
            self.weights[i] -= rate * (delta.T @ below)
            self.biases[i] -= rate * delta.sum(axis=0)
            delta = back
        return loss
