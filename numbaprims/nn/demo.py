"""`numbaprims demo`: learn handwritten digits on this package, beside the same run on NumPy."""

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
RATES = {"sigmoid": 1.0, "relu": 0.2, "tanh": 0.1}
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
    parser.add_argument("--data", metavar="mnist.npz", help="MNIST in a file, instead of the digits that ship")
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp", help="perceptron, or convolutions (mlp)")
    parser.add_argument("--hidden", type=positive, metavar="N", help="hidden neurons of the perceptron (256)")
    parser.add_argument("--epochs", type=positive, help="passes over the images (30; with --data or cnn 10)")
    parser.add_argument("--batch", type=positive, default=32, metavar="B", help="images a step (32)")
    parser.add_argument("--lr", type=rate, help="learning rate (sigmoid 1, relu 0.2, tanh 0.1; a tenth for batch 1)")
    parser.add_argument("--activation", choices=ACTIVATIONS, help="hidden activation (sigmoid; cnn relu)")
    parser.add_argument("--seed", type=seed, default=0, help="of the weights, the orders and the split (0)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where ours trains (cpu)")
    parser.add_argument("--no-numpy", action="store_true", help="leave out the same run on NumPy")


def run(arguments: argparse.Namespace) -> int:
    """Train, print the held-out accuracy and the seconds per epoch; give the exit status."""
    try:
        data = _load(arguments.data, arguments.seed)
    except (OSError, ValueError) as error:
        print(f"numbaprims demo: {error}", file=sys.stderr)
        return 2
    batch = min(arguments.batch, len(data.x))
    convolutional = arguments.model == "cnn"
    if convolutional and arguments.hidden is not None:
        print("numbaprims demo: --hidden is of the perceptron; the cnn has sizes of its own", file=sys.stderr)
        return 2
    epochs = arguments.epochs or (10 if arguments.data or convolutional else 30)
    activation = arguments.activation or ("relu" if convolutional else "sigmoid")
    lr = arguments.lr or RATES[activation] / (10 if batch == 1 else 1)
    device = None if arguments.device == "cpu" else arguments.device
    pixels = data.x.shape[1]
    ours: CNN | MLP
    try:
        if convolutional:
            ours = CNN(math.isqrt(pixels), CLASSES, activation, seed=arguments.seed, device=device)
        else:
            ours = MLP((pixels, arguments.hidden or 256, CLASSES), activation, seed=arguments.seed, device=device)
    except (ImportError, RuntimeError) as error:
        print(f"numbaprims demo: --device {arguments.device}: {error}", file=sys.stderr)
        return 2
    models: dict[str, Model] = {"numbaprims": ours}
    if not arguments.no_numpy:
        models["NumPy"] = NumpyCNN(ours) if isinstance(ours, CNN) else NumpyMLP(ours)

    print(f"{data.name}: {len(data.x):,} images to train on, {len(data.x_test):,} held out, {pixels} pixels")
    print(
        f"{'two convolutions and a ' if convolutional else ''}perceptron {{{', '.join(map(str, ours.sizes))}}}, "
        f"{ours.activation}, softmax cross-entropy; "
        f"{epochs} epochs, batch {batch}, learning rate {lr:g}, seed {arguments.seed}"
    )
    if convolutional:
        print("a step runs on conv, its gradients by data, weight and bias, and gemm")
    else:
        print("a step runs on " + ("gemv, gemv^T and ger" if batch == 1 else "gemm, and gemv^T for the biases"))
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
    print(f"held-out accuracy: {reached[0]:.1f} %")
    return 0


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
