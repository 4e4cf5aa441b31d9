"""Whole networks by `numbaprims.frontends.torch.fuse`, beside torch in both layouts, in turns, and onnxruntime.

    python examples/fused_networks.py --threads 1,2 resnet50 mobilenet_v2 vit_b_16

Networks are those of torchvision by name where it is installed; "resnet", a ResNet-50, and "encoder", the twelve layers
of BERT-base over 128 tokens, need torch only.
onnxruntime takes part where it is installed, and onnx, by which torch writes the model.
"""

from __future__ import annotations

import argparse
import copy
import io
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import numbaprims
from numbaprims.frontends import torch as nbt


class Bottleneck(torch.nn.Module):
    """1x1, 3x3, 1x1 around a shortcut (He et al., Deep residual learning for image recognition, 2015)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = torch.nn.Sequential(
            *_conv(channels, width, 1), torch.nn.ReLU(inplace=True),
            *_conv(width, width, 3, stride), torch.nn.ReLU(inplace=True), *_conv(width, out, 1),
        )  # fmt: skip
        same = stride == 1 and channels == out
        self.shortcut = torch.nn.Identity() if same else torch.nn.Sequential(*_conv(channels, out, 1, stride))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        y += self.shortcut(x)
        return torch.relu(y)


def _conv(c: int, k: int, size: int, stride: int = 1) -> tuple[torch.nn.Module, torch.nn.Module]:
    return torch.nn.Conv2d(c, k, size, stride, size // 2, bias=False), torch.nn.BatchNorm2d(k)


def resnet(width: int = 64, classes: int = 1000) -> torch.nn.Module:
    """A ResNet-50 in eval mode; statistics of its norms are not those of the beginning."""
    layers = [*_conv(3, width, 7, 2), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            layers.append(Bottleneck(channels, width << stage, 2 if stage and not block else 1))
            channels = 4 * (width << stage)
    net = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, classes)
    )
    return _used(net)


def _used(net: torch.nn.Module) -> torch.nn.Module:
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, 0, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
        elif isinstance(module, torch.nn.Linear) and not module.weight.any():
            torch.nn.init.normal_(module.weight, 0, 0.02)
    return net.eval()


def made(name: str) -> torch.nn.Module:
    """A network by its name, with random weights."""
    if name == "resnet":
        return resnet()
    if name == "encoder":
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        return torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).eval()
    import torchvision

    words = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    words |= {"aux_logits": False} if name == "googlenet" else {}
    return _used(getattr(torchvision.models, name)(weights=None, **words))


def session(net: torch.nn.Module, x: torch.Tensor) -> Callable[[], Any] | None:
    """A call of onnxruntime, with as many threads as torch; None where it is not installed or the model not written."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError:
        return None
    model, options = io.BytesIO(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings(action="ignore"):
            torch.backends.mha.set_fastpath_enabled(False)  # ONNX has none
            torch.onnx.export(net, (x,), model, dynamo=False, input_names=["x"])
    except torch.onnx.errors.OnnxExporterError:
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    made, image = onnxruntime.InferenceSession(model.getvalue(), options), {"x": x.numpy()}
    return lambda: made.run(None, image)


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of calls, one after another."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()  # what was cached of others is gone
            begin = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return times


def measured(net: torch.nn.Module, x: torch.Tensor, rounds: int) -> tuple[dict[str, float], float]:
    """(milliseconds a call of each, by medians of turns; the largest difference, of the largest result)."""
    fused = nbt.fuse(net, x)
    calls: dict[str, Callable[[], Any]] = {"torch": lambda: net(x), "fuse": lambda: fused(x)}
    if x.ndim == 4:
        last = copy.deepcopy(net).to(memory_format=torch.channels_last)
        images = x.to(memory_format=torch.channels_last)
        calls["torch nhwc"] = lambda: last(images)
    with torch.no_grad():
        want = net(x)
        error = float((fused(x) - want).abs().max() / want.abs().max())
        times = in_turns(calls, rounds)
    if by_onnx := session(net, x):  # its threads spin as long as it is there: 6 ms of others took 116
        times |= in_turns({"onnxruntime": by_onnx}, rounds)
    return {name: statistics.median(each) for name, each in times.items()}, error


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["resnet"])
    parser.add_argument("--threads", default="1", help="counts, 1,2")
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--size", type=int, default=224, help="of an image (224)")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    columns = ("torch", "torch nhwc", "onnxruntime", "fuse")
    print(f"| network, images | threads | {' ms | '.join(columns)} ms | over the best | largest difference |")
    print("|---" * (len(columns) + 4) + "|")
    for name in options.networks:
        torch.manual_seed(0)
        image = (128, 768) if name == "encoder" else (3, options.size, options.size)
        net, x = made(name), torch.randn(options.images, *image)
        for threads in map(int, options.threads.split(",")):
            torch.set_num_threads(threads)
            with numbaprims.config(threads=threads):
                ms, error = measured(net, x, options.rounds)
            best = min(each for key, each in ms.items() if key != "fuse") / ms["fuse"]
            numbers = " | ".join(f"{ms[key]:.1f}" if key in ms else "-" for key in columns)
            print(f"| {name}, {options.images} | {threads} | {numbers} | {best:.2f} | {error:.0e} |", flush=True)


if __name__ == "__main__":
    main()
