"""Figure 3 of Zhang and Zhang: a perceptron {784, N, 10} trained sample by sample, an epoch and its forward half.

Zhang and Zhang, "Optimized Deep Learning Architectures with Fast Matrix Operation Kernels on Parallel Platform", 2013:
60,000 images of MNIST, sigmoids, squared error, one global learning rate, no momentum; N from 10 to 1280.  The paper
draws curves and prints no number but "an average +200 % faster" for training and "at least 300+ %" forward, over
cuBLAS.

Here each library does the same steps on the same samples, one at a time: two products, two sigmoids, their gradients,
a transposed product, two rank-one updates.  A pass over a stated fraction of the 60,000 is timed, libraries in turns,
and multiplied.  The images are pixels drawn at random, since no step's time depends on what they show.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from statistics import geometric_mean
from types import ModuleType
from typing import Any

import numpy as np

from numbaprims.bench import gpu, rivals, session, zhang_calls
from numbaprims.bench.cases import OURS
from numbaprims.tuning.timing import Schedule, measure as measure_calls

HIDDEN = (10, 20, 40, 80, 160, 320, 640, 1280)
SAMPLES = 60_000
#: Samples that one timed call goes through: long enough that calling it costs nothing beside.
PASS = 20
RATE = 0.01
PIXELS, CLASSES = 784, 10

Step = Callable[[int], None]


class Perceptron:
    """Weights and scratch vectors of one library, and its step; `array` brings a NumPy array to the library."""

    def __init__(self, hidden: int, array: Callable[[np.ndarray], Any], step: str, origin: ModuleType) -> None:
        rng = np.random.default_rng(hidden)
        sizes = (PIXELS, hidden, CLASSES)
        self.w: list[Any] = []
        self.b: list[Any] = []
        for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
            bound = (6.0 / (inputs + outputs)) ** 0.5
            self.w.append(array(rng.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)))
            self.b.append(array(np.zeros(outputs, np.float32)))
        self.x = [array(x) for x in rng.random((PASS, PIXELS), np.float32)]
        targets = np.eye(CLASSES, dtype=np.float32)[rng.integers(0, CLASSES, PASS)]
        self.t = [array(t) for t in targets]
        self.h, self.y, self.d1, self.d2, self.back = (
            array(np.empty(size, np.float32)) for size in (hidden, CLASSES, hidden, CLASSES, hidden)
        )
        self.product = [array(np.empty((o, i), np.float32)) for i, o in zip(sizes[:-1], sizes[1:], strict=True)]
        self.origin = origin
        self.forward: Step = getattr(self, f"_forward_{step}")
        self.backward: Step = getattr(self, f"_backward_{step}")

    def epoch(self) -> None:
        """Train on the samples of one pass."""
        for i in range(PASS):
            self.forward(i)
            self.backward(i)

    def forwards(self) -> None:
        """Only look at them."""
        for i in range(PASS):
            self.forward(i)

    def _forward_ours(self, i: int) -> None:
        import numbaprims as nbp

        nbp.gemv(self.w[0], self.x[i], y=self.b[0], beta=1.0, out=self.h)
        nbp.sigmoid(self.h, out=self.h)
        nbp.gemv(self.w[1], self.h, y=self.b[1], beta=1.0, out=self.y)
        nbp.sigmoid(self.y, out=self.y)

    def _backward_ours(self, i: int) -> None:
        import numbaprims as nbp

        self.origin.subtract(self.y, self.t[i], out=self.d2)
        nbp.sigmoid_backward(self.d2, y=self.y, out=self.d2)
        nbp.gemv(self.w[1], self.d2, trans=True, out=self.back)
        nbp.sigmoid_backward(self.back, y=self.h, out=self.d1)
        for w, b, d, below in ((self.w[1], self.b[1], self.d2, self.h), (self.w[0], self.b[0], self.d1, self.x[i])):
            nbp.ger(d, below, a=w, alpha=-RATE, out=w)
            self.origin.multiply(d, RATE, out=d)
            self.origin.subtract(b, d, out=b)

    def _forward_numpy(self, i: int) -> None:
        for w, b, x, y in ((self.w[0], self.b[0], self.x[i], self.h), (self.w[1], self.b[1], self.h, self.y)):
            np.matmul(w, x, out=y)
            y += b
            np.negative(y, out=y)
            np.exp(y, out=y)
            y += 1
            np.reciprocal(y, out=y)

    def _backward_numpy(self, i: int) -> None:
        np.subtract(self.y, self.t[i], out=self.d2)
        self.d2 *= self.y * (1 - self.y)
        np.matmul(self.w[1].T, self.d2, out=self.back)
        np.multiply(self.back, self.h * (1 - self.h), out=self.d1)
        layers = (self.w[1], self.b[1], self.d2, self.h), (self.w[0], self.b[0], self.d1, self.x[i])
        for (w, b, d, below), product in zip(layers, self.product[::-1], strict=True):
            d *= RATE
            np.multiply(d[:, None], below, out=product)
            w -= product
            b -= d

    def _forward_torch(self, i: int) -> None:
        torch = self.origin
        torch.addmv(self.b[0], self.w[0], self.x[i], out=self.h).sigmoid_()
        torch.addmv(self.b[1], self.w[1], self.h, out=self.y).sigmoid_()

    def _backward_torch(self, i: int) -> None:
        torch = self.origin
        torch.sub(self.y, self.t[i], out=self.d2)
        torch.ops.aten.sigmoid_backward.grad_input(self.d2, self.y, grad_input=self.d2)
        torch.mv(self.w[1].T, self.d2, out=self.back)
        torch.ops.aten.sigmoid_backward.grad_input(self.back, self.h, grad_input=self.d1)
        for w, b, d, below in ((self.w[1], self.b[1], self.d2, self.h), (self.w[0], self.b[0], self.d1, self.x[i])):
            w.addr_(d, below, alpha=-RATE)
            b.sub_(d, alpha=RATE)


def contenders(hidden: int, device: str) -> dict[str, Perceptron]:
    """The same network for each library; on a GPU all of them compute on torch's tensors."""
    torch = rivals.load_rival("torch")
    found: dict[str, Perceptron] = {}
    if device == "cpu":
        found[OURS] = Perceptron(hidden, np.copy, "ours", np)
        found["numpy"] = Perceptron(hidden, np.copy, "numpy", np)
        if torch is not None:
            found["torch"] = Perceptron(hidden, lambda x: torch.from_numpy(x.copy()), "torch", torch)
    elif torch is not None and torch.cuda.is_available():
        for name, step in ((OURS, "ours"), ("torch", "torch")):
            found[name] = Perceptron(hidden, lambda x: torch.from_numpy(x.copy()).cuda(), step, torch)
    return found


