"""`fuse(..., gradients=True)`: stacks of a module with autograd, from the module's own parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

import numbaprims
from numbaprims.arrays import NUMPY, dtype_name
from numbaprims.dtypes import FLOATS
from numbaprims.frontends.torch.fuse_graph import only_tensor
from numbaprims.frontends.torch.modules import hooked
from numbaprims.frontends.torch.recording import Recorded, differentiable
from numbaprims.fusion.depthwise import operations_of
from numbaprims.fusion.layers import Conv
from numbaprims.fusion.place import Place
from numbaprims.ops._stack_backward import Operation, differentiable as with_gradient

nn = torch.nn

#: The layer of `numbaprims.fusion.layers` that a module is for inputs of so many dimensions, or None.
Describe = Callable[[Any, int], Any]


class _Stack(Recorded):
    """A stack: of x, parameters (C, numbers) or None, the operations, and the parameters that need a gradient."""

    @staticmethod
    def forward(x: Any, parameters: Any, operations: tuple[Operation, ...], wanted: tuple[int, ...]) -> Any:
        return numbaprims.stack(x, operations, parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, parameters, ctx.operations, ctx.wanted = inputs
        ctx.save_for_backward(x, parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        x, parameters = ctx.saved_tensors
        found = numbaprims.stack_backward(dy, x, ctx.operations, parameters, of_parameters=ctx.wanted)
        if not ctx.wanted:
            return found, None, None, None
        dx, given = found
        dparameters = parameters.new_zeros(parameters.shape)
        dparameters[:, list(ctx.wanted)] = given
        return dx, dparameters, None, None


@differentiable(numbaprims.stack)
def _stack(*given: Any) -> Any:
    return _Stack.apply(*given)


class _Run:
    """Consecutive modules that are one stack."""

    def __init__(self) -> None:
        self.operations: tuple[Operation, ...] = ()
        self.columns: list[tuple[Callable[[], Any], int, bool]] = []
        """What gives parameters, how many, and whether they may need a gradient."""

    def append(self, module: Any, operations: Sequence[tuple[Operation, Sequence[Any]]]) -> None:
        """A module that is an operation, or a depthwise convolution and its bias."""
        self.operations += tuple(operation for operation, _ in operations)
        if isinstance(module, nn.Conv2d):
            self.columns.append((lambda: module.weight, operations[0][0].numbers, True))
            if module.bias is not None:
                self.columns.append((lambda: module.bias, 1, True))
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            norm: Any = module

            def factor() -> Any:
                inverse = torch.rsqrt(norm.running_var + norm.eps)
                return inverse if norm.weight is None else norm.weight * inverse

            def shift() -> Any:
                return torch.zeros_like(norm.running_mean) if norm.bias is None else norm.bias

            self.columns += [(lambda: norm.running_mean, 1, False), (factor, 1, True), (shift, 1, True)]
        elif isinstance(module, nn.PReLU):
            self.columns.append((lambda: module.weight, 1, True))
        else:
            constants = (value for _, values in operations for value in values)
            self.columns += [(functools.partial(torch.tensor, value), 1, False) for value in constants]

    def __call__(self, x: Any) -> Any:
        image = x if x.ndim == 4 else x.reshape(*x.shape[:2], 1, -1)
        c, kind = x.shape[1], torch.float64 if x.dtype == torch.float64 else torch.float32
        found, asked = list[Any](), list[bool]()
        for make, count, may in self.columns:
            each = make().to(device=x.device, dtype=kind)
            found.append(each.reshape(-1, count).expand(c, count))
            asked += [may and each.requires_grad and torch.is_grad_enabled()] * count
        wanted = tuple(k for k in with_gradient(self.operations) if asked[k])
        y = _stack(image, torch.cat(found, 1) if found else None, self.operations, wanted)
        return y.reshape(x.shape) if x.ndim != 4 else y


def _leaves(module: Any) -> Iterator[Any]:
    """Modules one after another."""
    if type(module) is nn.Sequential and not hooked(module):
        for each in module:
            yield from _leaves(each)
    else:
        yield module


def _operations(module: Any, layer: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """What a module is in a stack, as (operation, parameters); None where it stays as it is."""
    if layer is None or (module.training and isinstance(module, nn.modules.batchnorm._BatchNorm)):
        return None  # it takes the statistics of the batch
    place = Place(dtype, NUMPY, "NCHW")
    if type(layer) is Conv:
        return operations_of(layer, shape, place)
    found = layer.operation(shape, place)
    return None if isinstance(found, str) else [found]


class Trained(torch.nn.Module):
    """A module whose stacks run depth first, forwards and backwards; `module` is the one that it was made of.

    A batch norm in training mode and whatever else is no operation of a stack is called as it is.
    """

    def __init__(self, module: Any, example: Any, describe: Describe) -> None:
        super().__init__()
        self.module = module
        self._shape, self._dtype, self._describe = tuple(example.shape), example.dtype, describe
        self._plans: dict[tuple[tuple[bool, bool], ...], list[Any]] = {}
        self.calls()

    @property
    def modes(self) -> tuple[tuple[bool, bool], ...]:
        """Of each module, whether it trains and whether it has hooks, as pruning gives it some in between."""
        return tuple((each.training, hooked(each)) for each in _leaves(self.module))

    def calls(self) -> list[Any]:
        """What is called one after another, in the modes that the modules are in: stacks, and modules."""
        modes = self.modes
        found = self._plans.get(modes)
        if found is not None:
            return found
        found = self._plans[modes] = []
        dtype = dtype_name(self._dtype, "dtype")
        leaves = list(_leaves(self.module))
        trained = [(each, each.training) for each in self.module.modules()]
        try:
            self.module.eval()  # else statistics would move
            with torch.no_grad():
                x = torch.zeros(self._shape, dtype=self._dtype, device=next(self._tensors(), torch.empty(0)).device)
                shapes = [x.shape, *((x := only_tensor(each(x), each)).shape for each in leaves)]
        finally:
            for each, mode in trained:
                each.training = mode
        for each, shape in zip(leaves, shapes, strict=False):
            layer = self._describe(each, len(shape))
            if isinstance(layer, list):  # several, of which none is an operation of a stack
                layer = None
            if layer is not None and layer.passes:
                if not each.training or not getattr(each, "p", 0):
                    continue
                layer = None  # it drops
            operations = _operations(each, layer, tuple(shape), dtype) if dtype in FLOATS else None
            if operations is None:
                found.append(each)
                continue
            if not (found and isinstance(found[-1], _Run)):
                found.append(_Run())
            found[-1].append(each, operations)
        return found

    def _tensors(self) -> Iterator[Any]:
        yield from self.module.parameters()
        yield from self.module.buffers()

    def forward(self, x: Any) -> Any:
        for each in self.calls():
            x = each(x)
        return x

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}

    def extra_repr(self) -> str:
        stacks = [len(each.operations) for each in self.calls() if isinstance(each, _Run)]
        return f"stacks of operations: {stacks}"
