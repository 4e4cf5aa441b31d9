"""Facts about the CPU that kernels are compiled for: instruction sets, vector width, cache sizes, cores.

They follow Numba's own target, so NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are honoured: a name alone changes
the tuning but keeps the features of the host; both together make a portable target (``x86-64-v3`` and an
empty string: AVX2). Block sizes and choices that follow from these facts are the business of the kernels.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

from numbaprims import kernel_cache, settings
from numbaprims.cpu.rates import CpuRates, profile

__all__ = ["CpuTarget", "current"]


@dataclass(frozen=True)
class CpuTarget:
    """The CPU that kernels are compiled for. Sizes are in bytes.

    Attributes
    ----------
    name, triple, features
        LLVM's CPU name, its target triple, and the features that code may use.
    vector_bytes
        Width of the widest useful register: 64 (AVX-512), 32 (AVX2) or 16 (SSE, NEON).
    l1d, l2, l3
        Cache sizes, data and unified, as one core sees them. `l3` is 0 where there is none.
    cores_physical, cores_logical
        What this process may run on, its affinity considered.
    fingerprint, family_fingerprint
        Keys of stored measurements: of exactly this CPU; of its family, instruction set and L2 size.
    measured
        What `numbaprims calibrate` found on exactly this CPU, if it is to count (`dispatch.registry.target`).
    """

    name: str
    triple: str
    features: frozenset[str]
    vector_bytes: int
    has_fma: bool
    has_f16c: bool
    has_avx512vnni: bool
    has_avxvnni: bool
    has_avx512bf16: bool
    l1d: int
    l2: int
    l3: int
    cores_physical: int
    cores_logical: int
    model: str
    fingerprint: str
    family_fingerprint: str
    measured: CpuRates | None = None

    @property
    def rates(self) -> CpuRates:
        """What one core does in a second: as measured here, or by the profile of its family."""
        return self.measured or profile(self.microarchitecture, self.isa, self.vector_bytes, self.l3)

    @property
    def microarchitecture(self) -> str:
        """What the core is, by LLVM's names: `name`, unless it has instructions that no such core has.

        LLVM goes by the model number, and a hypervisor may give another's: a Granite Rapids, with AMX and 480 MiB of
        third level, called itself 6/167, which is a Rocket Lake.
        """
        if "avx512fp16" not in self.features or not self.name.endswith("lake"):
            return self.name
        return "graniterapids" if "prefetchi" in self.features else "sapphirerapids"

    @property
    def third(self) -> float:
        """Bytes of the third-level cache that a core may count on."""
        return self.rates.third(self.l3)

    @property
    def kept(self) -> float:
        """Bytes that are still in the caches when what a call has written is read: of one core's share on one thread.

        It decides how results are stored, never by what they are computed: no bit may depend on the number of threads.
        """
        return self.third * (self.rates.single if self.alone else 1.0)

    @property
    def alone(self) -> bool:
        """Whether one thread does all."""
        return self.cores_logical == 1 or settings.current().threads == 1

    def bandwidth(self, nbytes: float) -> float:
        """Bytes a second that one core moves to and from where so many bytes of operands lie."""
        rates = self.rates
        if nbytes <= self.l2:
            return rates.l1 if nbytes <= self.l1d else rates.l2
        return rates.l3 if nbytes <= self.third else rates.memory

    @property
    def arch(self) -> str:
        """The first part of the triple: "x86_64", "aarch64", "arm64"."""
        return self.triple.partition("-")[0]

    @property
    def isa(self) -> str:
        """The vector instruction set in one word: avx512, avx2, sse4, sse2, neon or scalar."""
        if _is_x86(self.arch):
            if self.vector_bytes == 64:
                return "avx512"
            if self.vector_bytes == 32:
                return "avx2"
            return "sse4" if "sse4.2" in self.features else "sse2"
        return "neon" if "neon" in self.features else "scalar"


# ---------------------------------------------------------------------------------------------- features
_V1 = "64bit cmov cx8 fxsr mmx sse sse2 x87"
_V2 = f"{_V1} cx16 crc32 popcnt sahf sse3 sse4.1 sse4.2 ssse3"
_V3 = f"{_V2} avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl evex512"
_ZEN4 = f"{_V4} avx512vnni avx512bf16 avx512ifma avx512vbmi avx512vbmi2 avx512bitalg avx512vpopcntdq"
_ICELAKE = f"{_V4} avx512vnni avx512ifma avx512vbmi avx512vbmi2 avx512bitalg avx512vpopcntdq"

# What a CPU name implies in LLVM, as far as our kernels ask for it. A name that is not here implies the
# base of its architecture, which is less than it has: slower code, never an illegal instruction.
_IMPLIED: dict[str, str] = {
    "x86-64": _V1,
    "x86-64-v2": _V2,
    "nehalem": _V2,
    "westmere": _V2,
    "sandybridge": f"{_V2} avx xsave",
    "ivybridge": f"{_V2} avx f16c xsave",
    "x86-64-v3": _V3,
    "haswell": _V3,
    "broadwell": _V3,
    "skylake": _V3,
    "znver1": _V3,
    "znver2": _V3,
    "znver3": _V3,
    "alderlake": f"{_V3} avxvnni",
    "arrowlake": f"{_V3} avxvnni avxvnniint8",
    "arrowlake-s": f"{_V3} avxvnni avxvnniint8",
    "lunarlake": f"{_V3} avxvnni avxvnniint8",
    "sierraforest": f"{_V3} avxvnni avxvnniint8",
    "x86-64-v4": _V4,
    "skylake-avx512": _V4,
    "cascadelake": f"{_V4} avx512vnni",
    "cooperlake": f"{_V4} avx512vnni avx512bf16",
    "icelake-client": _ICELAKE,
    "icelake-server": _ICELAKE,
    "rocketlake": _ICELAKE,
    "sapphirerapids": f"{_ICELAKE} avx512bf16 avx512fp16 avxvnni amx-tile amx-int8 amx-bf16",
    "graniterapids": f"{_ICELAKE} avx512bf16 avx512fp16 avxvnni amx-tile amx-int8 amx-bf16 amx-fp16",
    "znver4": _ZEN4,
    "znver5": f"{_ZEN4} avxvnni",
}


def _is_x86(arch: str) -> bool:
    return arch in ("x86_64", "amd64", "i386", "i686")


def _features(arch: str, name: str, listed: str) -> frozenset[str]:
    """What code may use: what the CPU's name implies, then the listed `+feature` and `-feature` in order."""
    if _is_x86(arch):
        found = set(_IMPLIED.get(name, _V1).split())
    elif arch in ("aarch64", "arm64"):
        found = {"neon", "fp-armv8"}
    else:
        found = set()
    for word in listed.replace(" ", "").split(","):
        if word.startswith("+"):
            found.add(word[1:])
        elif word.startswith("-"):
            found.discard(word[1:])
    return frozenset(found)


