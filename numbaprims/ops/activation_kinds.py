"""The one table of activation kinds: names, formulas, gradients, parameters and their defaults.

Names and defaults are those of torch.nn.functional; `power` and `clipped_relu` are MIOpen's. This module
imports nothing, so that the kernels, the epilogues, the reference and the documentation can all read it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946
#: The default of a parameter that has none.
REQUIRED = None


class Kind(NamedTuple):
    """One kind: y = `formula`, dx = `gradient`.

    `parameters` maps each parameter to its default, in the order of the positional arguments. `reads` names
    what the gradient needs beside dy: "x", "y", or "" for nothing.
    """

    formula: str
    gradient: str
    reads: str = "x"
    parameters: dict[str, Any] = {}  # noqa: RUF012


KINDS: dict[str, Kind] = {
    "identity": Kind("x", "dy", ""),
    "relu": Kind("max(x, 0)", "dy if y > 0 else 0", "y"),
    "leaky_relu": Kind(
        "x if x > 0 else negative_slope*x",
        "dy if x > 0 else negative_slope*dy",
        "x",
        {"negative_slope": 0.01},
    ),
    "prelu": Kind(
        "x if x > 0 else weight*x",
        "dy if x > 0 else weight*dy; dweight = sum(0 if x > 0 else x*dy)",
        "x",
        {"weight": REQUIRED},
    ),
    "clipped_relu": Kind("min(max(x, 0), alpha)", "dy if 0 < x < alpha else 0", "x", {"alpha": 6.0}),
    "elu": Kind("x if x > 0 else alpha*(exp(x) - 1)", "dy if x > 0 else dy*alpha*exp(x)", "x", {"alpha": 1.0}),
    "selu": Kind(
        "scale*(x if x > 0 else alpha*(exp(x) - 1)), scale 1.0507, alpha 1.6733",
        "dy*scale*(1 if x > 0 else alpha*exp(x))",
    ),
    "celu": Kind(
        "max(x, 0) + min(0, alpha*(exp(x/alpha) - 1))",
        "dy if x > 0 else dy*exp(x/alpha)",
        "x",
        {"alpha": 1.0},
    ),
    "sigmoid": Kind("1/(1 + exp(-x))", "dy*y*(1 - y)", "y"),
    "tanh": Kind("tanh(x)", "dy*(1 - y*y)", "y"),
    "softplus": Kind(
        "x if beta*x > threshold else log(1 + exp(beta*x))/beta",
        "dy if beta*x > threshold else dy*sigmoid(beta*x)",
        "x",
        {"beta": 1.0, "threshold": 20.0},
    ),
    "softsign": Kind("x/(1 + |x|)", "dy/(1 + |x|)^2"),
    "abs": Kind("|x|", "dy*sign(x)"),
    "power": Kind(
        "(alpha + beta*x)^gamma",
        "dy*beta*gamma*(alpha + beta*x)^(gamma - 1)",
        "x",
        {"alpha": 0.0, "beta": 1.0, "gamma": 1.0},
    ),
    "gelu": Kind(
        'x*(1 + erf(x/sqrt(2)))/2; approximate="tanh": x*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x^3)))/2',
        "dy*(Phi(x) + x*phi(x)), Phi and phi the normal distribution and density",
        "x",
        {"approximate": "none"},
    ),
    "silu": Kind("x*sigmoid(x)", "dy*s*(1 + x*(1 - s)), s = sigmoid(x)"),
    "mish": Kind("x*tanh(log(1 + exp(x)))", "dy*(t + x*sigmoid(x)*(1 - t*t)), t = tanh(log(1 + exp(x)))"),
    "hard_sigmoid": Kind("min(max(x + 3, 0), 6)/6", "dy/6 if -3 < x < 3 else 0"),
    "hard_swish": Kind("x*min(max(x + 3, 0), 6)/6", "0 if x <= -3 else dy if x >= 3 else dy*(x/3 + 1/2)"),
    "hard_tanh": Kind(
        "min(max(x, min_val), max_val)",
        "dy if min_val < x < max_val else 0",
        "x",
        {"min_val": -1.0, "max_val": 1.0},
    ),
    "exp": Kind("exp(x)", "dy*y", "y"),
    "log": Kind("log(x)", "dy/x"),
    "sqrt": Kind("sqrt(x)", "dy/(2*y)", "y"),
    "square": Kind("x*x", "2*dy*x"),
    "round": Kind("the nearest integer, halves to even", "0", ""),
    "clip": Kind(
        "min(max(x, min), max)",
        "dy if min <= x <= max else 0",
        "x",
        {"min": float("-inf"), "max": float("inf")},
    ),
    "threshold": Kind(
        "x if x > threshold else value",
        "dy if x > threshold else 0",
        "x",
        {"threshold": REQUIRED, "value": REQUIRED},
    ),
    "glu": Kind(
        "a*sigmoid(b), a and b the halves of x along axis",
        "da = dy*sigmoid(b), db = dy*a*sigmoid(b)*(1 - sigmoid(b))",
        "x",
        {"axis": -1},
    ),
    "exp2": Kind("2^x", "dy*y*log(2)", "y"),
    "expm1": Kind("exp(x) - 1", "dy*(y + 1)", "y"),
    "log1p": Kind("log(1 + x)", "dy/(1 + x)"),
    "erf": Kind("the error function", "dy*2/sqrt(pi)*exp(-x*x)"),
    "reciprocal": Kind("1/x", "-dy*y*y", "y"),
    "rsqrt": Kind("1/sqrt(x)", "-dy*y*y*y/2", "y"),
    "sign": Kind("x if x is 0 else -1 or 1", "0", ""),
    "floor": Kind("the nearest integer that is not above x", "0", ""),
    "ceil": Kind("the nearest integer that is not below x", "0", ""),
    "sin": Kind("sin(x)", "dy*cos(x)"),
    "cos": Kind("cos(x)", "-dy*sin(x)"),
    "tan": Kind("tan(x)", "dy*(1 + y*y)", "y"),
    "asin": Kind("the angle in [-pi/2, pi/2] whose sine is x", "dy/sqrt(1 - x*x)"),
    "acos": Kind("the angle in [0, pi] whose cosine is x", "-dy/sqrt(1 - x*x)"),
    "atan": Kind("the angle in [-pi/2, pi/2] whose tangent is x", "dy/(1 + x*x)"),
    "sinh": Kind("(exp(x) - exp(-x))/2", "dy*cosh(x)"),
    "cosh": Kind("(exp(x) + exp(-x))/2", "dy*sinh(x)"),
    "asinh": Kind("log(x + sqrt(x*x + 1))", "dy/sqrt(x*x + 1)"),
    "acosh": Kind("log(x + sqrt(x*x - 1))", "dy/sqrt(x*x - 1)"),
    "atanh": Kind("log((1 + x)/(1 - x))/2", "dy/(1 - x*x)"),
    "log2": Kind("log(x)/log(2)", "dy/(x*log(2))"),
    "log10": Kind("log(x)/log(10)", "dy/(x*log(10))"),
    "erfc": Kind("1 - erf(x)", "-dy*2/sqrt(pi)*exp(-x*x)"),
    "neg": Kind("-x", "-dy", ""),
    "log_sigmoid": Kind("-log(1 + exp(-x))", "dy*sigmoid(-x)"),
    "tanh_shrink": Kind("x - tanh(x)", "dy*tanh(x)^2"),
    "shrink": Kind(
        "0 if |x| <= lambd else x - by if x > 0 else x + by",
        "dy if |x| > lambd else 0",
        "x",
        {"lambd": 0.5, "by": 0.0},
    ),
    "soft_shrink": Kind(
        "0 if |x| <= lambd else x - lambd if x > 0 else x + lambd",
        "dy if |x| > lambd else 0",
        "x",
        {"lambd": 0.5},
    ),
}

#: Numbers for examples of kinds that have no value everywhere; their gradients are of moderate size there.
DOMAINS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("log", "sqrt", "power", "log1p", "reciprocal", "rsqrt", "log2", "log10"), (0.1, 4.0)),
    **dict.fromkeys(("asin", "acos", "atanh"), (-0.9, 0.9)),
    "acosh": (1.1, 4.0),
}

#: Kinds whose parameters are bounds: instructions that take a minimum would not see one that is NaN.
BOUNDED = ("clipped_relu", "hard_tanh", "clip")

#: Kinds that kernels know by names of their own.
SPECIAL = {"gelu_tanh": "gelu", "softplus_1": "softplus", "power_2": "power"}

#: Other names: alias -> (kind, the parameters that it fixes).
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "swish": ("silu", {}),
    "relu6": ("clipped_relu", {"alpha": 6.0}),
    "hard_shrink": ("shrink", {"by": 0.0}),
}


def resolve(kind: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Give a kind's own name and all of its parameters, the defaults filled in, numbers as float.

    Raises ValueError for an unknown kind or a value that is not allowed, TypeError for an unknown or missing
    parameter or one that is not a number.

    >>> resolve("relu6", {})
    ('clipped_relu', {'alpha': 6.0})
    """
    name, fixed = ALIASES.get(kind, (kind, {})) if isinstance(kind, str) else ("", {})
    if name not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join([*KINDS, *ALIASES])}")
    defaults = KINDS[name].parameters
    if not defaults and not parameters:
        return name, {}
    free = [parameter for parameter in defaults if parameter not in fixed]
    for given in parameters:
        if given not in free:
            takes = f"takes {', '.join(free)}" if free else "takes no parameters"
            raise TypeError(f"{kind} got {given!r}; it {takes}")
    # None means the default, so that torch's clip(min=None) works.
    full = {**defaults, **fixed, **{key: value for key, value in parameters.items() if value is not None}}
    for parameter, value in full.items():
        if value is REQUIRED:
            raise TypeError(f"{kind} needs {parameter}")
        full[parameter] = checked(kind, parameter, value)
    if name == "hard_tanh" and full["min_val"] > full["max_val"]:
        raise ValueError(f"min_val is {full['min_val']} and max_val {full['max_val']}; min_val must not be the larger")
    if name == "celu" and full["alpha"] == 0.0:
        raise ValueError("alpha is 0; celu divides by it")
    if name == "softplus" and full["beta"] == 0.0:
        raise ValueError("beta is 0; softplus divides by it")
    return name, full


def checked(kind: str, parameter: str, value: Any) -> Any:
    """A parameter as kernels take it; TypeError or ValueError, naming it, for what it cannot be."""
    if parameter == "weight":
        return value
    if parameter == "approximate":
        if not isinstance(value, str) or value not in ("none", "tanh"):
            raise ValueError(f"approximate is {value!r}; it must be 'none' or 'tanh'")
        return value
    try:
        if isinstance(value, str):
            raise TypeError
        found = value.__index__() if parameter == "axis" else float(value)
    except OverflowError:
        raise ValueError(f"{parameter} of {kind} is a number that float64 does not hold") from None
    except (TypeError, ValueError, AttributeError, RuntimeError):
        wanted = "an int" if parameter == "axis" else "a number"
        raise TypeError(f"{parameter} of {kind} is {value!r}; it must be {wanted}") from None
    if found != found and kind in BOUNDED:
        raise ValueError(f"{parameter} of {kind} is nan; a bound is a number")
    return found
