"""Normalisations on a GPU, all launches of a call, against their definitions, in the emulator."""

import numpy as np
import pytest
from contract import CALLS, made
from helpers import assert_close, to_float64

import numbaprims
from numbaprims import arrays
from numbaprims.gpu.memory import to_device
from numbaprims.stems import PUBLIC

WANTED = [
    call for call in CALLS
    if call.function in PUBLIC["norm"]
    and call.label in ("rows", "planes", "pixels", "matrix", "residual", "plain", "narrow")
]  # fmt: skip
DTYPES = ("f32", "bf16", "f64", "f16")


@pytest.mark.parametrize(("call", "dtype"), [(call, DTYPES[k % 4]) for k, call in enumerate(WANTED)], ids=str)
def test_every_launch_gives_the_definition(gpu, call, dtype):
    args, words = made(call, dtype)

    def run(convert):
        given = {name: convert(x) if hasattr(x, "dtype") else x for name, x in words.items()}
        found = getattr(numbaprims, call.function)(*(convert(x) if hasattr(x, "dtype") else x for x in args), **given)
        return [each for each in (found if isinstance(found, tuple) else (found,)) if each is not None]

    with numbaprims.config(device="reference"):
        wanted = run(lambda x: np.asarray(to_float64(*arrays.enter(x, "x")[:2])))
    for have, want in zip(run(to_device), wanted, strict=True):
        storage, kind, _ = arrays.enter(have.to_host(), "result")
        assert_close(storage, want, k=call.k, dtype=kind, vacuous=not want.any())


@pytest.mark.parametrize("name", ["group_norm", "group_norm_train", "group_norm_backward"])
def test_parameters_with_gaps(gpu, name):
    x, wide = np.random.default_rng(0).standard_normal((2, 2, 6, 5)).astype(np.float32)
    given = (x, wide, 3, wide[0, ::-1, 1], wide[:, :3, 0], wide[:, :3, 1])
    given = given if name.endswith("backward") else (x, 3, wide[0, ::-1, 1], wide[1, :, 2])
    with numbaprims.config(device="reference"):
        wanted = getattr(numbaprims, name)(*given)
    results = getattr(numbaprims, name)(*(to_device(each) if isinstance(each, np.ndarray) else each for each in given))
    for have, want in zip(*(each if isinstance(each, tuple) else (each,) for each in (results, wanted)), strict=True):
        np.testing.assert_allclose(have.to_host(), want, 1e-4, 1e-5)
