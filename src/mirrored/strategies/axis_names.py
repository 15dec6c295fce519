"""Explains JAX's errors about axis names in a run, where the replicas are no mesh axis that user code can name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mirrored._jax.axes import unbound_axis
from mirrored.errors import ContextError


@contextlib.contextmanager
def axis_names_explained() -> Iterator[None]:
    """Raises an error with the remedy if the block calls a collective of JAX over an axis name that is not bound.

    Raises:
        ContextError: JAX has raised ``NameError``, for ``jax.lax.psum(x, "replica")``, for instance.
    """
    try:
        yield
    except (NameError, NotImplementedError) as error:
        found = unbound_axis(error)
        if found is None:
            raise
        raise ContextError(
            "Strategy.run",
            found=f"the function uses {found}",
            rule="the replicas are no mesh axis inside run: a device may have several of them, and an eager run calls "
            "one after another",
            remedy="call context = mirrored.get_replica_context(), and write context.all_reduce('SUM', x) for "
            "jax.lax.psum, context.all_reduce('MEAN', x) for pmean, context.all_gather(x, axis=0) for all_gather, "
            "context.replica_id_in_sync_group for axis_index, context.num_replicas_in_sync for axis_size; create "
            "layers such as BatchNorm without axis_name",
        ) from error
