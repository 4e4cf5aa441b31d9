"""``numbaprims info``: what this library found on this machine, and what it will do with it."""

import argparse
import json
import math
import os
import platform
import shutil
import textwrap
from importlib import metadata
from typing import Any

import numbaprims
from numbaprims import settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    facts = collect()
    print(json.dumps(facts, indent=2) if arguments.json else render(facts))
    return 0


def collect() -> dict[str, Any]:
    """Everything that ``numbaprims info`` prints, by section, as JSON values."""
    return {
        "versions": _versions(),
        "cpu": _cpu(),
        "threads": _threads(),
        "gpu": _gpu(),
        "cache": _cache(),
        "warnings": _warnings(),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _versions() -> dict[str, str | None]:
    libraries = ("numba", "llvmlite", "numpy", "torch", "numba-cuda")
    return {
        "numbaprims": numbaprims.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: _version(name) for name in libraries},
        "platform": platform.platform(),
    }


def _cpu() -> dict[str, Any]:
    from numbaprims.dispatch import registry

    cpu = registry.target("cpu")
    return {
        "model": cpu.model,
        "llvm_name": cpu.name,
        "isa": cpu.isa,
        "vector_bits": 8 * cpu.vector_bytes,
        "features": sorted(cpu.features),
        "l1d_bytes": cpu.l1d,
        "l2_bytes": cpu.l2,
        "l3_bytes": cpu.l3,
        "cores_physical": cpu.cores_physical,
        "cores_logical": cpu.cores_logical,
        "rates": cpu.rates._asdict(),
    }


def _threads() -> dict[str, Any]:
    from numbaprims.cpu import threads

    layer, why = threads.layer()
    quota, chosen = threads.cgroup_quota(), settings.current().threads
    return {
        "count": threads.count(),
        "why_count": f"{chosen} by the settings" if chosen else threads.why_default(),
        "quota_cpus": None if math.isinf(quota) else quota,
        "layer": layer,
        "why_layer": why,
    }


def _gpu() -> dict[str, Any]:
    """The GPUs, or why there is none, and whether kernels can be compiled, which needs no GPU."""
    extra = _version("numba-cuda")
    facts: dict[str, Any] = {
        "available": False,
        "why": None,
        "numba_cuda": extra or "not installed (the extras cu12 and cu13)",
        "compiler": {name: _version(f"nvidia-{name}") for name in ("nvvm", "nvjitlink")} if extra else {},
        "devices": [],
    }
    if extra is None:
        facts["why"] = "numba-cuda is not installed: pip install 'numbaprims[cu13]', or [cu12]"
        return facts
    from numbaprims.gpu import driver

    try:
        count = driver.count()
        facts["devices"] = [_device(driver.current(index)) for index in range(count)]
        facts["available"] = count > 0
    except driver.NoGpu as error:
        facts["why"] = str(error)
    return facts


def _device(gpu: Any) -> dict[str, Any]:
    target = gpu.target
    return {
        "name": target.name,
        "arch": target.arch,
        "multiprocessors": target.multiprocessors,
        "memory_bytes": target.memory,
        "l2_bytes": target.l2,
        "bandwidth": target.bandwidth,
        "peak_f32": target.peak("f32"),
        "peak_bf16": target.peak("bf16"),
    }


def _gpu_rows(gpu: dict[str, Any]) -> list[tuple[str, str]]:
    tools = ", ".join(f"{name} {version or 'of the system'}" for name, version in gpu["compiler"].items())
    rows = [("GPU", f"none: {gpu['why']}")] if gpu["why"] else []
    for index, device in enumerate(gpu["devices"]):
        rows.append(
            (f"GPU {index}", f"{device['name']}, {device['arch']}, {device['multiprocessors']} multiprocessors")
        )
        rows.append(
            (
                "",
                f"memory {device['memory_bytes'] / 2**30:.3g} GiB at {device['bandwidth'] / 1e12:.2f} TB/s, "
                f"L2 {_size(device['l2_bytes'])}, f32 {device['peak_f32'] / 1e12:.0f} TFLOP/s, "
                f"bf16 {device['peak_bf16'] / 1e12:.0f} (by formula)",
            )
        )
    return [*rows, ("GPU compiler", f"numba-cuda {gpu['numba_cuda']}{', ' * bool(tools)}{tools}")]


