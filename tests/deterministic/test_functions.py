"""The functions of JAX, and their gradients, have the same bits on any number of devices.

Equal constants of a device's replicas are one constant, so XLA simplifies the code of one replica in another way than
that of the next one. This shows where a value that is computed from constants and scalars alone is a divisor, as in
`polygamma`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, nn
from jax.scipy import special, stats

import mirrored as mr

Function = Callable[[Any], Any]
REPLICAS = 2
ROWS = np.abs(np.random.default_rng(0).normal(size=(REPLICAS, 2, 16))) + 0.3


def named(module: Any, names: str) -> list[Function]:
    return [getattr(module, name) for name in names.split()]


def of_constants(function: Function) -> Function:
    """A function whose result at a constant array is multiplied by its argument."""
    return lambda x: x * function(jnp.full_like(x, 0.3))


GROUPS: dict[str, list[Function]] = {
    "uniform divisors": [
        lambda x: jnp.full_like(x, 8.5) / (jnp.log1p(jnp.full_like(x, 0.133)) + 2.0) * x,
        lambda x: jnp.full_like(x, 8.5) / (jnp.log1p(jnp.full_like(x, x[0, 0])) + 2.0),
        lambda x: x / jnp.broadcast_to(x[0, 0], x.shape),
        lambda x: x / (jnp.exp(jnp.full_like(x, x[0, 0])) * 1.3 + 2.0),
        lambda x: x * 100.0 ** (-jnp.arange(16) / 7.0),
    ],
    "polygamma": [
        lambda x: special.polygamma(1, x),
        lambda x: special.polygamma(3, x),
        lambda x: special.zeta(2.5, x),
        lax.digamma,
    ],
    "gamma": [
        *named(special, "gammaln gamma"),
        lambda x: special.betaln(x, 2.5),
    ],
    "incomplete gamma": [
        lambda x: special.gammainc(1.5, x),
        lambda x: special.gammaincc(x, 1.5),
        lambda x: special.betainc(1.5, 2.5, nn.sigmoid(x)),
    ],
    "of constants": [of_constants(function) for function in named(special, "gammaln digamma gamma i1e erfinv")],
    "normal quantiles": [special.ndtri, of_constants(special.ndtri)],  # not of 16 bits, which JAX refuses
    "more of constants": [of_constants(function) for function in named(jnp, "tanh exp tan arcsin arctan sinh arccosh")],
    "error": named(special, "erf erfc erfinv ndtr log_ndtr entr"),
    "Bessel": named(special, "i0 i0e i1 i1e"),
    "integrals": [*named(special, "expi exp1 spence"), lambda x: special.expn(2, x)],
    "hyperbolic": named(jnp, "sinh cosh tanh arcsinh arctanh arctan arccos tan sinc"),
    "powers": [*named(jnp, "exp exp2 expm1 log log1p log2 log10 cbrt sqrt reciprocal"), lax.rsqrt],
    "exponents": [lambda x: x**2.5, lambda x: 2.5**x, lambda x: x**-0.5, lambda x: x**-3, lambda x: jnp.hypot(x, 2.5)],
    "quotients": [
        lambda x: jnp.arctan2(x, 2.5),
        lambda x: x % 0.7,
        lambda x: 1 / (1 / x + 0.3),
        lambda x: x / jnp.linalg.norm(x),
        lambda x: jnp.logaddexp(x, 2.5),
    ],
    "activations": named(nn, "celu elu gelu selu silu mish softplus squareplus log_sigmoid soft_sign"),
    "normalizations": [*named(nn, "softmax log_softmax standardize"), special.logsumexp, jnp.std],
    "densities": [
        lambda x: stats.t.logpdf(x, 2.5),
        lambda x: stats.gamma.logpdf(x, 2.5),
        lambda x: stats.beta.logpdf(nn.sigmoid(x), 2.5, 1.5),
        lambda x: stats.norm.logpdf(x, 0.3, 1.7),
        lambda x: stats.vonmises.logpdf(x, 1.7),
    ],
}


def bits(functions: list[Function], dtype: str, devices: int) -> list[bytes]:
    """The values and gradients of functions at a variable, and the values at a per-replica value."""
    names = [f"CPU:{i}" for i in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=REPLICAS, deterministic=True)
    rows = ROWS.astype(jnp.dtype(dtype))
    with strategy.scope():
        w = mr.Variable(rows[0])

    def replica(x: Any) -> list[Any]:
        def result_and_total(argument: Any, function: Function) -> tuple[Any, Any]:
            result = function(argument)
            return jnp.sum(result).astype("float32"), result

        shared = [jax.value_and_grad(result_and_total, has_aux=True)(w.read_value(), one) for one in functions]
        return [*((result, gradient) for (_, result), gradient in shared), *(function(x) for function in functions)]

    x = strategy.experimental_distribute_values_from_function(lambda c: rows[c.replica_id_in_sync_group])
    results = mr.function(lambda x: strategy.run(replica, args=(x,)))(x)
    leaves = jax.tree.leaves(results, is_leaf=lambda one: isinstance(one, mr.PerReplica))
    return [np.asarray(one).tobytes() for leaf in leaves for one in strategy.experimental_local_results(leaf)]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.first(1)
def test_functions_and_their_gradients(group: str) -> None:
    one, two = bits(GROUPS[group], "float32", 1), bits(GROUPS[group], "float32", 2)
    # For each function its result and gradient at a variable; then the results at per-replica values.
    assert [index // REPLICAS for index, parts in enumerate(zip(one, two, strict=True)) if len(set(parts)) > 1] == []


@pytest.mark.parametrize("group", ["uniform divisors", "polygamma", "gamma", "of constants"])
@pytest.mark.slow
def test_functions_of_16_bits(group: str) -> None:
    assert bits(GROUPS[group], "bfloat16", 1) == bits(GROUPS[group], "bfloat16", 2)
