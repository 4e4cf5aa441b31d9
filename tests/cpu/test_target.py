"""Facts about the CPU: features by name, widths, caches from sysfs, fingerprints."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from numbaprims.cpu import target

ROOT = Path(target.__file__).parents[2]
X86 = platform.machine().lower() in ("x86_64", "amd64")
only_x86 = pytest.mark.skipif(not X86, reason="names of x86 targets")

CHILD = """
import json
from numbaprims.cpu import target
t = target.current()
print(json.dumps({name: getattr(t, name) if name != "features" else sorted(t.features)
                  for name in (*t.__dataclass_fields__, "isa", "arch")}))
"""


def target_of(**variables: str) -> dict:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU_")}
    env = {**kept, **variables, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_target_of_this_machine():
    found = target.current()
    assert found is target.current()
    assert found.vector_bytes in (16, 32, 64)
    assert 4 << 10 <= found.l1d <= found.l2 and found.l3 >= 0
    assert 1 <= found.cores_physical <= found.cores_logical <= (os.cpu_count() or 1)
    assert found.triple.startswith(found.arch) and found.name in found.fingerprint
    with pytest.raises(FrozenInstanceError):
        found.l2 = 0


@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo") or not X86, reason="reads /proc/cpuinfo")
def test_features_are_those_that_the_kernel_reports():
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    found = target.current()
    if os.environ.get("NUMBA_CPU_NAME"):
        pytest.skip("another target was asked for")
    assert found.has_fma == ("fma" in flags)
    assert found.has_f16c == ("f16c" in flags)
    assert found.has_avx512vnni == ("avx512_vnni" in flags)
    assert found.has_avx512bf16 == ("avx512_bf16" in flags)
    assert found.has_avxvnni == ("avx_vnni" in flags)
    assert (found.vector_bytes == 64) == ({"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags)
    assert (found.vector_bytes >= 32) == ({"avx2", "fma"} <= flags)


@pytest.mark.skipif(not Path("/sys/devices/system/cpu/cpu0/cache").exists(), reason="reads sysfs")
def test_cache_sizes_are_those_of_sysconf():
    # sysconf asks the C library, which asks the CPU or the kernel by itself.
    found = target.current()
    for size, name in ((found.l1d, "SC_LEVEL1_DCACHE_SIZE"), (found.l2, "SC_LEVEL2_CACHE_SIZE")):
        if os.sysconf_names.get(name) and os.sysconf(name) > 0:
            assert size == os.sysconf(name)


@only_x86
@pytest.mark.parametrize(
    ("name", "isa", "width", "fma", "f16c"),
    [
        ("x86-64", "sse2", 16, False, False),
        ("x86-64-v2", "sse4", 16, False, False),
        ("x86-64-v3", "avx2", 32, True, True),
        ("x86-64-v4", "avx512", 64, True, True),
    ],
)
def test_portable_targets(name, isa, width, fma, f16c):
    found = target_of(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES="")
    assert (found["name"], found["isa"], found["vector_bytes"]) == (name, isa, width)
    assert (found["has_fma"], found["has_f16c"]) == (fma, f16c)
    assert not (found["has_avx512vnni"] or found["has_avx512bf16"] or found["has_avxvnni"])
    here = target.current()
    if name != here.name:
        assert found["fingerprint"] != here.fingerprint and found["family_fingerprint"] != here.family_fingerprint


@only_x86
def test_name_alone_keeps_the_hosts_features():
    found = target_of(NUMBA_CPU_NAME="x86-64-v3")
    assert found["vector_bytes"] == target_of()["vector_bytes"]


@only_x86
def test_listed_features_are_added_and_removed():
    found = target_of(NUMBA_CPU_NAME="x86-64-v4", NUMBA_CPU_FEATURES="+avx512vnni,-avx512vl,+avxvnni")
    assert found["vector_bytes"] == 32 and not found["has_avx512vnni"] and found["has_avxvnni"]


def llvm_for_x86():
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@only_x86
@pytest.mark.parametrize("name", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_table_of_names_agrees_with_llvm(name):
    """The width that our table claims is the widest that LLVM uses for that name."""
    llvm = llvm_for_x86()
    width = target._vector_bytes(target._features("x86_64", name, ""))
    lanes = 16  # 64 bytes of float
    ir = f"""
    define void @add(ptr %a, ptr %b) {{
      %x = load <{lanes} x float>, ptr %a
      %y = load <{lanes} x float>, ptr %b
      %z = fadd <{lanes} x float> %x, %y
      store <{lanes} x float> %z, ptr %a
      ret void
    }}"""
    triple = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = triple.create_target_machine(cpu=name, features="")
    assembly = machine.emit_assembly(llvm.parse_assembly(ir))
    widest = 64 if "%zmm" in assembly else 32 if "%ymm" in assembly else 16
    assert width == widest


PROBES = {
    "fma": """
        declare float @llvm.fma.f32(float, float, float)
        define float @f(float %x) {
          %y = call float @llvm.fma.f32(float %x, float %x, float %x)
          ret float %y
        }""",
    "f16c": """
        declare <8 x i16> @llvm.x86.vcvtps2ph.128(<4 x float>, i32)
        define <8 x i16> @f(<4 x float> %x) {
          %h = call <8 x i16> @llvm.x86.vcvtps2ph.128(<4 x float> %x, i32 0)
          ret <8 x i16> %h
        }""",
    "avx512vnni": """
        declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <64 x i8>, <64 x i8>)
        define <16 x i32> @f(<16 x i32> %c, <64 x i8> %a) {
          %d = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %c, <64 x i8> %a, <64 x i8> %a)
          ret <16 x i32> %d
        }""",
    "avx512bf16": """
        declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
        define <16 x float> @f(<16 x float> %c, <32 x bfloat> %a) {
          %d = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
              <16 x float> %c, <32 x bfloat> %a, <32 x bfloat> %a)
          ret <16 x float> %d
        }""",
}


@only_x86
@pytest.mark.parametrize("name", sorted(target._IMPLIED))
def test_every_name_implies_features_that_llvm_knows_for_it(name):
    """No name claims more than LLVM gives it: the intrinsics of its features become instructions."""
    llvm = llvm_for_x86()
    has = target._features("x86_64", name, "")
    mnemonics = {"fma": "vfmadd", "f16c": "vcvtps2ph", "avx512vnni": "vpdpbusd", "avx512bf16": "vdpbf16ps"}
    triple = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = triple.create_target_machine(cpu=name, features="")
    for feature, mnemonic in mnemonics.items():
        if feature in has:
            assert mnemonic in machine.emit_assembly(llvm.parse_assembly(PROBES[feature])), feature


def test_arm_and_unknown_machines():
    arm = target._features("aarch64", "apple-m1", "+dotprod,+bf16")
    assert {"neon", "dotprod", "bf16"} <= arm and target._vector_bytes(arm) == 16
    assert target._features("riscv64", "generic", "") == frozenset()
    assert target._features("x86_64", "not-a-cpu", "") == target._features("x86_64", "x86-64", "")
    cpu = target.CpuTarget(
        **{**vars_of(target.current()), "triple": "aarch64-apple-darwin", "features": arm, "vector_bytes": 16}
    )
    assert (cpu.arch, cpu.isa) == ("aarch64", "neon")


def vars_of(found: target.CpuTarget) -> dict:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


def sysfs(root: Path, caches: list[tuple[int, str, str]], siblings: dict[int, str]) -> None:
    for index, (level, kind, size) in enumerate(caches):
        folder = root / "cpu0" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", str(level)), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    for cpu, text in siblings.items():
        folder = root / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no sysfs")
def test_caches_and_cores_from_sysfs(tmp_path, monkeypatch):
    sysfs(
        tmp_path,
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "105M")],
        {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"},
    )
    monkeypatch.setattr(target, "_SYSFS_CPU", str(tmp_path))
    assert target._cache_sizes(0) == (48 << 10, 2 << 20, 105 << 20)
    assert target._physical([0, 1, 4, 5]) == 2 and target._physical([0, 1]) == 2 and target._physical([0, 4]) == 1


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no sysfs")
def test_caches_that_sysfs_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "_SYSFS_CPU", str(tmp_path))
    assert target._cache_sizes(0) == target._DEFAULT_CACHES
    assert target._physical([0, 1, 2]) == 3
    sysfs(tmp_path, [(1, "Data", "64K"), (2, "Unified", "1M"), (9, "Unified", "")], {})
    assert target._cache_sizes(0) == (64 << 10, 1 << 20, 0), "a CPU without an L3"


def test_caches_from_sysctl():
    apple = {
        "hw.perflevel0.l1dcachesize": 128 << 10,
        "hw.l1dcachesize": 64 << 10,
        "hw.perflevel0.l2cachesize": 12 << 20,
    }
    assert target._caches_macos(lambda name: apple.get(name, 0)) == {1: 128 << 10, 2: 12 << 20}
    intel = {"hw.l1dcachesize": 32 << 10, "hw.l2cachesize": 256 << 10, "hw.l3cachesize": 8 << 20}
    assert target._caches_macos(lambda name: intel.get(name, 0)) == {1: 32 << 10, 2: 256 << 10, 3: 8 << 20}
    assert target._caches_macos(lambda name: 0) == {}


def test_without_numbas_facts_the_least_is_assumed(monkeypatch):
    monkeypatch.setattr(target.kernel_cache, "codegen_facts", lambda: ("", "", ""))
    found = target.current.__wrapped__()
    assert found.vector_bytes == 16 and not found.has_avx512vnni
    assert found.arch == platform.machine().lower() and found.fingerprint
