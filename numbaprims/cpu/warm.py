"""What ``numbaprims warmup`` compiles: the drivers, and what each stem's ``warm_specs()`` names.

A spec is ``(path, arguments)``: the path ``"package.module:factory"`` of a factory of range kernels, and the
ints and strings it is called with. Both cross to another process, which compiles that kernel into the kernel
cache.
"""

from collections.abc import Iterable
from importlib import import_module
from time import perf_counter

from numbaprims.stems import ENGINES, STEMS

_DRIVERS = (
    ("numbaprims.cpu.drivers:serial_driver", ()),
    ("numbaprims.cpu.drivers:parallel_driver", ()),
    ("numbaprims.cpu.interpreter:make_interpreter", (True,)),
    ("numbaprims.cpu.interpreter:make_interpreter", (False,)),
    ("numbaprims.cpu.call_entry:make_entry", ()),
    ("numbaprims.cpu.known:known_result", ()),
    ("numbaprims.cpu.known:known_call", ()),
)

Spec = tuple[str, tuple]


def specs(stems: Iterable[str] = STEMS) -> list[Spec]:
    """Everything that the first calls of `stems` will want compiled, the drivers first.

    Raises ValueError for a stem that does not exist.
    """
    wanted: dict[Spec, None] = dict.fromkeys(_DRIVERS)
    for stem in stems:
        if stem not in STEMS:
            raise ValueError(f"stem {stem!r} is not one of {', '.join(STEMS)}")
        wanted.update(dict.fromkeys(import_module(f"numbaprims.cpu.{ENGINES.get(stem, stem)}").warm_specs()))
    return list(wanted)


def compile_spec(spec: Spec) -> float:
    """Compile (or load) what `spec` names; seconds it took."""
    path, arguments = spec
    module, factory = path.split(":")
    began = perf_counter()
    made = getattr(import_module(module), factory)(*arguments)
    for kernel in made if isinstance(made, tuple) else (made,):
        getattr(kernel, "address", None)  # a range kernel compiles when its address is asked for
    return perf_counter() - began
