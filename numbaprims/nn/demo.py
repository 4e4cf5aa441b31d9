"""`numbaprims demo`: learn handwritten digits beside the same run on NumPy; or to write, on a book (`text_demo`)."""

from __future__ import annotations

import argparse
import math
import sys
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from numbaprims.datasets import load_digits, load_mnist
from numbaprims.nn.cnn import CNN
from numbaprims.nn.mlp import ACTIVATIONS, MLP
from numbaprims.nn.numpy_models import NumpyCNN, NumpyMLP
from numbaprims.nn.training import Model, accuracy, split, train

CLASSES = 10
#: Learning rates that reach the accuracy on both data sets; a single sample's noisy gradient takes a tenth.
RATES = {"sigmoid": 1.0, "relu": 0.3, "tanh": 0.1}
#: Where a step is arithmetic and not calls: docs/demo.md has what is faster at which size.
HIDDEN, BATCH = 1024, 128
#: Passes of the run with single images: each is as many steps as images.
SINGLE_EPOCHS = 3
HELD_OUT = 0.2


class Data(NamedTuple):
    """Images (count, pixels) with labels, to train on and held out."""

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def positive(word: str) -> int:
    """Read a whole number above 0 from the command line."""
    if (number := int(word)) < 1:
        raise argparse.ArgumentTypeError(f"{word} is not 1 or more")
    return number


