"""A multi-layer perceptron and its backpropagation: every product and activation is a public call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import numbaprims
from numbaprims.nn.losses import check_rows, check_samples, softmax_cross_entropy

#: Activations whose gradient follows from their result, so that the input need not be kept.
ACTIVATIONS = ("sigmoid", "relu", "tanh")


class _Buffers(NamedTuple):
    """What a step of one batch size writes: allocated once, used by every step."""

    outputs: list[Any]  # of each layer (batch, size)
    deltas: list[Any]  # the loss's gradient with respect to each layer's sum (batch, size)
    back: list[Any]  # the gradient with respect to each hidden layer's output (batch, size)
    ones: Any  # (batch,)


class MLP:
    """A perceptron of dense layers, y_i = f(W_i y_(i-1) + b_i); the last one has no f, softmax is the loss's.

    A batch runs on gemm, a single sample on gemv, gemv with trans and ger.

    Args:
        sizes: neurons of each layer, the input first: (64, 128, 10).
        activation: of the hidden layers, one of `ACTIVATIONS`.
        seed: of the initial weights, uniform in +-sqrt(6 / (inputs + outputs)); biases start at 0.
        dtype: np.float32 or np.float64.
        device: "cuda" or "cuda:N" for weights in the memory of a GPU, where the steps then run; the loss of a batch,
            a few numbers a sample, is computed on the host.

    Raises:
        RuntimeError: a device that is not there.
        ValueError: fewer than two sizes, a size below 1, or another activation.

    Example:
        >>> import numpy as np
        >>> model = MLP((4, 8, 3), seed=1)
        >>> model.predict(np.ones((2, 4), np.float32)).shape
        (2,)

    References:
        Rumelhart, Hinton and Williams, Learning representations by back-propagating errors, Nature 323, 1986.
        Glorot and Bengio, Understanding the difficulty of training deep feedforward networks, AISTATS 2010.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str = "sigmoid",
        *,
        seed: int = 0,
        dtype: type[np.floating] = np.float32,
        device: str | None = None,
    ) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"sizes is {tuple(sizes)}; it must be two or more positive sizes, the input first")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
        rng = np.random.default_rng(seed)
        self.sizes = tuple(sizes)
        self.activation = activation
        self.device = device
        self.weights: list[Any] = []
        self.biases: list[Any] = []
        for inputs, outputs in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            bound = (6.0 / (inputs + outputs)) ** 0.5
            self.weights.append(self.put(rng.uniform(-bound, bound, (outputs, inputs)).astype(dtype)))
            self.biases.append(self.put(np.zeros(outputs, dtype)))
        self._buffers: dict[int, _Buffers] = {}

    def put(self, x: np.ndarray) -> Any:
        """The array where the model is."""
        if self.device is None:
            return x
        from numbaprims.gpu.memory import to_device

        return to_device(x, device=int(self.device.partition(":")[2] or 0))

    def on_host(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Copies of the weights and of the biases."""
        if self.device is None:
            return [weight.copy() for weight in self.weights], [bias.copy() for bias in self.biases]
        return [weight.to_host() for weight in self.weights], [bias.to_host() for bias in self.biases]

    def _loss(self, logits: Any, labels: np.ndarray, delta: Any) -> tuple[float, Any]:
        """The loss, and its gradient written to `delta`."""
        if self.device is None:
            return softmax_cross_entropy(logits, labels, out=delta)
        loss, gradient = softmax_cross_entropy(logits.to_host(), labels)
        delta.set(gradient)
        return loss, delta

    def _buffers_of(self, batch: int) -> _Buffers:
        if batch not in self._buffers:
            dtype = self.weights[0].dtype

            def rows(sizes: Sequence[int]) -> list[Any]:
                return [self.put(np.empty((batch, size), dtype)) for size in sizes]

            self._buffers[batch] = _Buffers(
                rows(self.sizes[1:]), rows(self.sizes[1:]), rows(self.sizes[1:-1]), self.put(np.ones(batch, dtype))
            )
        return self._buffers[batch]

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Give the most likely class of each row of x (rows, pixels), or each image, as int64 (rows,)."""
        check_samples(x, self.sizes[0])
        return self.predict_here(self.put(x).reshape(len(x), self.sizes[0]))

    def predict_here(self, y: Any) -> np.ndarray:
        """The same of rows that are where the model is."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            last = i == len(self.weights) - 1
            y = numbaprims.linear(y, weight, bias, activation=None if last else self.activation)
        logits: np.ndarray = y if self.device is None else y.to_host()
        return logits.argmax(axis=1)

    def train_step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """Take one step of gradient descent on a batch; give the loss before it.

        Args:
            x: (batch, pixels), or images of as many pixels.
            labels: (batch,) integers.
            rate: the learning rate; W -= rate * dloss/dW.

        Raises:
            TypeError: what is no array, or labels that are no integers.
            ValueError: labels out of range, not a label for each row, no rows, or rows of another size.
        """
        check_rows(x, labels)
        check_samples(x, self.sizes[0])
        x = self.put(x).reshape(len(x), self.sizes[0])
        return self._step_of_one(x, labels, rate) if len(labels) == 1 else self.step_of_batch(x, labels, rate)

    def step_of_batch(self, x: Any, labels: np.ndarray, rate: float, dx: Any = None) -> float:
        """The step on rows that are where the model is; the loss's gradient by them goes to `dx`, if given."""
        buffers = self._buffers_of(len(labels))
        outputs, deltas = buffers.outputs, buffers.deltas
        last = len(self.weights) - 1
        y = x
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            kind = None if i == last else self.activation
            y = numbaprims.linear(y, weight, bias, activation=kind, out=outputs[i])
        loss, delta = self._loss(y, labels, deltas[last])
        for i in range(last, -1, -1):
            below = outputs[i - 1] if i else x
            if i == 0 and dx is not None:
                numbaprims.gemm(delta, self.weights[0], out=dx)
            if i:
                # With the weights as they were in the forward pass, so before their update.
                back = numbaprims.gemm(delta, self.weights[i], out=buffers.back[i - 1])
                next_delta = numbaprims.activation_backward(back, None, below, self.activation, out=deltas[i - 1])
            weight, bias = self.weights[i], self.biases[i]
            # W += -rate * delta^T below: the gradient is never stored.
            numbaprims.gemm(delta, below, trans_a=True, alpha=-rate, beta=1.0, c=weight, out=weight)
            # The sum over the batch is delta^T times ones.
            numbaprims.gemv(delta, buffers.ones, trans=True, alpha=-rate, beta=1.0, y=bias, out=bias)
            if i:
                delta = next_delta
        return loss

    def _step_of_one(self, x: Any, labels: np.ndarray, rate: float) -> float:
        buffers = self._buffers_of(1)
        outputs, deltas = [y[0] for y in buffers.outputs], [d[0] for d in buffers.deltas]
        last = len(self.weights) - 1
        y = x[0]
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            y = numbaprims.gemv(weight, y, beta=1.0, y=bias, out=outputs[i])
            if i < last:
                y = numbaprims.activation(y, self.activation, out=y)
        loss, _ = self._loss(buffers.outputs[last], labels, buffers.deltas[last])
        for i in range(last, -1, -1):
            delta, weight, bias = deltas[i], self.weights[i], self.biases[i]
            below = outputs[i - 1] if i else x[0]
            if i:
                back = numbaprims.gemv(weight, delta, trans=True, out=buffers.back[i - 1][0])
                numbaprims.activation_backward(back, None, below, self.activation, out=deltas[i - 1])
            numbaprims.ger(delta, below, a=weight, alpha=-rate, out=weight)
            # A vector is a matrix of one row: b += -rate * 1 delta^T.
            row = bias[None, :]
            numbaprims.ger(buffers.ones, delta, a=row, alpha=-rate, out=row)
        return loss