def disagreement(found: dict[str, Perceptron]) -> str | None:
    """What is wrong after one pass of training, if the libraries' weights have gone apart."""
    for model in found.values():
        model.epoch()
    weights = {name: [np.asarray(w.cpu() if hasattr(w, "cpu") else w) for w in m.w] for name, m in found.items()}
    for name, theirs in weights.items():
        worst = max(float(np.abs(a - b).max()) for a, b in zip(theirs, weights[OURS], strict=True))
        if not worst < 1e-4:
            return f"the weights of {name} are {worst:.2g} from ours after {PASS} steps"
    return None


def measure(options: Namespace, document: dict[str, Any]) -> Iterator[None]:
    """Time every size of the hidden layer."""
    found = document["entries"] = []
    document["threads"] = options.threads
    sizes = (10, 160) if options.quick else HIDDEN
    with rivals.limit_threads(options.threads):
        for device, driver in zhang_calls.devices():
            schedule = session.schedule(options) if driver is None else gpu.schedule(options)
            for hidden in sizes:
                models = contenders(hidden, device)
                if not models:
                    continue
                entry = {"device": device, "hidden": hidden, **_timed(models, schedule, driver)}
                found.append(entry)
                print(_line(entry), flush=True)
                yield


def _timed(models: dict[str, Perceptron], schedule: Schedule, driver: Any) -> dict[str, Any]:
    wrong = disagreement(models)
    if wrong is not None:
        return {"error": wrong}
    clock = None if driver is None else driver.clock()
    found: dict[str, Any] = {}
    for part, method in (("epoch", "epoch"), ("forward", "forwards")):
        times = measure_calls({name: getattr(model, method) for name, model in models.items()}, schedule, clock=clock)
        found[part] = {name: times[name].seconds * SAMPLES / PASS for name in models}
        found[f"{part} fraction"] = min(times[name].calls for name in models) * PASS / SAMPLES
    return found


