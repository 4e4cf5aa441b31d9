"""The weights of recurrent networks as values of compiled code: what they say of a network is part of their type."""

from __future__ import annotations

from typing import Any

import numba
from numba import types
from numba.core import cgutils
from numba.extending import (
    NativeValue,
    make_attribute_wrapper,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from numbaprims import arrays
from numbaprims.recurrent.parts import ending
from numbaprims.recurrent.weights import RnnWeights


class Network(types.Type):
    """`RnnWeights` of NumPy arrays: (name, type) of each array that is there, and the arguments beside the parts."""

    def __init__(self, named: tuple[tuple[str, Any], ...], settings: tuple[Any, ...]) -> None:
        self.named, self.settings = named, settings
        self.arrays = types.Tuple([typ for _, typ in named])
        super().__init__(f"RnnWeights{(*settings, *named)}")


@register_model(Network)
class _Model(models.StructModel):
    def __init__(self, manager: Any, typ: Network) -> None:
        super().__init__(manager, typ, [("arrays", typ.arrays)])


make_attribute_wrapper(Network, "arrays", "arrays")


@typeof_impl.register(RnnWeights)
def _type_of(weights: RnnWeights, context: Any) -> Network | None:
    if weights.library is not arrays.NUMPY:
        return None
    named = tuple(
        (f"{field}_{ending(k, weights.directions)}", numba.typeof(array))
        for k, part in enumerate(weights.storages)
        for field, array in part._asdict().items()
        if array is not None
    )
    made = Network(named, (weights.cell, weights.directions, weights.reset_after, weights.skip_input))
    weights.__dict__["_numba_type_"] = made  # Numba looks there first
    return made


@unbox(Network)
def _unbox(typ: Network, weights: Any, c: Any) -> NativeValue:
    held = c.pyapi.object_getattr_string(weights, "arrays")
    found = c.unbox(typ.arrays, held)
    c.pyapi.decref(held)
    made = cgutils.create_struct_proxy(typ)(c.context, c.builder)
    made.arrays = found.value
    return NativeValue(made._getvalue(), is_error=found.is_error, cleanup=found.cleanup)