def _vector_bytes(features: frozenset[str]) -> int:
    # 512-bit kernels use byte, word and masked 256-bit operations too; all CPUs with AVX-512F that matter
    # have these.
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= features:
        return 64
    return 32 if {"avx2", "fma"} <= features else 16


# ------------------------------------------------------------------------------------------------ caches
_DEFAULT_CACHES = (32 << 10, 512 << 10, 8 << 20)  # small enough for every CPU that has AVX2
_SYSFS_CPU = "/sys/devices/system/cpu"


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _bytes(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text.rstrip("KMGkmg")
    return int(digits) * factor if digits.isdecimal() else 0


def _available() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return list(range(os.cpu_count() or 1))


def _caches_linux(cpu: int) -> dict[int, int]:
    """{level: bytes} of data and unified caches from sysfs; levels that it doesn't tell are left out."""
    sizes: dict[int, int] = {}
    for index in range(8):
        folder = f"{_SYSFS_CPU}/cpu{cpu}/cache/index{index}"
        if _read(f"{folder}/type") in ("Data", "Unified") and (found := _bytes(_read(f"{folder}/size"))):
            sizes[int(_read(f"{folder}/level") or 0)] = found
    return sizes


def _sysctl(name: str) -> int:
    """One number of macOS's sysctl, 0 if it has none."""
    import ctypes

    value, length = ctypes.c_int64(0), ctypes.c_size_t(8)
    try:
        call = ctypes.CDLL(None).sysctlbyname
        failed = call(name.encode(), ctypes.byref(value), ctypes.byref(length), None, 0)
    except (AttributeError, OSError):
        return 0
    return 0 if failed else int(value.value)


def _caches_macos(read: Callable[[str], int] = _sysctl) -> dict[int, int]:
    # perflevel0 are the fast cores; the plain names describe the slow ones on Apple's own chips.
    sizes = {
        1: read("hw.perflevel0.l1dcachesize") or read("hw.l1dcachesize"),
        2: read("hw.perflevel0.l2cachesize") or read("hw.l2cachesize"),
        3: read("hw.l3cachesize"),
    }
    return {level: size for level, size in sizes.items() if size}


def _cache_sizes(cpu: int) -> tuple[int, int, int]:
    found = _caches_macos() if sys.platform == "darwin" else _caches_linux(cpu)
    l1, l2, l3 = _DEFAULT_CACHES
    known = 2 in found  # a CPU that tells its L2 and no L3 has none
    return found.get(1, l1), found.get(2, l2), found.get(3, 0 if known else l3)


def _physical(cpus: list[int]) -> int:
    siblings = {_read(f"{_SYSFS_CPU}/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    if sys.platform == "darwin":
        return _sysctl("hw.physicalcpu") or len(cpus)
    return len(siblings)


def _model() -> str:
    """What the vendor calls the CPU, with family, model and stepping where Linux tells them."""
    wanted = [
        *("vendor_id", "model name", "cpu family", "model", "stepping"),  # x86
        *("CPU implementer", "CPU part", "CPU variant"),  # Arm
    ]
    found: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            found[name.strip()] = value.strip()
    told = " ".join(found[name] for name in wanted if found.get(name))
    return told or platform.processor() or platform.machine()


@functools.cache
def current() -> CpuTarget:
    """The target of this process, found once."""
    triple, name, listed = kernel_cache.codegen_facts()
    # this Numba may not tell; what every CPU of the architecture has is then assumed
    return described(triple or f"{platform.machine().lower()}-unknown-{sys.platform}", name, listed)


@functools.cache
def tiles_granted() -> bool:
    """Whether the system lets this process use AMX's tiles, which it is asked the first time.

    Linux keeps 8 KiB of them for each thread, and only for processes that want them; a process that was forked after
    the asking has the permission too, one that was executed asks for itself.  Refused, as where an alternate signal
    stack is too small for the tiles, an instruction of theirs would end the process.
    """
    if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    import ctypes

    # asm/prctl.h: arch_prctl, ARCH_REQ_XCOMP_PERM, the state component of tile data
    try:
        return bool(ctypes.CDLL(None).syscall(158, 0x1023, ctypes.c_ulong(18)) == 0)
    except (AttributeError, OSError):
        return False


def described(triple: str, name: str, listed: str = "") -> CpuTarget:
    """The target of LLVM's names, with the caches and cores of this machine."""
    arch = triple.partition("-")[0]
    features = _features(arch, name, listed)
    cpus = _available()
    l1d, l2, l3 = _cache_sizes(cpus[0])
    model = _model()
    width = _vector_bytes(features)
    exact = (triple, name, sorted(features), model, l1d, l2, l3)
    digest = hashlib.sha256(repr(exact).encode()).hexdigest()[:12]
    dots = [
        word
        for word in (
            "avx512vnni",
            "avxvnni",
            "avxvnniint8",
            "avx512bf16",
            "dotprod",
            "bf16",
            "amx-int8",
            "amx-bf16",
            "amx-fp16",
        )
        if word in features
    ]
    return CpuTarget(
        name=name or arch,
        triple=triple,
        features=features,
        vector_bytes=width,
        has_fma="fma" in features or arch in ("aarch64", "arm64"),
        has_f16c="f16c" in features or arch in ("aarch64", "arm64"),
        has_avx512vnni="avx512vnni" in features and width == 64,
        has_avxvnni="avxvnni" in features and width >= 32,
        has_avx512bf16="avx512bf16" in features and width == 64,
        l1d=l1d,
        l2=l2,
        l3=l3,
        cores_physical=_physical(cpus),
        cores_logical=len(cpus),
        model=model,
        fingerprint=f"{name or arch}-{digest}",
        family_fingerprint="-".join([arch, name or arch, f"v{8 * width}", *dots, f"l2_{l2 >> 10}K"]),
    )
