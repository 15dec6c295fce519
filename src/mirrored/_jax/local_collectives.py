"""Traces placeholders for the collectives of virtual replicas, several of which share a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.extend.core as _extend
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir as _mlir

from mirrored._blocks import contextmanager
from mirrored._jax.axes import REPLICA_AXIS
from mirrored._jax.jaxprs import jaxprs_in
from mirrored._jax.private import source_info_util as _source_info
from mirrored.errors import MergeError

if TYPE_CHECKING:
    from mirrored._jax.jaxprs import JaxprEqn

# Collectives of one local replica under a JAX transform, to be fused with those of the device's other replicas.
#
# The virtual replicas of one device are traced one after another, and cannot wait for each other inside `scan`, `cond`
# or `jax.grad`. There each replica records only its own part of a collective: `replica_sum` or `replica_gather`, with
# the same differentiation and batching rules as `psum` and `all_gather`. `mirrored.strategies.fusing` replaces the
# parts of all local replicas by one collective after the body is traced.
#
# Supports JAX 0.10 to 0.12 (`jax.extend.core.Primitive`, `jax.interpreters`).

SUM: Final = "replica_sum"
GATHER: Final = "replica_gather"
SAME: Final = "same_on_local_replicas"
NUMBER: Final = "replica_number"
PLACEHOLDERS: Final = frozenset({SUM, GATHER})
"""The primitives that stand for one virtual replica's part in a collective, until all parts are fused."""

_sum: Final = _extend.Primitive(SUM)
_gather: Final = _extend.Primitive(GATHER)
_same: Final = _extend.Primitive(SAME)
_sum.multiple_results = _gather.multiple_results = True


def replica_sum(
    arrays: Sequence[Any], local: int, replicas: int, called: str, given: tuple[Any, ...] = ()
) -> list[Any]:
    """Returns placeholders for the sums of a virtual replica's arrays over all replicas.

    The placeholders of all replicas are fused into collectives later.

    Args:
        arrays: The replica's arrays.
        local: The local index of the replica.
        replicas: The number of replicas.
        called: What the user called, for messages.
        given: For each leaf of the replica's structure, whether it is one of the arrays. The tuple must be equal on all
            replicas, because their arrays are combined by position.
    """
    return list(_sum.bind(*arrays, local=local, replicas=replicas, called=called, given=given))


def replica_gather(
    arrays: Sequence[Any], local: int, replicas: int, called: str, given: tuple[Any, ...] = ()
) -> list[Any]:
    """Traces a placeholder for one virtual replica's all-gather; the placeholders of all replicas are fused later.

    The arguments are those of `replica_sum`.
    """
    return list(_gather.bind(*arrays, local=local, replicas=replicas, called=called, given=given))


def same_on_local_replicas(values: Sequence[Any]) -> Any:
    """Returns one of the values of a device's virtual replicas, and records that the values must be equal."""
    return values[0] if len(values) == 1 else _same.bind(*values)


def local_replica_of(eqn: JaxprEqn) -> int | None:
    """Returns the local index of the replica whose collective an equation contains, or None if it contains none."""
    if eqn.primitive in (_sum, _gather):
        return int(eqn.params["local"])
    for value in eqn.params.values():
        for jaxpr in jaxprs_in(value):
            for inner in jaxpr.eqns:
                found = local_replica_of(inner)
                if found is not None:
                    return found
    return None


@contextmanager
def at_source_of(eqn: JaxprEqn) -> Iterator[None]:
    """Attributes the equations traced in a ``with`` block to the source line of the equation `eqn`."""
    source = eqn.source_info
    with _source_info.user_context(source.traceback, name_stack=source.name_stack):
        yield


