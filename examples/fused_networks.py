"""Whole networks by `numbaprims.frontends.torch.fuse` and by torch.compile, beside torch in both layouts, its own
compiler, in turns, and onnxruntime.

    python examples/fused_networks.py --threads 1,2 --inductor resnet50 mobilenet_v2 vit_b_16 bert gpt2

Networks are those of torchvision by name where it is installed, and where transformers is, bert, gpt2, t5 (its
encoder), llama (of BERT-base's size) and whisper (its encoder); "resnet", a ResNet-50, and "encoder", the twelve layers
of BERT-base, need torch only. Texts have 128 tokens.
onnxruntime takes part where it is installed, and onnx, by which torch writes the model; torch's own compiler, which
needs one of C++, with --inductor: with `freezing`, its fastest way to infer.
"""

from __future__ import annotations

import argparse
import copy
import io
import statistics
import sys
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


class Text(torch.nn.Module):
    """A model of transformers, from tensors to one tensor."""

    def __init__(self, model: torch.nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, given, strict=True)))[0]


_LLAMA = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 4,
}  # fmt: skip
_WHISPER = {
    "d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048,
    "decoder_attention_heads": 8,
}  # fmt: skip
#: name -> model and configuration of transformers, what the configuration says, and what the model is given
TEXTS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "bert": ("BertModel", "BertConfig", {}, ("input_ids", "attention_mask")),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"use_cache": False}, ("input_ids", "attention_mask")),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"use_cache": False, **_LLAMA}, ("input_ids", "attention_mask")),
    "t5": ("T5EncoderModel", "T5Config", {}, ("input_ids",)),
    "whisper": ("WhisperModel", "WhisperConfig", _WHISPER, ("input_features",)),
}


def inputs_of(name: str, images: int, size: int) -> tuple[torch.Tensor, ...]:
    """Random inputs of a network."""
    of = {
        "input_ids": lambda: torch.randint(30000, (images, 128)),
        "attention_mask": lambda: torch.ones(images, 128).long(),
        "input_features": lambda: torch.randn(images, 80, 3000),
    }
    if name in TEXTS:
        return tuple(of[each]() for each in TEXTS[name][3])
    return (torch.randn(images, 128, 768) if name == "encoder" else torch.randn(images, 3, size, size),)


def made(name: str) -> torch.nn.Module:
    """A network by its name, with random weights."""
    if name in TEXTS:
        import transformers

        model, configuration, words, given = TEXTS[name]
        net = getattr(transformers, model)(getattr(transformers, configuration)(**words))
        return Text(net.encoder if name == "whisper" else net, *given).eval()
    if name == "resnet":
        return resnet()
    if name == "encoder":
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        return torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).eval()
    import torchvision

    words = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    words |= {"aux_logits": False} if name == "googlenet" else {}
    return _used(getattr(torchvision.models, name)(weights=None, **words))


def session(net: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], Any] | None:
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
            torch.onnx.export(net, inputs, model, dynamo=False)
    except Exception as error:  # of many kinds, with the whole graph in their words
        print(f"not written by torch.onnx: {str(error)[-200:]}", file=sys.stderr)
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    made = onnxruntime.InferenceSession(model.getvalue(), options)
    given = {each.name: x.numpy() for each, x in zip(made.get_inputs(), inputs, strict=True)}
    return lambda: made.run(None, given)


def inductor(net: torch.nn.Module) -> Callable[..., Any]:
    """A network by torch's own compiler."""
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return torch.compile(copy.deepcopy(net))  # type: ignore[no-any-return]


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


def measured(
    net: torch.nn.Module, inputs: tuple[torch.Tensor, ...], rounds: int, by_inductor: bool = False
) -> tuple[dict[str, float], float]:
    """(milliseconds a call of each, by medians of turns; the largest difference, of the largest result)."""
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="numbaprims")
    calls: dict[str, Callable[[], Any]] = {"torch": lambda: net(*inputs), "compile": lambda: compiled(*inputs)}
    if not isinstance(net, Text):  # which torch.fx does not trace
        fused = nbt.fuse(net, *inputs)
        calls["fuse"] = lambda: fused(*inputs)
    if inputs[0].ndim == 4:
        last = copy.deepcopy(net).to(memory_format=torch.channels_last)
        images = inputs[0].to(memory_format=torch.channels_last)
        calls["torch nhwc"] = lambda: last(images)
    with torch.no_grad():
        want = net(*inputs)
        ours = [calls[name]() for name in ("compile", "fuse") if name in calls for _ in range(2)]
        error = max(float((y - want).abs().max() / want.abs().max()) for y in ours)
        times = in_turns(calls, rounds)
        if by_inductor:  # by itself: what its threads do behind a call slowed others by 1.2
            torchs = inductor(net)
            torchs(*inputs)
            times |= in_turns({"inductor": lambda: torchs(*inputs)}, rounds)
    if by_onnx := session(net, inputs):  # its threads spin as long as it is there: 6 ms of others took 116
        times |= in_turns({"onnxruntime": by_onnx}, rounds)
    return {name: statistics.median(each) for name, each in times.items()}, error


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["resnet"])
    parser.add_argument("--threads", default="1", help="counts, 1,2")
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--size", type=int, default=224, help="of an image (224)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--inductor", action="store_true", help="beside torch's own compiler")
    options = parser.parse_args(arguments)
    columns = ("torch", "torch nhwc", "inductor", "onnxruntime", "fuse", "compile")
    print(f"| network, images | threads | {' ms | '.join(columns)} ms | over the best | largest difference |")
    print("|---" * (len(columns) + 4) + "|")
    for name in options.networks:
        torch.manual_seed(0)
        net, inputs = made(name), inputs_of(name, options.images, options.size)
        for threads in map(int, options.threads.split(",")):
            torch.set_num_threads(threads)
            with numbaprims.config(threads=threads):
                ms, error = measured(net, inputs, options.rounds, options.inductor)
            rivals = min(each for key, each in ms.items() if key not in ("fuse", "compile"))
            best = rivals / ms.get("fuse", ms["compile"])
            numbers = " | ".join(f"{ms[key]:.1f}" if key in ms else "-" for key in columns)
            print(f"| {name}, {options.images} | {threads} | {numbers} | {best:.2f} | {error:.0e} |", flush=True)


if __name__ == "__main__":
    main()
