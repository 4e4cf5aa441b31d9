"""The same networks in plain NumPy, to train beside ours: same weights at the start, same steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbaprims.nn.cnn import CNN, Layer
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
        return self.step(x, labels, rate)[0]

    def step(
        self, x: np.ndarray, labels: np.ndarray, rate: float, *, dx: bool = False
    ) -> tuple[float, np.ndarray | None]:
        """The loss, and its gradient by x where that is asked for."""
        outputs = self._forward(x)
        loss, delta = softmax_cross_entropy_by(np.exp, np.log, outputs.pop(), labels)
        for i in range(len(self.weights) - 1, -1, -1):
            below = outputs[i]
            back = delta @ self.weights[i] if i or dx else None
            self.weights[i] -= rate * (delta.T @ below)
            self.biases[i] -= rate * delta.sum(axis=0)
            if i:
                delta = back * _SLOPE[self.activation](below)
        return loss, back


class NumpyCNN:
    """A `CNN` whose products are numpy.matmul on a matrix of all windows, from the weights of one."""

    def __init__(self, like: CNN) -> None:
        self.layers = like.layers
        self.activation = like.activation
        self.weights, self.biases = like.on_host()
        self.head = NumpyMLP(like.head)

    def _forward(self, x: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Each layer's matrix of windows (N P Q, C R S), and its output (N, K, P, Q)."""
        side = self.layers[0].side
        outputs, columns = [x.reshape(len(x), 1, side, side)], []
        for layer, weight, bias in zip(self.layers, self.weights, self.biases, strict=True):
            columns.append(_windows(outputs[-1], layer))
            z = columns[-1] @ weight.reshape(layer.outputs, -1).T + bias
            z = z.reshape(len(x), layer.out_side, layer.out_side, layer.outputs).transpose(0, 3, 1, 2)
            outputs.append(_FORWARD[self.activation](z))
        return columns, outputs

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Give the most likely class of each row of x, as `CNN.predict`."""
        return self.head.predict(self._forward(x)[1][-1].reshape(len(x), -1))

    def train_step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """Take one step of gradient descent on a batch, as `CNN.train_step`."""
        columns, outputs = self._forward(x)
        loss, dx = self.head.step(outputs[-1].reshape(len(x), -1), labels, rate, dx=True)
        assert dx is not None
        back = dx.reshape(outputs[-1].shape)
        for i in range(len(self.layers) - 1, -1, -1):
            layer, weight = self.layers[i], self.weights[i].reshape(self.layers[i].outputs, -1)
            delta = back * _SLOPE[self.activation](outputs[i + 1])
            rows = delta.transpose(0, 2, 3, 1).reshape(-1, layer.outputs)
            if i:
                back = _add_windows(rows @ weight, outputs[i].shape, layer)
            self.weights[i] -= rate * (rows.T @ columns[i]).reshape(self.weights[i].shape)
            self.biases[i] -= rate * rows.sum(axis=0)
        return loss


def _windows(x: np.ndarray, layer: Layer) -> np.ndarray:
    """Every window of x (N, C, H, W) as a row of (N P Q, C R S)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    windows = windows[:, :, :: layer.stride, :: layer.stride]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, x.shape[1] * 9)


def _add_windows(columns: np.ndarray, shape: tuple[int, ...], layer: Layer) -> np.ndarray:
    """The adjoint of `_windows`: what falls on one element is added up."""
    n, c, h, w = shape
    side, step = layer.out_side, layer.stride
    parts = columns.reshape(n, side, side, c, 3, 3).transpose(0, 3, 4, 5, 1, 2)
    padded = np.zeros((n, c, h + 2, w + 2), columns.dtype)
    for r in range(3):
        for s in range(3):
            padded[:, :, r : r + side * step : step, s : s + side * step : step] += parts[:, :, r, s]
    return padded[:, :, 1:-1, 1:-1]