def _line(entry: dict[str, Any]) -> str:
    start = f"{entry['device']:5} N = {entry['hidden']:<5}"
    if "error" in entry:
        return f"{start}  NOT MEASURED: {entry['error']}"
    parts = []
    for part in ("epoch", "forward"):
        ours = entry[part][OURS]
        faster = ", ".join(f"{n} {100 * (s / ours - 1):+.0f} %" for n, s in entry[part].items() if n != OURS)
        parts.append(f"{part} {ours:7.3f} s, faster than {faster}")
    return f"{start}  " + "; ".join(f"{part:52}" for part in parts).rstrip()


def lines(document: dict[str, Any]) -> list[str]:
    """Seconds of an epoch and of its forward propagation, and how much faster that is."""
    found = document["entries"]
    measured = [entry for entry in found if "epoch" in entry]
    threads = document["threads"]
    out = [f"{{784, N, 10}}, {SAMPLES:,} samples one by one, f32, {threads} thread{'s' * (threads > 1)}"]
    if measured:
        least = min(entry[f"{part} fraction"] for entry in measured for part in ("epoch", "forward"))
        out[0] += f"; at least {100 * least:.2g} % of them timed, libraries in turns"
    out += ["", *map(_line, found), ""]
    for device in dict.fromkeys(entry["device"] for entry in measured):
        mine = [entry for entry in measured if entry["device"] == device]
        for part, paper in (("epoch", "+200 % on average"), ("forward", "+300 % and more for most N")):
            means = ", ".join(
                f"{name} {100 * (geometric_mean([e[part][name] / e[part][OURS] for e in mine]) - 1):+.0f} %"
                for name in mine[0][part]
                if name != OURS
            )
            out.append(f"{part} on {device}, faster than {means} (geometric mean); the paper over cuBLAS: {paper}")
    if not any(entry["device"] == "cuda" for entry in found):
        out.append("No GPU was there: the paper compares kernels of a GPU, these are CPU kernels.")
    return out


def draw(document: dict[str, Any], path: str) -> None:
    """Two panels, as the paper's: seconds of an epoch, and of forward propagation.

    Raises:
        ValueError: nothing was measured, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: matplotlib is not installed; pip install numbaprims[bench] brings it") from None
    measured = [entry for entry in document["entries"] if "epoch" in entry]
    if not measured:
        raise ValueError("plot: nothing to draw, no size was measured")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, part in zip(figure.subplots(1, 2), ("epoch", "forward"), strict=True):
        for device in dict.fromkeys(entry["device"] for entry in measured):
            mine = [entry for entry in measured if entry["device"] == device]
            for name in mine[0][part]:
                seconds = [entry[part][name] for entry in mine]
                axes.plot([entry["hidden"] for entry in mine], seconds, "o-", label=f"{name}, {device}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("N, neurons of the hidden layer")
        axes.set_ylabel("seconds")
        axes.set_title({"epoch": "training epoch", "forward": "forward propagation"}[part])
        axes.grid(True, which="both", alpha=0.2)
        axes.legend()
    figure.suptitle(f"{{784, N, 10}}, {document['threads']} thread(s), on {document['machine']['cpu']}")
    figure.savefig(path, dpi=110)
