"""The same networks in plain NumPy, to train beside ours: same weights at the start, same steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbaprims.nn.cnn import CNN, POOL
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
#: What batch norm adds to a variance.
_EPS = 1e-5


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
        self.weights, self.scales, self.shifts = like.on_host()
        self.running = [(np.zeros_like(shift), np.ones_like(shift)) for shift in self.shifts]
        self.head = NumpyMLP(like.head)

    def _convolved(self, i: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The matrix of windows (N H W, C R S) and its products as rows of channels (N H W, K)."""
        columns = _windows(x)
        return columns, columns @ self.weights[i].reshape(self.layers[i].outputs, -1).T

    def _pooled(self, i: int, rows: np.ndarray, batch: int) -> np.ndarray:
        """Rows of channels as images, their windows last: (N, K, P, Q, POOL * POOL)."""
        layer, side = self.layers[i], self.layers[i].out_side
        y = rows.reshape(batch, layer.side, layer.side, -1).transpose(0, 3, 1, 2)
        y = y[:, :, : side * POOL, : side * POOL]
        y = y.reshape(batch, -1, side, POOL, side, POOL).transpose(0, 1, 2, 4, 3, 5)
        return y.reshape(*y.shape[:4], -1)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Give the most likely class of each row of x, as `CNN.predict`."""
        y = x.reshape(len(x), 1, self.layers[0].side, -1)
        for i, (mean, var) in enumerate(self.running):
            rows = (self._convolved(i, y)[1] - mean) / np.sqrt(var + _EPS) * self.scales[i] + self.shifts[i]
            y = self._pooled(i, _FORWARD[self.activation](rows), len(x)).max(axis=-1)
        return self.head.predict(y.reshape(len(x), -1))

    def train_step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """Take one step of gradient descent on a batch, as `CNN.train_step`."""
        y, kept = x.reshape(len(x), 1, self.layers[0].side, -1), []
        for i, (old_mean, old_var) in enumerate(self.running):
            columns, z = self._convolved(i, y)
            mean, var = z.mean(axis=0), z.var(axis=0)
            unbiased = var * (len(z) / max(len(z) - 1, 1))
            self.running[i] = 0.9 * old_mean + 0.1 * mean, 0.9 * old_var + 0.1 * unbiased
            inv_std = 1 / np.sqrt(var + _EPS)
            normal = (z - mean) * inv_std
            rows = _FORWARD[self.activation](normal * self.scales[i] + self.shifts[i])
            windows = self._pooled(i, rows, len(x))
            kept.append((y.shape, columns, inv_std, normal, rows, windows.argmax(axis=-1)))
            y = windows.max(axis=-1)
        loss, dx = self.head.step(y.reshape(len(x), -1), labels, rate, dx=True)
        assert dx is not None
        back = dx.reshape(y.shape)
        for i in range(len(self.layers) - 1, -1, -1):
            below, columns, inv_std, normal, rows, chosen = kept[i]
            delta = self._unpooled(i, back, chosen) * _SLOPE[self.activation](rows)
            dscale, dshift = (delta * normal).sum(axis=0), delta.sum(axis=0)
            delta = self.scales[i] * inv_std * (delta - (dshift + normal * dscale) / len(rows))
            weight = self.weights[i].reshape(self.layers[i].outputs, -1)
            if i:
                back = _add_windows(delta @ weight, below)
            self.weights[i] -= rate * (delta.T @ columns).reshape(self.weights[i].shape)
            self.scales[i] -= rate * dscale
            self.shifts[i] -= rate * dshift
        return loss

    def _unpooled(self, i: int, dy: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """The adjoint of taking the largest of each window, as rows of channels."""
        layer, side = self.layers[i], self.layers[i].out_side
        windows = np.where(np.arange(POOL**2) == chosen[..., None], dy[..., None], 0).astype(dy.dtype)
        windows = windows.reshape(*dy.shape, POOL, POOL).transpose(0, 2, 4, 3, 5, 1)
        dx = np.zeros((len(dy), layer.side, layer.side, layer.outputs), dy.dtype)
        whole = side * POOL
        dx[:, :whole, :whole] = windows.reshape(len(dy), whole, whole, layer.outputs)
        return dx.reshape(-1, layer.outputs)


def _windows(x: np.ndarray) -> np.ndarray:
    """Every window of x (N, C, H, W) as a row of (N H W, C R S)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, x.shape[1] * 9)


def _add_windows(columns: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The adjoint of `_windows`: what falls on one element is added up."""
    n, c, h, w = shape
    parts = columns.reshape(n, h, w, c, 3, 3).transpose(0, 3, 4, 5, 1, 2)
    padded = np.zeros((n, c, h + 2, w + 2), columns.dtype)
    for r in range(3):
        for s in range(3):
            padded[:, :, r : r + h, s : s + w] += parts[:, :, r, s]
    return padded[:, :, 1:-1, 1:-1]
