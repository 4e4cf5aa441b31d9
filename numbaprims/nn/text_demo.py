"""`numbaprims demo --model lstm`: learn to write on a book, beside the same run on torch where it is installed."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from numbaprims import settings
from numbaprims.datasets import load_text
from numbaprims.nn.lstm import LSTM, TorchLSTM, pieces
from numbaprims.nn.training import History

HIDDEN, STREAMS, STEPS, EPOCHS = 128, 16, 50, 8
RATE = 1.0
#: Characters at the end of the text that nothing is learnt from, and how many are written.
HELD_OUT, WRITTEN = 0.1, 240


def run(arguments: argparse.Namespace) -> int:
    """Train, print the bits of a held-out character and the seconds per epoch; give the exit status."""
    try:
        if arguments.device != "cpu":
            raise ValueError("--model lstm runs on the CPU only")
        if arguments.activation != "relu":
            raise ValueError("--activation is of the other models; an LSTM has its own")
        text = load_text(arguments.data)
        names = sorted(set(text))
        code = {name: k for k, name in enumerate(names)}
        whole = np.array([code[each] for each in text])
        cut = round((1 - HELD_OUT) * len(whole))
        streams, epochs = arguments.batch or STREAMS, arguments.epochs or EPOCHS
        steps = sum(1 for _ in pieces(whole[:cut], streams, STEPS))
    except (OSError, ValueError) as error:
        print(f"numbaprims demo: {error}", file=sys.stderr)
        return 2
    ours = LSTM(len(names), arguments.hidden or HIDDEN, seed=arguments.seed)
    models: dict[str, Any] = {"numbaprims": ours}
    if not arguments.no_rival and find_spec("torch"):
        models["torch"] = _torch(ours)
    title = "Alice's Adventures in Wonderland" if arguments.data is None else arguments.data
    print(f"{title}: {cut:,} characters to train on, {len(whole) - cut:,} held out, {len(names)} of them different")
    print(f"an LSTM of {ours.sizes[1]} units, a dense layer, softmax cross-entropy, seed {arguments.seed}")
    print(
        f"\n{streams} streams, {STEPS} characters a step: {epochs} epoch{'s' * (epochs > 1)}, learning rate "
        f"{arguments.lr or RATE:g}; a step runs on lstm_train, softmax_cross_entropy, their gradients, and gemm"
    )
    histories = {name: History([], []) for name in models}
    with tqdm(total=epochs * steps * len(models), unit="step", desc="training") as bar:
        for _ in range(epochs):
            for name, model in models.items():
                _epoch(model, whole[:cut], streams, arguments.lr or RATE, histories[name], bar)
    reached = ours.bits(whole[cut:])
    print(f"{'':26}" + "".join(f"{name:>12}" for name in models))
    for row, cells in {
        "loss, last epoch": [f"{history.losses[-1]:.4f}" for history in histories.values()],
        "seconds per epoch": [f"{history.seconds_per_epoch:.4f}" for history in histories.values()],
        "first epoch, compiling": [f"{history.seconds[0]:.4f}" for history in histories.values()],
    }.items():
        print(f"{row:26}" + "".join(f"{cell:>12}" for cell in cells))
    start = whole[: min(100, cut)]
    written = "".join(names[k] for k in ours.write(start, WRITTEN, arguments.seed))
    print("\nwhat it writes:\n" + "\n".join(f"    {line}" for line in written.splitlines()))
    print(f"\nheld-out bits per character: {reached:.3f}")
    return 0


def _torch(ours: LSTM) -> TorchLSTM:
    """torch's twin, on as many threads as ours has where a number of them was asked for."""
    import torch

    threads = settings.current().threads
    if threads:
        torch.set_num_threads(threads)
    return TorchLSTM(ours)


def _epoch(model: Any, text: np.ndarray, streams: int, rate: float, history: History, bar: Any) -> None:
    state: Any = None
    losses, started = [], time.perf_counter()
    for piece in pieces(text, streams, STEPS):
        loss, state = model.train_step(piece, rate, state)
        losses.append(loss)
        bar.update(1)
    history.seconds.append(time.perf_counter() - started)
    history.losses.append(float(np.mean(losses)))
