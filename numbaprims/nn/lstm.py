"""A character model and its gradient through time: an LSTM over characters, and a dense layer that names the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import numbaprims
from numbaprims.nn.losses import check_labels

#: So much of the last update goes on in the next one; gradients that are longer than CLIP are shortened to it.
MOMENTUM, CLIP = 0.9, 1.0

#: h and c behind a piece, None before the first
State = tuple[Any, Any] | None


class Piece(NamedTuple):
    """Some steps of several streams of a text: each character, and the one behind it, both (steps, streams)."""

    x: np.ndarray
    labels: np.ndarray


def pieces(text: np.ndarray, streams: int, steps: int) -> Iterator[Piece]:
    """Cut a text into so many streams, and give some steps of all of them at a time; what is left over is dropped.

    A piece goes on where the one before it ended, so that the state of one is the start of the next.

    Args:
        text: (characters,) integers.
        streams: sequences of a batch.
        steps: characters of each; the last piece may have fewer.

    Raises:
        ValueError: no streams or steps, or a text that has not a step for each stream.

    Example:
        >>> first, second = pieces(np.arange(11), 2, 3)
        >>> first.x.T.tolist(), first.labels.T.tolist()
        ([[0, 1, 2], [5, 6, 7]], [[1, 2, 3], [6, 7, 8]])
        >>> second.x.T.tolist()
        [[3, 4], [8, 9]]
    """
    if streams < 1 or steps < 1:
        raise ValueError(f"streams is {streams} and steps {steps}; both must be 1 or more")
    length = (len(text) - 1) // streams
    if length < 1:
        raise ValueError(f"the text has {len(text)} characters; {streams} streams need {streams + 1}")
    x, labels = (text[k : k + length * streams].reshape(streams, length).T for k in (0, 1))
    for first in range(0, length, steps):
        yield Piece(x[first : first + steps], np.ascontiguousarray(labels[first : first + steps]))


class LSTM:
    """A model of the next character: an LSTM over characters as unit vectors, and a dense layer over its outputs.

    Args:
        characters: how many there are; texts are integers below it.
        hidden: units of the LSTM.
        seed: of the initial weights, uniform in +-1/sqrt(hidden), as in torch.
        dtype: np.float32 or np.float64.

    Raises:
        ValueError: characters or hidden below 1.

    Example:
        >>> model = LSTM(5, 8, seed=1)
        >>> loss, state = model.train_step(Piece(np.ones((3, 2), int), np.ones((3, 2), int)), 0.1)
        >>> [each.shape for each in state]
        [(1, 2, 8), (1, 2, 8)]

    References:
        Hochreiter and Schmidhuber, Long short-term memory, Neural Computation 9, 1997.
        Graves, Generating sequences with recurrent neural networks, arXiv:1308.0850, 2013.
    """

    def __init__(self, characters: int, hidden: int, *, seed: int = 0, dtype: type[np.floating] = np.float32) -> None:
        if characters < 1 or hidden < 1:
            raise ValueError(f"characters is {characters} and hidden {hidden}; both must be 1 or more")
        rng, bound, gates = np.random.default_rng(seed), hidden**-0.5, 4 * hidden
        shapes = (gates, characters), (gates, hidden), (gates,), (gates,), (characters, hidden), (characters,)
        #: w_ih, w_hh, b_ih and b_hh of the LSTM, weight and bias of the dense layer: torch's, in its order
        self.parameters = [rng.uniform(-bound, bound, shape).astype(dtype) for shape in shapes]
        self.weights = numbaprims.RnnWeights.from_arrays("lstm", *self.parameters[:4])
        self._units = np.eye(characters, dtype=dtype)
        self._one = np.ones((), dtype)
        self._moved = [np.zeros_like(each) for each in self.parameters]

    @property
    def sizes(self) -> tuple[int, int]:
        """Characters and hidden units."""
        return self.parameters[4].shape

    def train_step(self, piece: Piece, rate: float, state: State = None) -> tuple[float, State]:
        """Take one step of gradient descent with momentum; give the loss before it, and the state behind the piece.

        Args:
            piece: characters and those behind them.
            rate: the learning rate.
            state: what the piece before left; the gradient does not go back into it.

        Raises:
            TypeError, ValueError: characters that are not integers from 0 to the last one.
        """
        *_, weight, bias = self.parameters
        check_labels(piece.labels, len(bias))
        y, *state_after, reserve = numbaprims.lstm_train(self._given(piece.x), self.weights, *(state or ()))
        rows, labels = y.reshape(-1, y.shape[-1]), piece.labels.reshape(-1)
        scores = numbaprims.linear(rows, weight, bias)
        loss = numbaprims.softmax_cross_entropy(scores, labels)
        delta = numbaprims.softmax_cross_entropy_backward(self._one, scores, labels)
        dy = numbaprims.gemm(delta, weight).reshape(y.shape)
        *_, (part,) = numbaprims.lstm_backward(dy, None, None, reserve)
        dense = numbaprims.gemm(delta, rows, trans_a=True), np.add.reduce(delta, axis=0)
        self._update([part.w_ih, part.w_hh, part.b_ih, part.b_hh, *dense], rate)
        return float(loss), (state_after[0], state_after[1])

    def _update(self, gradients: Sequence[np.ndarray], rate: float) -> None:
        """v = MOMENTUM v + g, p -= rate v; g is shortened where all of them together are longer than CLIP."""
        length = sum(float(np.vdot(each, each)) for each in gradients) ** 0.5
        share = min(1.0, CLIP / (length + 1e-6))
        for parameter, moved, gradient in zip(self.parameters, self._moved, gradients, strict=True):
            moved *= MOMENTUM
            gradient *= share
            moved += gradient
            parameter -= rate * moved

    def bits(self, text: np.ndarray, streams: int = 8, steps: int = 64) -> float:
        """Give the bits that a character of a text takes: the mean of -log2 of the chance that it is given."""
        total, count = 0.0, 0
        state: State = None
        for piece in pieces(text, streams, steps):
            scores, state = self._scores(piece.x, state)
            labels = piece.labels.reshape(-1)
            check_labels(labels, self.sizes[0], "characters")
            total += float(numbaprims.softmax_cross_entropy(scores, labels)) * len(labels)
            count += len(labels)
        return total / count / float(np.log(2))

    def write(self, start: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
        """Draw so many characters behind the start of a text, each by the chances that the model gives it."""
        check_labels(start, self.sizes[0], "characters of start")
        rng, found = np.random.default_rng(seed), [int(start[-1])]
        state = self._scores(start[:-1, None], None)[1] if len(start) > 1 else None
        for _ in range(count):
            scores, state = self._scores(np.array([[found[-1]]]), state)
            chances = numbaprims.softmax(scores.astype(np.float64), axis=1)[0]
            found.append(int(rng.choice(len(chances), p=chances / chances.sum())))
        return np.array(found[1:])

    def _given(self, x: np.ndarray) -> np.ndarray:
        """Characters as unit vectors."""
        check_labels(x, self.sizes[0], "characters")
        return self._units[x]

    def _scores(self, x: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        y, *state_after = numbaprims.lstm(self._given(x), self.weights, *(state or ()))
        scores: np.ndarray = numbaprims.linear(y.reshape(-1, y.shape[-1]), *self.parameters[4:])
        return scores, (state_after[0], state_after[1])


class TorchLSTM:
    """The same model, from the same initial weights, in torch's modules and with its optimiser.

    Args:
        ours: whose weights are copied.
    """

    def __init__(self, ours: LSTM) -> None:
        import torch

        characters, hidden = ours.sizes
        self.lstm, self.dense = torch.nn.LSTM(characters, hidden), torch.nn.Linear(hidden, characters)
        self.parameters = [*self.lstm.parameters(), *self.dense.parameters()]
        for parameter, values in zip(self.parameters, ours.parameters, strict=True):
            parameter.data = torch.tensor(values)
        self._units = torch.eye(characters, dtype=self.parameters[0].dtype)
        self._descent = torch.optim.SGD(self.parameters, momentum=MOMENTUM)

    def train_step(self, piece: Piece, rate: float, state: Any = None) -> tuple[float, Any]:
        """Take the step of `LSTM.train_step`."""
        import torch

        self._descent.param_groups[0]["lr"] = rate
        x, labels = (torch.from_numpy(np.ascontiguousarray(each)) for each in piece)
        y, after = self.lstm(self._units[x], state)
        loss = torch.nn.functional.cross_entropy(self.dense(y).flatten(0, 1), labels.flatten())
        self._descent.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self._descent.step()
        return loss.item(), tuple(each.detach() for each in after)
