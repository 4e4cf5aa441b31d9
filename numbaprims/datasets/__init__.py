"""The handwritten digits and the book that ship with the package, and a reader of MNIST for those who have the file."""

from __future__ import annotations

import zlib
from importlib.resources import files
from os import PathLike
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

#: What `np.load` raises where a file is cut off, changed, encrypted, or packed in a way that is not known here.
_DAMAGED = (ValueError, EOFError, OSError, RuntimeError, BadZipFile, zlib.error)


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Load the 1,797 handwritten digits of the UCI repository, 8 x 8 pixels (see DIGITS.md for their origin).

    Returns:
        x (1797, 64) float32 in [0, 1], row by row; y (1797,) int64, the digits 0 to 9.

    Example:
        >>> x, y = load_digits()
        >>> x.shape, x.dtype.name, y[:5].tolist()
        ((1797, 64), 'float32', [0, 1, 2, 3, 4])

    References:
        E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
        1998, doi:10.24432/C50P49.
    """
    with files(__name__).joinpath("digits.npz").open("rb") as file, np.load(file) as data:
        pixels, labels = data["x"], data["y"]
    return pixels.reshape(len(pixels), -1).astype(np.float32) / np.float32(16), labels.astype(np.int64)


def load_text(path: str | PathLike[str] | None = None) -> str:
    """Load a text: "Alice's Adventures in Wonderland" (see ALICE.md for its origin), or a UTF-8 file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no UTF-8 text.

    Example:
        >>> text = load_text()
        >>> len(text), text.split()[:3]
        (148426, ["ALICE'S", 'ADVENTURES', 'IN'])
    """
    source = files(__name__).joinpath("alice.txt") if path is None else Path(path)
    try:
        return source.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; give the path of a text") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text ({error})") from None


def load_mnist(path: str | PathLike[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Load images and labels from an .npz file in the form in which MNIST is passed around.

    Args:
        path: a file holding x_train and x_test, uint8 (count, height, width) or (count, pixels), and y_train
            and y_test, integers (count,).

    Returns:
        x_train, y_train, x_test, y_test: images (count, pixels) float32 in [0, 1], labels (count,) int64.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no .npz file, lacks an array, or holds one of another form.

    Example:
        >>> x, y, x_test, y_test = load_mnist("mnist.npz")  # doctest: +SKIP
        >>> x.shape, x_test.shape  # doctest: +SKIP
        ((60000, 784), (10000, 784))
    """
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; give the path of mnist.npz") from None
    with file:
        try:
            data = np.load(file)
        except _DAMAGED as error:
            raise ValueError(f"{path} is not an .npz file ({error})") from error
        if not isinstance(data, np.lib.npyio.NpzFile):
            raise ValueError(f"{path} is not an .npz file but a single {data.dtype} array {data.shape}")
        missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in data]
        if missing:
            raise ValueError(f"{path} holds {', '.join(data) or 'nothing'}; it lacks {', '.join(missing)}")
        parts = [_images_and_labels(data, part, path) for part in ("train", "test")]
    (x_train, y_train), (x_test, y_test) = parts
    if x_train.shape[1] != x_test.shape[1]:
        raise ValueError(f"{path}: images of x_train have {x_train.shape[1]} pixels, of x_test {x_test.shape[1]}")
    return x_train, y_train, x_test, y_test


def _images_and_labels(data: np.lib.npyio.NpzFile, part: str, path: object) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = data[f"x_{part}"], data[f"y_{part}"]
    except _DAMAGED as error:
        raise ValueError(f"{path}: x_{part} or y_{part} cannot be read ({error})") from error
    if x.dtype != np.uint8 or x.ndim not in (2, 3) or not len(x):
        raise ValueError(f"{path}: x_{part} is {x.dtype} {x.shape}; it must be uint8 (count, height, width)")
    if y.dtype.kind not in "iu" or y.shape != (len(x),):
        raise ValueError(f"{path}: y_{part} is {y.dtype} {y.shape}; it must be integers ({len(x)},)")
    if y.min() < 0 or y.max() > 9:
        raise ValueError(f"{path}: y_{part} holds labels {y.min()} to {y.max()}; they must be 0 to 9")
    return x.reshape(len(x), -1).astype(np.float32) / np.float32(255), y.astype(np.int64)
