"""The assembly of register tiles for named CPUs, never for the one that runs the tests: LLVM schedules for each model
in another way, and a sum that is put on the stack in a loop costs a third of the speed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite.binding import llvm_version_info

from numbaprims.cpu import target

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(target.current().arch != "x86_64", reason="names of x86 CPUs"),
]

#: One of each of LLVM's models of scheduling, and those that share one.
NAMES = ("znver5", "sapphirerapids", "rocketlake", "x86-64-v4")
OTHERS = ("znver4", "icelake-server", "cooperlake")
each_cpu = pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
#: Of a Xeon that LLVM takes for a rocketlake: the model comes from the name, the instructions from these.
FEATURES = (
    "avx avx2 avx512bf16 avx512bitalg avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vbmi2 avx512vl "
    "avx512vnni avx512vpopcntdq bmi bmi2 cx16 f16c fma lzcnt movbe popcnt sse3 sse4.1 sse4.2 ssse3 xsave"
)
MULTIPLY = re.compile(r"\svf\w*madd|vpdpbusd|vdpbf16ps")
ON_STACK = re.compile(r"\(%rsp\).*%zmm|%zmm\d+, -?\d*\(%rsp\)")


def loops(assembly):
    """[multiplications, uses of the stack by vectors, registers of sums] of each loop that multiplies."""
    found = []
    for block in re.split(r"^(?=\.LBB)", assembly, flags=re.MULTILINE):
        lines = block.splitlines()
        sums = [line.rpartition(",")[2].strip() for line in lines if MULTIPLY.search(line)]
        if sums and re.search(rf"\sj\w+\s+{re.escape(block.partition(':')[0])}\b", block):
            found.append([len(sums), sum(bool(ON_STACK.search(line)) for line in lines), len(set(sums))])
    return found


def tiles():
    """Every register tile at its largest: name -> (kernel, the sums that it keeps)."""
    from test_simd_dot import make_tile

    from numbaprims.cpu.attention.kernels import make_forward
    from numbaprims.cpu.conv.implicit.channels_last import make_multiply_rows
    from numbaprims.cpu.conv.vnni.kernels import make_multiply as make_windows
    from numbaprims.cpu.conv.winograd.fused import make_chunk_products
    from numbaprims.cpu.conv.winograd.gradient import make_correlate
    from numbaprims.cpu.conv.winograd.products import make_products
    from numbaprims.cpu.gemm.multiply import make_multiply
    from numbaprims.cpu.gemm.vnni import make_multiply_vnni

    found = {"roofline fma": (roofline_chains("fma"), 12)}
    for kind, group in (("u8s8", 4), ("bf16", 2)):
        found[f"roofline {kind}"] = roofline_chains(kind), 12
        found[f"14 x 2 {kind}"] = make_tile(kind), 28
        found[f"product {kind}"] = make_multiply_vnni(kind, 12, 2, 16, group, kind == "u8s8"), 24
        for height, vectors in ((8, 3), (8, 2), (6, 4)):
            found[f"windows {height} x {vectors} {kind}"] = make_windows(kind, height, vectors, 16), height * vectors
    # registers do not depend on how many lanes they have: of float64 one model will do
    for acc, lanes in (("f32", 16), ("f64", 8))[: 1 + (os.environ.get("NUMBA_CPU_NAME") == NAMES[0])]:
        found[f"attention {acc}"] = make_forward(acc, acc, "", 13, 13, 2, lanes), 26
        found[f"product {acc}"] = make_multiply(acc, 12, 2, lanes), 24
        found[f"rows {acc}"] = make_multiply_rows(acc, 14, 2, lanes), 28
        found[f"winograd {acc}"] = make_products(acc, 14, 2, lanes), 28
        found[f"chunks {acc}"] = make_chunk_products(acc, 8, 2, lanes, 0), 16
        found[f"gradient {acc}"] = make_correlate(acc, 8, 2, lanes), 16
    return found


def roofline_chains(kind):
    from numbaprims.cpu import roofline

    if kind == "fma":
        return roofline.make_fma_chains("f32", 16, 7)
    return roofline.make_dot_chains(kind, 16, roofline.dot_feature(kind, 16), 7)


@pytest.fixture(scope="module")
def judged(request):
    """What each CPU's assembly looks like; all of them are compiled for at once."""
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, str(Path(here).parent), str(Path(target.__file__).parents[2])])
    features = ",".join(f"+{feature}" for feature in FEATURES.split())
    started = {}
    for name in NAMES + OTHERS * request.config.option.slow:
        env = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "PYTHONPATH": paths}
        started[name] = subprocess.Popen([sys.executable, __file__], env=env, stdout=subprocess.PIPE, text=True)
    told = {name: process.communicate()[0] for name, process in started.items()}
    assert all(process.returncode == 0 for process in started.values())
    return {name: json.loads(text) for name, text in told.items()}


@each_cpu
def test_sums_stay_in_registers(judged, name):
    for tile, (sums, assembly) in judged[name].items():
        if tile.startswith("roofline") or (tile.startswith("winograd") and llvm_version_info < (22,)):
            continue  # LLVM 20 puts five sums of these on the stack (f32, f64)
        assert assembly, f"{tile}: no loop"
        # the loop of four steps, and that of the rest, keep all sums
        assert max(kept for _, _, kept in assembly) >= sums, (tile, assembly)
        assert not any(stack for _, stack, _ in assembly), (tile, assembly)


@each_cpu
def test_no_chain_of_a_peak_is_optimised_away(judged, name):
    """Twelve chains that began alike were found to be one, and the peak was that of its latency."""
    for tile, (sums, found) in judged[name].items():
        if tile.startswith("roofline"):
            assert found == [7 * sums, 0, sums], (tile, found)


if __name__ == "__main__":
    report = {}
    for tile, (kernel, sums) in tiles().items():
        text = kernel.inspect_asm()
        if tile.startswith("roofline"):  # seven steps, without a loop
            lines = [line for line in text.splitlines() if MULTIPLY.search(line)]
            registers = {line.rpartition(",")[2].strip() for line in lines}
            report[tile] = sums, [len(lines), len(ON_STACK.findall(text)), len(registers)]
        else:
            report[tile] = sums, loops(text)
    print(json.dumps(report))