def bind_equation(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Applies an equation's primitive to new operands under the current trace."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # Up to 0.11, `get_bind_params` returns the functions separately from the other parameters.
    functions, params = params if isinstance(params, tuple) else ((), params)
    with at_source_of(eqn), eqn.ctx.manager:
        results = eqn.primitive.bind(*functions, *operands, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def _out_of_reach(called: str) -> Any:
    raise MergeError(
        called,
        found="it was called in an eager run, in a jitted function, loop or branch, or in a gradient (jax.grad, a "
        "tape) that another tape records, and needs the values of all replicas",
        rule="such a function of an eager run is a program of one replica, which cannot wait for other replicas",
        remedy="compile the step (mirrored.function), where such programs are fused, on per-replica batches of equal "
        "shapes (last_batch='pad' or 'drop'): a step on others runs eagerly; or open all tapes inside the function "
        "given to run, and run the step under jax.disable_jit()",
    )


def _zeros_made(tangents: Sequence[Any]) -> list[Any]:
    return [_ad.instantiate_zeros(tangent) for tangent in tangents]


def _jvp_of(primitive: _extend.Primitive) -> Any:
    def rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        results = primitive.bind(*primals, **params)
        moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not _ad.Zero]
        if len(moving) < len(tangents):  # the replicas' parts must agree about this, too
            params = {**params, "given": (params["given"], tuple(moving))}
        moved = primitive.bind(*[tangents[i] for i in moving], **params) if moving else []
        found = dict(zip(moving, moved, strict=True))
        return results, [
            found.get(i, _ad.Zero(jax.typeof(result).to_tangent_aval())) for i, result in enumerate(results)
        ]

    return rule


def _transpose_sum(cotangents: Sequence[Any], *arrays: Any, **params: Any) -> Any:
    return _sum.bind(*_zeros_made(cotangents), **params)


def _transpose_gather(cotangents: Sequence[Any], *arrays: Any, local: int, replicas: int, **params: Any) -> Any:
    """VJP rule of the all-gather: returns one replica's slice of the sum of all replicas' cotangents."""
    sums = _sum.bind(*_zeros_made(cotangents), local=local, replicas=replicas, **params)
    replica = _impls[NUMBER](local)
    if replica is None:
        device, devices = jax.lax.axis_index(REPLICA_AXIS), jax.lax.axis_size(REPLICA_AXIS)
        each = -(-replicas // devices)
        full = devices - (devices * each - replicas)  # the other devices have one replica less
        replica = device * (each - 1) + jax.numpy.minimum(device, full) + local
    return [jax.lax.dynamic_index_in_dim(total, replica, keepdims=False) for total in sums]


def _batch_sum(arrays: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    return _sum.bind(*arrays, **params), list(dims)


def _batch_gather(arrays: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    return _gather.bind(*arrays, **params), [dim if dim is None else dim + 1 for dim in dims]


def _plain(array: jax.core.ShapedArray, shape: tuple[int, ...]) -> Any:
    return jax.core.ShapedArray(shape, array.dtype)


_sum.def_abstract_eval(lambda *arrays, **_: [_plain(array, array.shape) for array in arrays])
_gather.def_abstract_eval(lambda *arrays, replicas, **_: [_plain(array, (replicas, *array.shape)) for array in arrays])
_same.def_abstract_eval(lambda *values: _plain(values[0], values[0].shape))
_ad.primitive_jvps[_sum] = _jvp_of(_sum)
_ad.primitive_jvps[_gather] = _jvp_of(_gather)
_ad.primitive_transposes[_sum] = _transpose_sum
_ad.primitive_transposes[_gather] = _transpose_gather
_batching.primitive_batchers[_sum] = _batch_sum
_batching.primitive_batchers[_gather] = _batch_gather
_mlir.register_lowering(_sum, lambda context, *arrays, called, **params: _out_of_reach(called))
_mlir.register_lowering(_gather, lambda context, *arrays, called, **params: _out_of_reach(called))
_mlir.register_lowering(_same, lambda context, *values: [values[0]])

_impls: dict[str, Any] = {}


def register_eager_implementations(
    sums: Callable[[list[Any], str], Sequence[Any]],
    gathers: Callable[[list[Any], str], Sequence[Any]],
    number: Callable[[int], int | None],
) -> None:
    """Registers the implementations of `replica_sum` and `replica_gather` for concrete arrays.

    Args:
        sums: A function from a replica's arrays, and what the user called, to the arrays' sums.
        gathers: A function from a replica's arrays, and what the user called, to those of all replicas.
        number: A function from the local index of a replica to its index among all replicas; None in a compiled
            program.
    """
    _impls.update({SUM: sums, GATHER: gathers, NUMBER: number})


_sum.def_impl(lambda *arrays, called, **_: _impls[SUM](list(arrays), called))
_gather.def_impl(lambda *arrays, called, **_: _impls[GATHER](list(arrays), called))
