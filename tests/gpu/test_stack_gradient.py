"""Gradients of stacks on a GPU, in the emulator, against the definition."""

import numpy as np
import pytest
from gpu.test_stack import ADD, AFFINE, BIAS, BLOCK, NORM, RELU, SCALE, Array, window
from helpers import assert_near, from_float64, to_float64

from numbaprims.device_views import DeviceView
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.stack import SOLVERS
from numbaprims.gpu.target import H200
from numbaprims.ops._stack_backward import differentiable
from numbaprims.ops._stack_problem import GRADIENTS, StackProblem
from numbaprims.ops.stack import added_sizes
from numbaprims.reference import stack as reference
from numbaprims.stacks.operations import Pointwise, sizes_of, steps_of

SOLVER = {solver.name: solver for solver in SOLVERS}
PRELU, SILU = Pointwise("prelu", 1), Pointwise("silu")

CASES = {
    "elements": ((NORM, RELU, PRELU, SCALE, BIAS, AFFINE), "f32", (3, 4, 5, 9), "channels_first"),
    "residual": ((NORM, ADD, RELU, ADD), "f16", (2, 8, 5, 4), "channels_last"),
    "blocks": (2 * BLOCK, "f32", (2, 3, 9, 11), "channels_first"),
    "pixels": ((SILU, *BLOCK, window("avg", 2, 2)), "f32", (1, 6, 8, 10), "channels_last"),
    "strided": ((*BLOCK, ADD), "bf16", (1, 3, 7, 9), "strided"),
    "depthwise": ((window("depthwise", 3, 1, 1), BIAS, RELU, window("depthwise", 3, 2, 1), NORM), "f32", (2, 3, 7, 9),
                  "channels_first"),
    "depthwise pixels": ((SCALE, window("depthwise", 2, 1, 1), PRELU), "f16", (2, 5, 6, 5), "channels_last"),
    "f64": ((window("avg", 3, 2, 1, ceil=True, count_include_pad=False), PRELU, window("max", 2)), "f64",
            (1, 2, 9, 8), "channels_first"),
}  # fmt: skip


def flat(storage):
    """(memory of the emulated GPU, the view of it that a launch takes)"""
    memory = to_device(np.ascontiguousarray(storage))
    view = DeviceView(memory.pointer, memory.shape, storage.strides, storage.dtype, memory.numbaprims_library)
    return memory, view


@pytest.mark.parametrize("solver", ["tasks", "naive"])
@pytest.mark.parametrize("name", CASES)
def test_the_definition(gpu, name, solver):
    operations, dtype, shape, layout = CASES[name]
    rng, (n, c, h, w) = np.random.default_rng(7), shape
    accumulate, one = DTYPES[dtype].accumulate, SOLVER[solver]
    sizes = sizes_of(steps_of(operations), (h, w))
    numbers = sum(each.numbers for each in operations)
    wanted = differentiable(operations)
    images = {"dy": from_float64(rng.standard_normal((n, c, *sizes[-1])), dtype)}
    images["x"] = from_float64(rng.standard_normal(shape), dtype)
    added = [from_float64(rng.standard_normal((n, c, *size)), dtype) for size in added_sizes(operations, (h, w))]
    images |= {f"added{k}": each for k, each in enumerate(added)}
    images["dx"] = from_float64(np.full(shape, 77.0), dtype)
    images |= {f"dadded{k}": from_float64(np.full(each.shape, 77.0), dtype) for k, each in enumerate(added)}
    arrays = {key: Array(each, layout) for key, each in images.items()}
    parameters = from_float64(rng.uniform(0.3, 1.5, (c, max(1, numbers))), accumulate)
    given = {
        "parameters": flat(parameters),
        "dparameters": flat(np.full((c, max(1, len(wanted))), 77, parameters.dtype)),
    }
    strides = {key: each.elements for key, each in arrays.items()}
    if numbers:
        strides |= {"parameters": (numbers, 1), "dparameters": (len(wanted), 1)}
    problem = StackProblem(
        dtype, n, c, (h, w), tuple(step.text for step in steps_of(operations)), layout, direction="backward",
        of_parameters=wanted, of_added=tuple(range(len(added))), strides=tuple(map(strides.get, GRADIENTS)),
    )  # fmt: skip
    assert one.why_not(problem, H200) is None
    views = [None if key not in strides else given[key][1] if key in given else arrays[key].view for key in GRADIENTS]
    one.bind(problem, H200, next(iter(one.configs(problem, H200))))(*views[:7], more=views[7:])
    wide = {key: to_float64(each, dtype) for key, each in images.items()}
    more = [wide[f"added{k}"] for k in range(len(added))]
    own = to_float64(parameters, accumulate) if numbers else None
    dx, found, arrived = reference.stack_backward(operations, wide["dy"], wide["x"], own, more)
    checked = [("dx", dx), *((f"dadded{k}", each) for k, each in enumerate(arrived))]
    for key, want in checked:
        assert_near(arrays[key].to_host(), want, dtype, problem.roundings(), np.abs(want).max())
    if numbers:
        want = np.stack([found[k] for k in wanted], 1)
        assert_near(given["dparameters"][0].to_host(), want, accumulate, problem.roundings(), np.abs(want).max())
