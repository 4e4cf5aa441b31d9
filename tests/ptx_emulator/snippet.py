"""A few PTX instructions as a kernel: every thread loads its operands, runs them, stores the results. For tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .dtypes import NUMPY, Array
from .launch import launch

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"


def assemble(code: str, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """PTX of a kernel with pointers to inputs and outputs of these types; `code` names them %i0, %i1, ... %o0, ...

    Registers %t0 to %t9 of 32 bits, %u0 to %u9 of 64 bits, %h0 to %h9 of 16 bits and predicates %p0 to %p9 are free.
    """
    kinds = [*inputs, *outputs]
    names = [f"%i{n}" for n in range(len(inputs))] + [f"%o{n}" for n in range(len(outputs))]
    lines = [f".param .u64 k_param_{n}" for n in range(len(kinds))]
    body = [".reg .b32 %t<10>, %tid, %row; .reg .b64 %u<10>, %at, %step; .reg .pred %p<10>; .reg .b16 %h<10>;"]
    for name, kind in zip(names, kinds, strict=True):
        body.append(f".reg .{_register(kind)} {name};")
    body += ["mov.u32 %tid, %ctaid.x; mov.u32 %row, %ntid.x; mul.lo.u32 %tid, %tid, %row;"]
    body += ["mov.u32 %row, %tid.x; add.u32 %tid, %tid, %row;"]
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        size = np.dtype(NUMPY[kind]).itemsize
        place = f"ld.param.u64 %at, [k_param_{number}]; mul.wide.u32 %step, %tid, {size}; add.u64 %at, %at, %step;"
        if number == len(inputs):
            body.append(code)
        body.append(place)
        load = kind if kind[0] in "usf" and kind != "f16" else f"b{8 * size}"
        body.append(f"ld.global.{load} {name}, [%at];" if number < len(inputs) else f"st.global.{load} [%at], {name};")
    return f"{HEADER}.visible .entry k({', '.join(lines)})\n{{\n" + "\n".join(body) + "\nret;\n}\n"


def _register(kind: str) -> str:
    if kind in ("f32", "f64"):
        return kind
    return f"b{max(16, 8 * np.dtype(NUMPY[kind]).itemsize)}"


def run(code: str, inputs: Sequence[tuple[str, Any]], outputs: Sequence[str], **options: Any) -> list[Array]:
    """Run `code` on rows of values, one thread each; give the rows of outputs. The block has up to 256 threads."""
    arrays = [np.ascontiguousarray(np.asarray(values, NUMPY[kind])) for kind, values in inputs]
    count = len(arrays[0])
    threads = options.pop("threads", None) or (count if count <= 256 else 256)
    if count % threads:
        raise ValueError(f"{count} values are not whole blocks of {threads} threads")
    results = [np.zeros(count, NUMPY[kind]) for kind in outputs]
    ptx = assemble(code, [kind for kind, _ in inputs], outputs)
    launch(ptx, count // threads, threads, *arrays, *results, **options)
    return results
