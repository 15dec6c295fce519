"""Patches `nnx.Optimizer` to all-reduce gradients over replicas before each update."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import jax
import jax.numpy as jnp

from mirrored._jax.traces import Tracer
from mirrored._typing import PyTree
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ArgumentError, ContextError
from mirrored.extras import load
from mirrored.integrations.flax.holding import adopt, held, is_nested, is_ours
from mirrored.optimizers.gradient_merge import note_summed
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient, announce_reassignment
from mirrored.strategies import get_replica_context
from mirrored.strategies.context import all_reduce_for
from mirrored.variables import Variable

if TYPE_CHECKING:
    from flax.nnx import Optimizer

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")

T = TypeVar("T")
_SKIPPING: Final = "skip_gradients_aggregation"


def connect_optimizer() -> None:
    """Patches `nnx.Optimizer.update` to all-reduce gradients over replicas before the update.

    `nnx.ModelAndOptimizer.update` calls the same method.
    """
    replace("flax", nnx.Optimizer, "update", _over_replicas(nnx.Optimizer.update))


def _over_replicas(update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def update_over_replicas(self: Optimizer[Any], model: PyTree, grads: PyTree = None, /, **kwargs: Any) -> Any:
        if _SKIPPING in kwargs:
            raise ArgumentError(
                "nnx.Optimizer.update",
                found=f"the argument {_SKIPPING} was given",
                rule="nnx.Optimizer always sums the gradients of all replicas",
                remedy="pass each replica's own gradients, without an all_reduce before; transforms in the optimizer "
                "(optax.chain) change the sums; mirrored.optimizers take the argument",
            )
        if grads is None or not _is_distributed(model):
            _check_plain_parameters(model, grads)
            given = (model,) if grads is None else (model, grads)
            return _as_constants(model, update(self, *given, **kwargs))
        for variable in jax.tree.leaves(self, is_leaf=_is_nnx_variable):
            if _is_nnx_variable(variable) and not is_ours(held(variable)):
                adopt(variable, type(variable).__name__)
        gradients = _filled(nnx.state(grads, self.wrt), nnx.state(model, self.wrt))
        return _as_constants(model, update(self, model, _summed(gradients), **kwargs))

    return update_over_replicas


def _as_constants(model: PyTree, result: T) -> T:
    """Makes open gradient tapes treat a model's updated parameters as constants; returns `result` unchanged."""
    if ambient().listeners:
        for variable in jax.tree.leaves(model, is_leaf=_is_nnx_variable):
            content = held(variable) if isinstance(variable, nnx.Param) else None
            if isinstance(content, Variable):
                announce_reassignment(content, None)
    return result


def _filled(grads: PyTree, parameters: PyTree) -> PyTree:
    """Replaces None gradients, which belong to parameters that the loss does not use, with zeros.

    Raises:
        ContextError: The gradient of a parameter is None because tapes do not record it: it is no `mirrored` variable.
    """

    def filled(path: tuple[Any, ...], gradient: Any, parameter: Any) -> Any:
        if gradient is not None or parameter is None:  # nnx.Param(None) has no gradient
            return gradient
        if not isinstance(parameter, Variable):
            raise ContextError(
                "nnx.Optimizer.update",
                found=f"the gradient of {jax.tree_util.keystr(path, simple=True, separator='/')} is None, and the "
                "parameter is no variable of the strategy",
                rule="GradientTape records the parameters that hold one array each and belong to the strategy",
                remedy="store one array per nnx.Param, and convert parameters that are added outside "
                "`with strategy.scope():` in it: mirrored.mirror(model)",
            )
        return jnp.zeros(parameter.shape, parameter.dtype)

    return jax.tree_util.tree_map_with_path(filled, grads, parameters, is_leaf=lambda leaf: leaf is None)


def _check_plain_parameters(model: PyTree, grads: PyTree) -> None:
    """Raises ContextError if an NNX optimizer cannot update the model's plain arrays correctly.

    Gradients of a tape with respect to arrays are None, which optax does not accept. The replicas of a run get copies
    of a model that is an argument of `run`, and each would update its own copy, by the gradients of its own batch.
    """
    variables = jax.tree.leaves(model, is_leaf=_is_nnx_variable)
    have_none = grads is not None and all(leaf is None for leaf in jax.tree.leaves(grads))
    replica = ambient().replica
    are_copies = replica is not None and replica.num_replicas_in_sync > 1
    if not (have_none or are_copies) or not any(map(_is_nnx_variable, variables)):
        return
    held_values = (held(variable) for variable in variables if _is_nnx_variable(variable))
    in_transform = is_nested() or any(isinstance(value, Tracer) for value in held_values)
    raise ContextError(
        "nnx.Optimizer.update",
        found=("all gradients are None: " if have_none else "")
        + "the parameters of the model are arrays of "
        + ("a transform of JAX or NNX, such as nnx.jit" if in_transform else "an object made outside strategy.scope()"),
        rule="only variables of a strategy are updated in run, by the gradients of all replicas; GradientTape records "
        "them, and only mirrored.function compiles steps with variables",
        remedy="use mirrored.function instead of nnx.jit or nnx.jit_partial, and refer to the model as a global or "
        "closure variable"
        if in_transform
        else "create the model inside `with strategy.scope():`, or convert it there: mirrored.mirror(model)",
    )


def _is_distributed(model: PyTree) -> bool:
    """Returns whether the model's variables belong to a strategy."""
    variables = jax.tree.leaves(nnx.state(model), is_leaf=_is_nnx_variable)
    contents = (held(variable) for variable in variables if _is_nnx_variable(variable))
    return any(isinstance(content, Variable) and content.device_assignment is not None for content in contents)


def _summed(grads: PyTree) -> Any:
    context = get_replica_context()
    if context is None or not ambient().strategies:
        raise ContextError(
            "nnx.Optimizer.update",
            found="it was called in cross-replica context",
            rule="each replica must pass its own gradients, which the optimizer sums over all replicas",
            remedy="call it inside the function passed to strategy.run",
        )
    if context.num_replicas_in_sync == 1:
        return grads
    leaves, structure = jax.tree.flatten(grads)
    note_summed("nnx.Optimizer.update", leaves)
    return jax.tree.unflatten(structure, all_reduce_for("nnx.Optimizer.update", context, ReduceOp.SUM, leaves))


def _is_nnx_variable(value: object) -> bool:
    return isinstance(value, nnx.Variable)
