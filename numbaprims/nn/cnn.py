"""A small convolutional network after LeNet and its backpropagation: convolutions, batch norm, max pooling."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import numbaprims
from numbaprims.nn.losses import check_labels, check_rows, check_samples
from numbaprims.nn.mlp import ACTIVATIONS, MLP

KERNEL, POOL = 3, 2
#: Channels of the two convolutions, and neurons of the hidden dense layer.
CHANNELS = (8, 16)
HIDDEN = 64


class Layer(NamedTuple):
    """One convolution with kernel 3 and padding 1, on images of side x side, and the maxima of 2 x 2 pixels."""

    inputs: int
    outputs: int
    side: int

    @property
    def out_side(self) -> int:
        """The side of its result."""
        return self.side // POOL


class _Buffers(NamedTuple):
    """What a step of one batch size writes: allocated once, used by every step."""

    sums: list[Any]  # of each convolution (batch, K, H, W)
    fine: list[Any]  # after the activation
    fine_deltas: list[Any]  # the loss's gradient with respect to both
    outputs: list[Any]  # of each layer (batch, K, P, Q)
    deltas: list[Any]  # the gradient with respect to them


class _Saved(NamedTuple):
    """What the gradient of a layer takes from the forward pass."""

    mean: Any
    inv_std: Any
    places: Any


class _Head(MLP):
    """The dense layers, with a loss that is computed where the weights are."""

    def _loss(self, logits: Any, labels: np.ndarray, delta: Any) -> tuple[float, Any]:
        target = self.put(np.ascontiguousarray(labels, np.int64))
        loss = numbaprims.softmax_cross_entropy(logits, target)
        one = self.put(np.ones((), self.weights[0].dtype))
        numbaprims.softmax_cross_entropy_backward(one, logits, target, out=delta)
        return float(loss if self.device is None else loss.to_host()), delta


class CNN:
    """Two convolutions with batch norm, max pooling that halves the side twice, and a perceptron of one hidden layer.

    Args:
        side: pixels of an image's side; samples come as rows of side * side pixels.
        classes: outputs.
        activation: of all layers but the last, one of `numbaprims.nn.mlp.ACTIVATIONS`.
        seed: of the initial weights, uniform in +-sqrt(6 / (inputs + outputs of a window)); scales start at 1,
            shifts at 0.
        dtype: np.float32 or np.float64.
        device: as in `MLP`.

    Raises:
        RuntimeError: a device that is not there.
        ValueError: a side below 4, or another activation.

    Example:
        >>> import numpy as np
        >>> model = CNN(8, 10, seed=1)
        >>> model.predict(np.ones((2, 64), np.float32)).shape
        (2,)

    References:
        LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, Proc. IEEE 86, 1998.
    """

    def __init__(
        self,
        side: int,
        classes: int,
        activation: str = "relu",
        *,
        seed: int = 0,
        dtype: type[np.floating] = np.float32,
        device: str | None = None,
    ) -> None:
        if side < 4:
            raise ValueError(f"side is {side}; it must be 4 or more")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
        first = Layer(1, CHANNELS[0], side)
        self.layers = (first, Layer(CHANNELS[0], CHANNELS[1], first.out_side))
        features = CHANNELS[1] * self.layers[1].out_side ** 2
        self.head = _Head((features, HIDDEN, classes), activation, seed=seed, dtype=dtype, device=device)
        self.activation = activation
        self.device = device
        rng = np.random.default_rng((seed, 1))
        self.weights: list[Any] = []
        self.scales: list[Any] = []
        self.shifts: list[Any] = []
        self.running: list[tuple[Any, Any]] = []
        for layer in self.layers:
            bound = (6.0 / (KERNEL**2 * (layer.inputs + layer.outputs))) ** 0.5
            shape = (layer.outputs, layer.inputs, KERNEL, KERNEL)
            self.weights.append(self.head.put(rng.uniform(-bound, bound, shape).astype(dtype)))
            self.scales.append(self.head.put(np.ones(layer.outputs, dtype)))
            self.shifts.append(self.head.put(np.zeros(layer.outputs, dtype)))
            start = np.zeros(layer.outputs, dtype), np.ones(layer.outputs, dtype)
            self.running.append((self.head.put(start[0]), self.head.put(start[1])))
        self._one = self.head.put(np.ones(1, dtype))
        self._buffers: dict[int, _Buffers] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of a sample before and after each layer."""
        return (
            self.layers[0].side ** 2,
            *(layer.outputs * layer.out_side**2 for layer in self.layers),
            *self.head.sizes[1:],
        )

    def on_host(self) -> tuple[list[np.ndarray], ...]:
        """Copies of the convolutions' weights, and of the scales and shifts behind them."""
        found = self.weights, self.scales, self.shifts
        return tuple([each.copy() if self.device is None else each.to_host() for each in part] for part in found)

    def _buffers_of(self, batch: int) -> _Buffers:
        if batch not in self._buffers:
            dtype = self.weights[0].dtype
            parts = []
            for fine in (True, True, True, False, False):
                sides = [layer.side if fine else layer.out_side for layer in self.layers]
                shapes = [(batch, layer.outputs, side, side) for layer, side in zip(self.layers, sides, strict=True)]
                parts.append([self.head.put(np.empty(shape, dtype)) for shape in shapes])
            self._buffers[batch] = _Buffers(*parts)
        return self._buffers[batch]

    def _images(self, x: Any) -> Any:
        side = self.layers[0].side
        check_samples(x, side * side)
        return self.head.put(x).reshape(len(x), 1, side, side)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Give the most likely class of each row of x (rows, pixels), as int64 (rows,)."""
        y = self._images(x)
        for i in range(len(self.layers)):
            y = numbaprims.conv(y, self.weights[i], padding=1)
            y = numbaprims.batch_norm(
                y, self.scales[i], self.shifts[i], *self.running[i], activation=self.activation, out=y
            )
            y = numbaprims.max_pool(y, POOL)
        return self.head.predict_here(y.reshape(len(x), self.head.sizes[0]))

    def _forward(self, x: Any, buffers: _Buffers) -> list[_Saved]:
        found = []
        for i in range(len(self.layers)):
            z = numbaprims.conv(x, self.weights[i], padding=1, out=buffers.sums[i])
            given = z, self.scales[i], self.shifts[i], *self.running[i]
            y, mean, inv_std, *running = numbaprims.batch_norm_train(*given, out=buffers.fine[i])
            self.running[i] = running[0], running[1]
            numbaprims.activation(y, self.activation, out=y)
            x, places = numbaprims.max_pool(y, POOL, return_indices=True, out=buffers.outputs[i])
            found.append(_Saved(mean, inv_std, places))
        return found

    def train_step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """Take one step of gradient descent on a batch; give the loss before it.

        Args:
            x: (batch, pixels).
            labels: (batch,) integers.
            rate: the learning rate; W -= rate * dloss/dW.

        Raises:
            TypeError, ValueError: as `MLP.train_step`.
        """
        check_rows(x, labels)
        check_labels(labels, self.head.sizes[-1])
        batch = len(labels)
        images, buffers = self._images(x), self._buffers_of(batch)
        saved = self._forward(images, buffers)
        rows = buffers.outputs[-1].reshape(batch, -1), buffers.deltas[-1].reshape(batch, -1)
        loss = self.head.step_of_batch(rows[0], labels, rate, dx=rows[1])
        for i in range(len(self.layers) - 1, -1, -1):
            layer, weight, (mean, inv_std, places) = self.layers[i], self.weights[i], saved[i]
            delta, size = buffers.fine_deltas[i], (layer.side, layer.side)
            numbaprims.max_pool_backward(buffers.deltas[i], None, POOL, indices=places, size=size, out=delta)
            numbaprims.activation_backward(delta, None, buffers.fine[i], self.activation, out=delta)
            _, dscale, dshift = numbaprims.batch_norm_backward(
                delta, buffers.sums[i], self.scales[i], mean, inv_std, out=delta
            )
            below = buffers.outputs[i - 1] if i else images
            if i:
                # with the weights as they were in the forward pass, so before their update
                numbaprims.conv_backward_data(delta, weight, below.shape, padding=1, out=buffers.deltas[i - 1])
            numbaprims.conv_backward_weight(
                delta, below, weight.shape, alpha=-rate, beta=1.0, c=weight, out=weight, padding=1
            )
            for vector, gradient in ((self.scales[i], dscale), (self.shifts[i], dshift)):
                # a vector is a matrix of one row: v += -rate * 1 dv^T
                row = vector[None, :]
                numbaprims.ger(self._one, gradient, a=row, alpha=-rate, out=row)
        return loss
