"""The digits and the book that ship are the published ones, and wrong files are refused in words."""

import contextlib
import hashlib
from importlib.resources import files

import numpy as np
import pytest

from numbaprims.datasets import load_digits, load_mnist, load_text


def test_digits_are_the_published_ones():
    with files("numbaprims.datasets").joinpath("digits.npz").open("rb") as file, np.load(file) as data:
        digest = hashlib.sha256(data["x"].tobytes() + data["y"].tobytes()).hexdigest()
    assert digest in files("numbaprims.datasets").joinpath("DIGITS.md").read_text()
    x, y = load_digits()
    assert x.shape == (1797, 64) and x.dtype == np.float32 and (x.min(), x.max()) == (0.0, 1.0)
    # the numbers of each digit in the test set, as UCI states them
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180] and y.dtype == np.int64
    np.testing.assert_array_equal(x * 16, np.rint(x * 16))


def test_digits_are_those_of_scikit_learn():
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x, y = load_digits()
    np.testing.assert_array_equal(x * 16, digits.data)
    np.testing.assert_array_equal(y, digits.target)


def test_the_book_is_the_published_one(tmp_path):
    text = load_text()
    assert hashlib.sha256(text.encode()).hexdigest() in files("numbaprims.datasets").joinpath("ALICE.md").read_text()
    assert len(text) == 148_426 and text.isascii() and "Gutenberg" not in text and "\r" not in text
    (tmp_path / "own.txt").write_text("gr\u00fcn\n", encoding="utf-8")
    assert load_text(tmp_path / "own.txt") == "gr\u00fcn\n"
    with pytest.raises(FileNotFoundError, match="give the path of a text"):
        load_text(tmp_path / "none.txt")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="bad.txt is no UTF-8 text"):
        load_text(tmp_path / "bad.txt")


def mnist(**changes):
    arrays = {
        "x_train": np.full((5, 4, 3), 255, np.uint8),
        "y_train": np.arange(5, dtype=np.uint8),
        "x_test": np.zeros((2, 4, 3), np.uint8),
        "y_test": np.array([9, 0], np.int32),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def test_mnist(tmp_path):
    np.savez(tmp_path / "mnist.npz", **mnist())
    x, y, x_test, y_test = load_mnist(tmp_path / "mnist.npz")
    assert x.shape == (5, 12) and x_test.shape == (2, 12) and x.dtype == np.float32
    assert (x == 1).all() and (x_test == 0).all()
    assert y.tolist() == [0, 1, 2, 3, 4] and y_test.tolist() == [9, 0] and y.dtype == y_test.dtype == np.int64


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": None}, r"holds x_train, y_train, x_test; it lacks y_test"),
        (
            {"x_train": np.zeros((5, 12))},
            r"x_train is float64 \(5, 12\); it must be uint8 \(count, height, width\)",
        ),
        ({"y_train": np.zeros((5, 10), np.int64)}, r"y_train is int64 \(5, 10\); it must be integers \(5,\)"),
        ({"y_test": np.array([9, 10])}, r"y_test holds labels 9 to 10; they must be 0 to 9"),
        ({"y_test": np.array([9, None])}, r"mnist.npz: x_test or y_test cannot be read \(Object arrays"),
        ({"x_test": np.zeros((2, 5, 5), np.uint8)}, r"images of x_train have 12 pixels, of x_test 25"),
    ],
)
def test_mnist_of_another_form(tmp_path, changes, words):
    np.savez(tmp_path / "mnist.npz", **mnist(**changes))
    with pytest.raises(ValueError, match=words):
        load_mnist(tmp_path / "mnist.npz")


def test_mnist_that_is_no_archive(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the path of mnist.npz"):
        load_mnist(tmp_path / "none.npz")
    for content in (b"", b"text", b"PK\x03\x04 truncated"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(ValueError, match="bad.npz"):
            load_mnist(tmp_path / "bad.npz")
    np.savez(tmp_path / "mnist.npz", **mnist())
    whole = bytearray((tmp_path / "mnist.npz").read_bytes())
    for at in range(len(whole)):
        changed = whole.copy()
        changed[at] ^= 0x55
        (tmp_path / "bad.npz").write_bytes(changed)
        with contextlib.suppress(ValueError):  # and nothing else
            load_mnist(tmp_path / "bad.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ValueError, match="one.npy is not an .npz file"):
        load_mnist(tmp_path / "one.npy")
