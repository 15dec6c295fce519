"""Lowers products so that LLVM does not contract a product and a sum into a fused multiply-add (FMA).

An FMA rounds once; a product and a sum round twice. XLA for CPU lets LLVM contract them wherever both are in one
kernel, so that the bits of `a * b + c` depend on what XLA fuses. Of several products in one sum (`a * b + c * d`) LLVM
contracts one, and which one depends on the kernel's buffers, for example on whether it writes its result into the
buffer of an operand. All of this varies with the number of replicas per device.

In a program with bit-identical results (`BitIdenticalJit`), each product `p` of floats on a CPU is therefore
`select(p == p, p, p + p)`: p itself, NaN for NaN. So is each power, and each quotient: XLA computes `x / scalar` as the
product with the scalar's reciprocal. Neither XLA nor LLVM simplifies the selection, because they do not know that p is
a number, and neither contracts through it. XLA fuses it into the kernel of the product. Where LLVM knows that p is a
number, such as the product of a converted integer and a constant, it removes the selection, and p can be contracted.

Products that XLA itself generates are not concerned: those in matrix products and convolutions, and in functions
such as `tanh`.

The rules are not registered for the platform "cpu": a program exported for several platforms would get a conditional
for each product.

Supports JAX 0.10 to 0.12: a primitive's lowering rule is in `mlir._lowerings`, and the platforms are in its context.
JAX does not export their classes and those of MLIR values (hence `Any`).

Source: `DAGCombiner::visitFADDForFMACombine` in LLVM's `DAGCombiner.cpp`, with `FPOpFusion::Fast`, which XLA for CPU
sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir as _public_mlir

from mirrored._jax.private import config as _config
from mirrored._jax.private import hlo as _hlo
from mirrored._jax.private import mlir as _mlir

_MULTIPLY: Final = "stablehlo.multiply"
_PRIMITIVES: Final = (lax.mul_p, lax.square_p, lax.integer_pow_p, lax.pow_p, lax.div_p)
_lowerings: Final[Any] = _mlir._lowerings


def _rounded(rule: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Wraps a product's lowering rule so that the product is rounded on its own, not contracted into an FMA."""

    def lower(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        products = rule(ctx, *operands, **params)
        # The partitioner is set only while a bit-identical program is compiled (`bit_identical`).
        is_bit_identical = not _config.use_shardy_partitioner.value
        if not is_bit_identical or tuple(ctx.platforms or ctx.module_context.platforms) != ("cpu",):
            return products
        dtype = ctx.avals_out[0].dtype
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return [_complex_product(product) for product in products]
        # XLA computes the products of 8-bit floats in another dtype, and rounds them.
        if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize == 1:
            return products
        return [_selected(product) for product in products]

    return lower


def _selected(product: Any) -> Any:
    """Wraps a product in a select operation that does not change the value but prevents contraction into an FMA."""
    is_number = _hlo.compare(product, product, _hlo.ComparisonDirectionAttr.get("EQ"))
    return _hlo.select(is_number, product, _hlo.add(product, product))


def _complex_product(product: Any) -> Any:
    """Rewrites a complex product as real operations that LLVM does not contract into FMAs.

    Any other value is returned unchanged.
    """
    operation = product.owner
    if getattr(operation, "name", None) != _MULTIPLY:  # a power, a quotient, or a product with a sharding
        return product
    # The rule has broadcast the operands. Its product is not used any more.
    (a, b), (c, d) = ((_hlo.real(one), _hlo.imag(one)) for one in operation.operands)
    ac, bd, ad, bc = (_selected(_hlo.multiply(*pair)) for pair in ((a, c), (b, d), (a, d), (b, c)))
    return _hlo.complex(_hlo.subtract(ac, bd), _hlo.add(ad, bc))


def connect_products() -> None:
    """Wraps the lowering rules of operations that XLA computes as products, to prevent fused multiply-adds."""
    for primitive in _PRIMITIVES:
        rule = _lowerings[primitive].rule
        _public_mlir.register_lowering(primitive, _rounded(rule))