def _cache() -> dict[str, Any]:
    from numbaprims import kernel_cache
    from numbaprims.cpu import drivers

    # The first call of any primitive loads these two drivers, so they tell whether the cache works here.
    drivers.serial_driver()
    drivers.parallel_driver()
    return {
        "directory": str(kernel_cache.directory()),
        "entries": len(kernel_cache.entries()),
        "bytes": kernel_cache.size(),
        "off": kernel_cache.unavailable(),
        **kernel_cache.statistics(),
    }


def _warnings() -> list[str]:
    from numbaprims.bench import rivals

    # Thread counts are the user's business; the rest makes a comparison flatter us: OPENBLAS_CORETYPE=Haswell
    # halves NumPy's matrix product on a CPU with AVX-512.
    caps = {name: value for name, value in rivals.caps(os.environ).items() if "THREADS" not in name}
    return [
        f"{name}={value} slows other libraries; `numbaprims bench` removes it, your own comparison must too"
        for name, value in sorted(caps.items())
    ]


def _rates(rates: dict[str, Any], lanes: int) -> str:
    """What estimates assume of one core."""
    peak = 2 * rates["fma"] * rates["clock"] * lanes
    levels = ", ".join(f"{name} {rates[name.lower()] / 1e9:.3g}" for name in ("L1", "L2", "L3", "memory"))
    return f"{rates['source']}: {rates['clock'] / 1e9:.3g} GHz, {peak / 1e9:.3g} GFLOP/s f32, GB/s {levels}"


def _size(count: int) -> str:
    if not count:
        return "none"
    return f"{count / 2**20:.3g} MiB" if count >= 2**20 else f"{count / 2**10:.3g} KiB"


def render(facts: dict[str, Any]) -> str:
    """The text form of `collect()`."""
    cpu, threads, gpu, cache = (facts[name] for name in ("cpu", "threads", "gpu", "cache"))
    quota = "no quota" if threads["quota_cpus"] is None else f"a quota of {threads['quota_cpus']:g} CPUs"
    rows = [(name, version or "not installed") for name, version in facts["versions"].items()]
    rows += [
        ("CPU", cpu["model"]),
        ("", f"{cpu['llvm_name']}, {cpu['isa']}, vectors of {cpu['vector_bits']} bits"),
        ("", f"{cpu['cores_logical']} CPUs on {cpu['cores_physical']} cores for this process, {quota}"),
        ("features", " ".join(cpu["features"])),
        (
            "caches",
            ", ".join(f"{name} {_size(cpu[f'{name.lower()}_bytes'])}" for name in ("L1d", "L2", "L3")),
        ),
        ("rates", _rates(cpu["rates"], cpu["vector_bits"] // 32)),
        ("threads", threads["why_count"]),
        ("layer", f"{threads['layer']}: {threads['why_layer']}"),
        *_gpu_rows(gpu),
        ("kernel cache", cache["off"] or cache["directory"]),
        ("", f"{cache['entries']} kernels, {_size(cache['bytes'])}"),
        ("", f"the drivers: {cache['hits']} found, {cache['misses']} compiled"),
    ]
    lines = _columns(rows)
    return "\n".join([*lines, *(f"warning: {text}" for text in facts["warnings"])])


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    """Two columns; what is too wide for the terminal goes on in the second."""
    width = max(shutil.get_terminal_size((110, 24)).columns, 60) - 14
    lines = []
    for name, value in rows:
        for number, part in enumerate(textwrap.wrap(value, width, break_long_words=False) or [""]):
            lines.append(f"{'' if number else name:<13} {part}")
    return lines
