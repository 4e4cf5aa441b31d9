"""Matrix product: `gemm`, `linear`, and the plan that keeps B packed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numbaprims.ops._gemm_pose import GEMM, LINEAR
from numbaprims.ops._gemm_problem import example_call
from numbaprims.ops.epilogue import fused
from numbaprims.ops.plans import with_plan
from numbaprims.ops.primitive import problems
from numbaprims.ops.product import factors

_run = GEMM.run

if TYPE_CHECKING:
    from numbaprims.ops.gemm_plan import plan as _plan
else:

    def _plan(b: Any, **arguments: Any) -> Any:
        from numbaprims.ops import gemm_plan

        return gemm_plan.plan(b, **arguments)


@with_plan(_plan)
def gemm(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: Any = None,
    activation: Any = None,
    out: Any = None,
    out_dtype: Any = None,
) -> Any:
    """Multiply matrices: ``out = activation(alpha * op(a) @ op(b) + beta * c + bias)``.

    Args:
        a: (..., M, K), or (..., K, M) with `trans_a`; any strides, read without a copy.
        b: (..., K, N), or (..., N, K) with `trans_b`; leading dimensions broadcast against those of `a`.
        c: broadcastable to (..., M, N); needed when `beta` is not 0, not read when it is.
        alpha: factor of the product.
        beta: factor of `c`.
        trans_a: read the last two dimensions of `a` swapped.
        trans_b: the same for `b`.
        bias: (N,) or (1, N), one value a column; or (M, 1), one value a row.
        activation: None, the name of a kind ("relu"), or a pair of a name and its parameters
            (``("leaky_relu", {"negative_slope": 0.1})``); see `numbaprims.activation`.
        out: where the result goes; it may be exactly `c`, and otherwise share no memory with the inputs.
        out_dtype: dtype of the result; by default that of the inputs, int32 for int8 products.

    Returns:
        (..., M, N) of the caller's library. float64, float32, float16 and bfloat16 inputs (the last two are summed
        in float32), int8 x int8 and uint8 x int8 (summed exactly in int32, alpha 1 and beta 0 or 1).

    Raises:
        TypeError: mixed libraries or dtypes, unknown dtypes.
        ValueError: shapes that do not fit, `beta` without `c`, an `out` that overlaps an input.

    Example:
        >>> import numpy as np, numbaprims
        >>> a = np.ones((2, 3), np.float32)
        >>> numbaprims.gemm(a, a, trans_b=True)
        array([[3., 3.],
               [3., 3.]], dtype=float32)

    References:
        Goto and van de Geijn, Anatomy of high-performance matrix multiplication, TOMS 34(3), 2008.
    """
    if type(alpha) is not float or type(beta) is not float or beta != 0.0:
        alpha, beta, c = factors(alpha, beta, c, "c")
    if beta == 0.0:
        c = None  # as in BLAS: it is not read
        if bias is None and activation is None:  # 0.25 us less
            options = (trans_a, trans_b, alpha == 1.0, True, "identity", out_dtype)
            return _run((a, b, None, None), options, (alpha, beta, 0.0), out)
    word, values = fused(activation)
    options = trans_a, trans_b, alpha == 1.0, beta in (0.0, 1.0), word, out_dtype
    return _run((a, b, c, bias), options, (alpha, beta, *values), out)


def linear(x: Any, weight: Any, bias: Any = None, *, activation: Any = None, out: Any = None) -> Any:
    """Apply a dense layer: ``out = activation(x @ weight.T + bias)``.

    Args:
        x: (..., K).
        weight: (N, K), as in `torch.nn.functional.linear`.
        bias: (N,) or None.
        activation: as in `gemm`.
        out: (..., N), where the result goes.

    Returns:
        (..., N), same library and dtype as `x`.

    Raises:
        TypeError, ValueError: as `gemm`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.linear(np.ones((2, 3), np.float32), np.ones((1, 3), np.float32))
        array([[3.],
               [3.]], dtype=float32)
    """
    word, values = fused(activation)
    options, numbers = (False, True, True, True, word, None), (1.0, 0.0, *values)
    if getattr(x, "ndim", 2) != 1:
        return LINEAR.run((x, weight, None, bias), options, numbers, out)
    # a vector is a row
    result = LINEAR.run((x[None, :], weight, None, bias), options, numbers, None if out is None else out[None, :])
    return result[0] if out is None else out


PROBLEMS = problems(gemm, linear)
EXAMPLES = {"gemm": example_call}
