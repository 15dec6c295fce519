"""Refuses other meshes in a run: nested `jax.shard_map` and `jax.pmap`, shardings, arrays of a mesh with explicit axes.

A compiled run is one `shard_map` over the strategy's devices, and its body is the program of one device. JAX accepts a
nested mesh there only if it is that of the run. For others it raises errors about its own mesh, and XLA aborts the
process if `jax.pmap` uses the devices of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType

from mirrored._jax.jaxprs import JaxprEqn
from mirrored._jax.placements import placements_in
from mirrored.errors import DeviceError, MirroredError
from mirrored.runtime.function_key import key_of
from mirrored.values import structures


@contextlib.contextmanager
def explicit_axes_explained(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], is_traced: bool
) -> Iterator[None]:
    """Raises an error that names an array of a mesh with explicit axes if a run of `fn` fails because of it.

    JAX takes the axes of the array for those of the mesh of the run, and raises ``KeyError`` or ``ValueError``.

    Args:
        fn: The function passed to `run`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        is_traced: Whether the run is compiled. Then an argument could fail only when the program is compiled.

    Raises:
        DeviceError: `fn` closes over such an array, or it is an argument.
    """
    if is_traced:
        _refuse_arguments(args, kwargs, None)
    try:
        yield
    except (KeyError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, MirroredError):
            raise
        _refuse_arguments(args, kwargs, error)
        for name, key in key_of(fn).arrays:
            if _is_explicit(key.array):
                raise _refused(f"the function closes over {name!r}", key.array) from error
        code = getattr(fn, "__code__", None)
        for name in code.co_names if code is not None else ():
            value = fn.__globals__.get(name)
            if value is not None and _is_explicit(value):
                raise _refused(f"the function uses {name!r}", value) from error
        raise


def refuse_other_meshes(equations: Sequence[Sequence[JaxprEqn]]) -> None:
    """Raises an error if the traced program of a run's replicas places arrays on several devices.

    Args:
        equations: The equations of the program (`equations_in`).

    Raises:
        DeviceError: It contains such an operation, in any layout of the replicas.
    """
    placement = next(placements_in(equations), None)
    if placement is None:
        return
    where = f" at {placement.line}" if placement.line else ""
    raise DeviceError(
        "Strategy.run",
        found=f"the compiled function contains {placement.what}{where}",
        rule="a replica is one program on one device, so inside run no array can be placed on several devices",
        remedy="compute on the replica's own arrays (jax.vmap in place of jax.pmap or jax.shard_map, no sharding), "
        "exchange values with get_replica_context().all_reduce or all_gather, or call the function outside of run",
    )


def _refuse_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception | None) -> None:
    for leaf in structures.flatten((tuple(args), dict(kwargs)))[0]:
        if _is_explicit(leaf):
            raise _refused("it was passed as an argument", leaf) from error


def _is_explicit(value: object) -> bool:
    if not isinstance(value, jax.Array):
        return False
    mesh = getattr(getattr(jax.typeof(value), "sharding", None), "mesh", None)
    return AxisType.Explicit in getattr(mesh, "axis_types", ())


def _refused(how: str, array: jax.Array) -> DeviceError:
    sharding = jax.typeof(array).sharding
    return DeviceError(
        "Strategy.run",
        found=f"{how}, an array {jax.typeof(array)} of the mesh {sharding.mesh}, which has explicit axes",
        rule="a run has a mesh of its own, so it takes arrays whose sharding is not part of their type",
        remedy="copy the array before the run: jax.device_put(x, jax.devices()[0]), or make its mesh with "
        "axis_types=(jax.sharding.AxisType.Auto,)",
    )
