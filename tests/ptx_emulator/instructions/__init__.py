"""What each PTX instruction does; importing this registers all of them with `translate`."""

from . import (  # noqa: F401
    asynchronous,
    atomics,
    bits,
    bulk,
    convert,
    floating,
    fused,
    integer,
    memory,
    moves,
    tensor,
    warp,
    wgmma,
)
