"""The perceptron with its weights on a device: the same steps as on the CPU, in the emulator."""

import argparse

import numpy as np
import pytest

from numbaprims.nn import demo
from numbaprims.nn.mlp import MLP

SIZES = (12, 7, 3)


@pytest.mark.parametrize(("batch", "activation"), [(5, "sigmoid"), (1, "relu")])
def test_a_step_on_the_device_is_the_step_of_the_cpu(gpu, batch, activation, rng):
    x, labels = rng.random((batch, SIZES[0]), np.float32), rng.integers(0, SIZES[-1], batch)
    there, here = MLP(SIZES, activation, seed=3, device="cuda"), MLP(SIZES, activation, seed=3)
    before = here.on_host()[0][0]
    losses = [model.train_step(x, labels, 0.5) for model in (there, here)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for ours, want in zip(there.on_host(), here.on_host(), strict=True):
        for got, wanted in zip(ours, want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
    assert np.abs(here.weights[0] - before).max() > 1e-3, "the steps did something"
    assert np.array_equal(there.predict(x), here.predict(x)) and len(gpu.launches) > 8


def test_without_a_gpu_the_demo_says_so(monkeypatch, capsys):
    from numbaprims.gpu import cuda_driver, driver

    def none():
        raise driver.NoGpu("no NVIDIA driver was found on this machine")

    monkeypatch.setattr(cuda_driver, "bindings", none)
    monkeypatch.setattr(driver, "_drivers", {})
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    assert demo.run(parser.parse_args(["--device", "cuda", "--epochs", "1"])) == 2
    assert "numbaprims demo: --device cuda: no NVIDIA driver was found" in capsys.readouterr().err