def rate(word: str) -> float:
    """Read a learning rate above 0 from the command line."""
    if not 0 < (number := float(word)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is not a number above 0")
    return number


def seed(word: str) -> int:
    """Read a seed, 0 or above, from the command line."""
    if (number := int(word)) < 0:
        raise argparse.ArgumentTypeError(f"{word} is below 0")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument(
        "--data", metavar="mnist.npz", help="MNIST in a file, instead of the digits that ship; lstm: a text"
    )
    parser.add_argument(
        "--model", choices=("mlp", "cnn", "lstm"), default="mlp", help="perceptron, convolutions, or characters (mlp)"
    )
    parser.add_argument(
        "--hidden", type=positive, metavar="N", help="hidden neurons of the perceptron (1024) or LSTM (128)"
    )
    parser.add_argument("--epochs", type=positive, help="passes over the data (30; with --data or cnn 10; lstm 8)")
    parser.add_argument(
        "--batch", type=positive, metavar="B", help="images a step (128 and then 1; cnn 32), or texts (lstm 16)"
    )
    parser.add_argument(
        "--lr", type=rate, help="learning rate (sigmoid 1, relu 0.3, tanh 0.1; a tenth for batch 1; lstm 1)"
    )
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu", help="hidden activation (relu)")
    parser.add_argument("--seed", type=seed, default=0, help="of the weights, the orders and the split (0)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where ours trains (cpu)")
    parser.add_argument(
        "--no-numpy", "--no-torch", dest="no_rival", action="store_true", help="leave out the run on NumPy; lstm: torch"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, print the held-out accuracy and the seconds per epoch; give the exit status."""
    if arguments.model == "lstm":
        from numbaprims.nn import text_demo

        return text_demo.run(arguments)
    try:
        data = _load(arguments.data, arguments.seed)
    except (OSError, ValueError) as error:
        print(f"numbaprims demo: {error}", file=sys.stderr)
        return 2
    convolutional = arguments.model == "cnn"
    if convolutional and arguments.hidden is not None:
        print("numbaprims demo: --hidden is of the perceptron; the cnn has sizes of its own", file=sys.stderr)
        return 2
    epochs = arguments.epochs or (10 if arguments.data or convolutional else 30)
    runs = [(min(arguments.batch or (32 if convolutional else BATCH), len(data.x)), epochs)]
    if not convolutional and arguments.batch is None and arguments.device == "cpu":
        runs.append((1, 1 if arguments.data else min(epochs, SINGLE_EPOCHS)))
    device = None if arguments.device == "cpu" else arguments.device
    pixels = data.x.shape[1]
    reached: list[float] = []
    for batch, passes in runs:
        ours: CNN | MLP
        try:
            if convolutional:
                ours = CNN(math.isqrt(pixels), CLASSES, arguments.activation, seed=arguments.seed, device=device)
            else:
                sizes = (pixels, arguments.hidden or HIDDEN, CLASSES)
                ours = MLP(sizes, arguments.activation, seed=arguments.seed, device=device)
        except (ImportError, RuntimeError) as error:
            print(f"numbaprims demo: --device {arguments.device}: {error}", file=sys.stderr)
            return 2
        if not reached:
            print(f"{data.name}: {len(data.x):,} images to train on, {len(data.x_test):,} held out, {pixels} pixels")
            layers = ", ".join(map(str, ours.sizes))
            print(
                f"{'two convolutions and a ' if convolutional else ''}perceptron {{{layers}}}, {ours.activation}, "
                f"softmax cross-entropy, seed {arguments.seed}"
            )
        reached.append(_compare(ours, data, batch, passes, arguments))
    print(f"\nheld-out accuracy: {reached[0]:.1f} %")
    return 0


def _compare(ours: CNN | MLP, data: Data, batch: int, epochs: int, arguments: argparse.Namespace) -> float:
    """Train it beside the same network on NumPy and print what came of both; give our held-out accuracy in percent."""
    models: dict[str, Model] = {"numbaprims": ours}
    if not arguments.no_rival:
        models["NumPy"] = NumpyCNN(ours) if isinstance(ours, CNN) else NumpyMLP(ours)
    lr = arguments.lr or RATES[ours.activation] / (10 if batch == 1 else 1)
    if isinstance(ours, CNN):
        runs_on = "conv, batch_norm_train, max_pool, softmax_cross_entropy, their gradients, and gemm"
    else:
        runs_on = "gemv, gemv^T and ger" if batch == 1 else "gemm, and gemv^T for the biases"
    print(f"\nbatch {batch}: {epochs} epoch{'s' * (epochs > 1)}, learning rate {lr:g}; a step runs on {runs_on}")
    with tqdm(total=epochs * len(data.x) * len(models), unit="image", unit_scale=True, desc="training") as bar:
        histories = train(
            list(models.values()), data.x, data.y, epochs=epochs, batch=batch, rate=lr, seed=arguments.seed,
            progress=bar,
        )  # fmt: skip
    reached = [100 * accuracy(model, data.x_test, data.y_test) for model in models.values()]
    rows = {
        "held-out accuracy": [f"{percent:.1f} %" for percent in reached],
        "loss, last epoch": [f"{history.losses[-1]:.4f}" for history in histories],
        "seconds per epoch": [f"{history.seconds_per_epoch:.4f}" for history in histories],
        "first epoch, compiling": [f"{history.seconds[0]:.4f}" for history in histories],
    }
    print(f"{'':24}" + "".join(f"{name:>12}" for name in models))
    for title, cells in rows.items():
        print(f"{title:24}" + "".join(f"{cell:>12}" for cell in cells))
    if len(models) > 1:
        print(_verdict(*(history.seconds_per_epoch for history in histories)))
    return reached[0]


def _verdict(ours: float, numpys: float) -> str:
    """Which is faster, and by how much; 5 % is what two runs of one program differ by."""
    ratio = max(ours, numpys) / min(ours, numpys)
    if ratio < 1.05:
        return "an epoch takes both as long"
    return f"an epoch is {ratio:.2f} times as fast on {'numbaprims' if ours < numpys else 'NumPy'}"


def _load(path: str | None, seed: int) -> Data:
    if path is not None:
        return Data(path, *load_mnist(path))
    x, y = load_digits()
    trained, tested = split(len(x), HELD_OUT, seed)
    return Data("UCI handwritten digits", x[trained], y[trained], x[tested], y[tested])


def main(argv: list[str] | None = None) -> int:
    """Run the command by itself: `python -m numbaprims.nn.demo`."""
    parser = argparse.ArgumentParser(prog="numbaprims demo")
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
