"""A small convolutional network after LeNet and its backpropagation, on the three directions of `conv`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import numbaprims
from numbaprims.nn.mlp import ACTIVATIONS, MLP

KERNEL = 3
#: Channels of the two convolutions, and neurons of the hidden dense layer.
CHANNELS = (8, 16)
HIDDEN = 64


class Layer(NamedTuple):
    """One convolution with kernel 3 and padding 1, on images of side x side."""

    inputs: int
    outputs: int
    side: int
    stride: int

    @property
    def out_side(self) -> int:
        """The side of its result."""
        return (self.side - 1) // self.stride + 1


class _Buffers(NamedTuple):
    """What a step of one batch size writes: allocated once, used by every step."""

    outputs: list[Any]  # of each convolution (batch, K, P, Q)
    deltas: list[Any]  # the loss's gradient with respect to each convolution's sum
    back: list[Any]  # the gradient with respect to each convolution's output


class CNN:
    """Two convolutions, which halve the side by their strides, and a perceptron of one hidden layer.

    Images of 16 x 16 and more are halved twice, smaller ones once.

    Args:
        side: pixels of an image's side; samples come as rows of side * side pixels.
        classes: outputs.
        activation: of all layers but the last, one of `numbaprims.nn.mlp.ACTIVATIONS`.
        seed: of the initial weights, uniform in +-sqrt(6 / (inputs + outputs of a window)); biases start at 0.
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
        first = Layer(1, CHANNELS[0], side, 2 if side >= 16 else 1)
        self.layers = (first, Layer(CHANNELS[0], CHANNELS[1], first.out_side, 2))
        features = CHANNELS[1] * self.layers[1].out_side ** 2
        self.head = MLP((features, HIDDEN, classes), activation, seed=seed, dtype=dtype, device=device)
        self.activation = activation
        self.device = device
        rng = np.random.default_rng((seed, 1))
        self.weights: list[Any] = []
        self.biases: list[Any] = []
        for layer in self.layers:
            bound = (6.0 / (KERNEL**2 * (layer.inputs + layer.outputs))) ** 0.5
            shape = (layer.outputs, layer.inputs, KERNEL, KERNEL)
            self.weights.append(self.head.put(rng.uniform(-bound, bound, shape).astype(dtype)))
            self.biases.append(self.head.put(np.zeros(layer.outputs, dtype)))
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

    def on_host(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Copies of the convolutions' weights and of their biases."""
        if self.device is None:
            return [weight.copy() for weight in self.weights], [bias.copy() for bias in self.biases]
        return [weight.to_host() for weight in self.weights], [bias.to_host() for bias in self.biases]

    def _buffers_of(self, batch: int) -> _Buffers:
        if batch not in self._buffers:
            dtype = self.weights[0].dtype
            shapes = [(batch, layer.outputs, layer.out_side, layer.out_side) for layer in self.layers]
            parts = [[self.head.put(np.empty(shape, dtype)) for shape in shapes] for _ in range(3)]
            self._buffers[batch] = _Buffers(*parts)
        return self._buffers[batch]

    def _forward(self, x: Any, outputs: list[Any]) -> Any:
        side = self.layers[0].side
        y = x.reshape(len(x), 1, side, side)
        for layer, weight, bias, out in zip(self.layers, self.weights, self.biases, outputs, strict=True):
            y = numbaprims.conv(
                y, weight, bias, stride=layer.stride, padding=1, activation=self.activation, out=out
            )  # fmt: skip
        return y

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Give the most likely class of each row of x (rows, pixels), as int64 (rows,)."""
        y = self._forward(self.head.put(x), [None] * len(self.layers))
        return self.head.predict_here(y.reshape(len(x), -1))

    def train_step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """Take one step of gradient descent on a batch; give the loss before it.

        Args:
            x: (batch, pixels).
            labels: (batch,) integers.
            rate: the learning rate; W -= rate * dloss/dW.
        """
        batch = len(labels)
        images = self.head.put(x)
        outputs, deltas, back = self._buffers_of(batch)
        y = self._forward(images, outputs)
        loss = self.head.step_of_batch(y.reshape(batch, -1), labels, rate, dx=back[-1].reshape(batch, -1))
        for i in range(len(self.layers) - 1, -1, -1):
            layer, weight, bias = self.layers[i], self.weights[i], self.biases[i]
            window: dict[str, Any] = {"stride": layer.stride, "padding": 1}
            delta = numbaprims.activation_backward(back[i], None, outputs[i], self.activation, out=deltas[i])
            below = outputs[i - 1] if i else images.reshape(batch, 1, layer.side, layer.side)
            if i:
                # with the weights as they were in the forward pass, so before their update
                numbaprims.conv_backward_data(delta, weight, below.shape, out=back[i - 1], **window)
            numbaprims.conv_backward_weight(
                delta, below, weight.shape, alpha=-rate, beta=1.0, c=weight, out=weight, **window
            )  # fmt: skip
            # a vector is a matrix of one row: b += -rate * 1 db^T
            row = bias[None, :]
            numbaprims.ger(self._one, numbaprims.conv_backward_bias(delta), a=row, alpha=-rate, out=row)
        return loss
