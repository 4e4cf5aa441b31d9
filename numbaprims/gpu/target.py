"""What a GPU is, as numbers: what estimates and launchers depend on."""

from __future__ import annotations

import dataclasses

KIB = 1024

# Fused multiply-adds a clock and multiprocessor, (f32, f64, f16/bf16 on tensor cores, tf32, int8), by compute
# capability: CUDA programming guide, arithmetic throughput; tensor cores from the architectures' white papers.
_FMA_A_CLOCK = {
    (7, 5): (64, 2, 512, 0, 1024),
    (8, 0): (64, 32, 1024, 512, 2048),
    (8, 6): (128, 2, 512, 128, 1024),
    (8, 9): (128, 2, 512, 128, 1024),
    (9, 0): (128, 64, 2048, 1024, 4096),
    (10, 0): (128, 64, 4096, 2048, 8192),
    (12, 0): (128, 2, 512, 128, 1024),
}
# Threads and blocks that a multiprocessor holds, by compute capability.
_RESIDENT = {(7, 5): (1024, 16), (8, 0): (2048, 32), (8, 6): (1536, 16), (8, 9): (1536, 24), (12, 0): (1536, 24)}


@dataclasses.dataclass(frozen=True)
class GpuTarget:
    """One GPU.  Bytes, seconds and their quotients throughout."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    clock: float
    """Hz, the boost clock."""
    bandwidth: float
    """Bytes a second between the memory and the chip, by formula: twice the memory clock times the width of the bus."""
    l2: int
    memory: int
    shared_per_block: int
    """The most that one block may ask for (dynamic, opted in)."""
    shared_per_multiprocessor: int
    registers: int = 65536
    """Of one multiprocessor, 32 bits each."""
    warp: int = 32

    @property
    def arch(self) -> str:
        """What kernels are compiled for: "sm_80", "sm_90a".  From 9.0 on with the features of this architecture alone
        (wgmma, TMA), which is what the suffix means."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    def _rate(self, index: int) -> float:
        known = max((cc for cc in _FMA_A_CLOCK if cc <= self.capability), default=(7, 5))
        return 2.0 * _FMA_A_CLOCK[known][index] * self.multiprocessors * self.clock

    def peak(self, dtype: str, *, tf32: bool = False) -> float:
        """Operations a second by formula; f16, bf16, i8 and, where asked for, tf32 on tensor cores."""
        if dtype == "f32":
            return (tf32 and self._rate(3)) or self._rate(0)
        return self._rate({"f64": 1, "f16": 2, "bf16": 2, "i8": 4, "u8": 4, "i32": 0}[dtype])

    @property
    def resident_threads(self) -> int:
        """Threads that one multiprocessor holds."""
        return _RESIDENT.get(self.capability, (2048, 32))[0]

    @property
    def resident_blocks(self) -> int:
        """Blocks that one multiprocessor holds."""
        return _RESIDENT.get(self.capability, (2048, 32))[1]

    def blocks_per_multiprocessor(self, threads: int, registers: int, shared: int) -> int:
        """How many blocks of a kernel one multiprocessor holds at a time.

        A warp's registers are given out in units of 256, the shared memory of a block is 1 KiB more than it asks for.

        >>> H200.blocks_per_multiprocessor(256, 64, 0)
        4
        """
        warps = -(-threads // self.warp)
        per_warp = -(-registers * self.warp // 256) * 256
        by_registers = self.registers // per_warp // warps if per_warp else self.resident_blocks
        by_shared = self.shared_per_multiprocessor // (shared + KIB)
        by_threads = self.resident_threads // (warps * self.warp)
        return max(0, min(by_registers, by_shared, by_threads, self.resident_blocks))

    def occupancy(self, threads: int, registers: int, shared: int) -> float:
        """The part of the threads that a multiprocessor can hold which this kernel fills."""
        return self.blocks_per_multiprocessor(threads, registers, shared) * threads / self.resident_threads

    def fingerprint(self) -> str:
        """What measured times are kept under."""
        return f"{self.name}-{self.arch}-{self.multiprocessors}"


A100 = GpuTarget("A100", (8, 0), 108, 1.41e9, 1.555e12, 40 << 20, 40 << 30, 163 * KIB, 164 * KIB)
H100 = GpuTarget("H100", (9, 0), 132, 1.98e9, 3.35e12, 50 << 20, 80 << 30, 227 * KIB, 228 * KIB)
H200 = GpuTarget("H200", (9, 0), 132, 1.98e9, 4.8e12, 50 << 20, 141 << 30, 227 * KIB, 228 * KIB)
#: What kernels are compiled and checked for where there is no GPU.
KNOWN = {"sm_80": A100, "sm_90a": H200}
