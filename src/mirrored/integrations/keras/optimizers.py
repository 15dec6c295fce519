"""Patches Keras optimizers to sum gradients over replicas before each update of the variables."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import owned
from mirrored._jax.source_lines import user_stacklevel
from mirrored._jax.traces import current_trace, is_eval
from mirrored._typing import Operand
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ArgumentError, ArgumentTypeError, ContextError, OutOfScopeWarning, StructureError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.building import built_once, with_wrapped
from mirrored.integrations.keras.made_before import adopt_made_before, is_observed
from mirrored.integrations.keras.private import (
    check_gradients,
    in_stateless_scope,
    index_of,
    is_optimized,
    variables_of_optimizer,
)
from mirrored.integrations.keras.settings import settings_of
from mirrored.integrations.keras.variables import StrategyVariable, as_keras
from mirrored.optimizers.checks import Pair
from mirrored.optimizers.gradient_merge import note_summed, refuse_keys, update_with_sums_of
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.entry_point import with_noted_state
from mirrored.strategies import ReplicaContext, get_replica_context
from mirrored.strategies.context import all_reduce_for
from mirrored.variables import Variable

if TYPE_CHECKING:
    from keras import Variable as KerasVariable
    from keras.optimizers import LossScaleOptimizer, Optimizer

keras = load()
_SCALE: Final = "_mirrored_scale"
_MOST_COMPILED: Final = 64


def wrapped(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Optimizer.apply` to sum gradients over replicas before the update, for variables of a strategy."""

    @functools.wraps(apply)
    def apply_over_replicas(
        self: Optimizer, grads: Iterable[Any], trainable_variables: Iterable[KerasVariable | Variable] | None = None
    ) -> Any:
        stateless = in_stateless_scope()
        grads, variables = _listed(self, grads, trainable_variables)
        if not stateless:
            _adopt_made_before(self, variables)
        updated = variables if variables is not None else variables_of_optimizer(self)
        is_ours = _is_ours(updated)
        if is_ours:
            _refuse_complex(self, grads, updated)
        if stateless or not is_ours:
            return apply(self, grads, variables)
        if not self.built:
            _build(self, variables)
        if variables is None:
            variables = variables_of_optimizer(self)
        _check_known(self, variables)
        check_gradients(self, grads, variables)
        # The replicas may pass other variables, or in another order: the sums follow the order in the optimizer.
        all_grads, everything = _in_order_of(self, grads, variables), variables_of_optimizer(self)
        if _would_each_replica_update(variables):
            _apply_once(self, all_grads, everything, next(filter(_is_of_no_strategy, variables)).path)
        else:
            _apply(self, _reduced(self, all_grads, everything), everything)
        return None

    return apply_over_replicas


def wrapped_dispatch(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `MultiOptimizer.apply` of Keras to accept `mirrored` variables.

    The optimizers that `apply` calls sum the gradients over replicas.
    """

    @functools.wraps(apply)
    def dispatch(
        self: Optimizer, grads: Iterable[Any], trainable_variables: Iterable[KerasVariable | Variable] | None = None
    ) -> Any:
        grads, variables = _listed(self, grads, trainable_variables)
        if variables is None:
            return apply(self, grads)
        if not in_stateless_scope():
            _adopt_made_before(self, variables)
        if not self.built and len(grads) and _is_ours(variables) and not in_stateless_scope():
            with built_once(self):
                self.build(variables)
            self.built = True
        return apply(self, grads, variables)

    return dispatch


def wrapped_build(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Optimizer.build` to also accept `mirrored` variables that Keras did not create."""

    @functools.wraps(build)
    def build_for(self: Optimizer, variables: Sequence[Any]) -> Any:
        return build(self, [as_keras(variable) for variable in variables])

    return build_for


def wrapped_scale_build(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `LossScaleOptimizer.build` to reuse the loss-scale variables that `scale_loss` has already created."""

    @functools.wraps(build)
    def build_for(self: Optimizer, variables: Sequence[Any]) -> Any:
        made = vars(self).pop(_SCALE, None)
        if made is None:
            return build(self, variables)
        add = self.add_variable

        def taking_over(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
            return made.pop(name) if name in made else add(*args, name=name, **kwargs)

        vars(self)["add_variable"] = taking_over
        try:
            return build(self, variables)
        finally:
            del vars(self)["add_variable"]

    return wrapped_build(build_for)


def wrapped_scale_loss(scale_loss: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `LossScaleOptimizer.scale_loss` to allow calls during tracing before the optimizer is built.

    Keras multiplies by the Python number `initial_scale` until the optimizer is built. A trace would keep that number
    as a constant in all later steps, while the gradients are divided by the current scale. So the scale variables are
    created here.
    """

    @functools.wraps(scale_loss)
    def scaling(self: LossScaleOptimizer, loss: Operand) -> Any:
        stateless = in_stateless_scope()
        if self.built or stateless or is_eval(current_trace()):
            return scale_loss(self, loss)
        if _SCALE not in vars(self):
            vars(self)[_SCALE] = _made_scale(self)
        return keras.ops.multiply(loss, vars(self)[_SCALE]["dynamic_scale"])

    return scaling


def _made_scale(optimizer: LossScaleOptimizer) -> dict[str, Any]:
    """Creates the scale variables that `LossScaleOptimizer.build` would create, in the same order."""
    constant = keras.initializers.Constant
    add = functools.partial(optimizer.add_variable, shape=(), aggregation="none")
    return {
        "step_counter": add(dtype="int", initializer=constant(0), name="step_counter"),
        "dynamic_scale": add(dtype="float32", initializer=constant(optimizer.initial_scale), name="dynamic_scale"),
    }


def wrapped_reference(add: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Optimizer.add_variable_from_reference` to accept `mirrored` variables that Keras did not create."""

    @functools.wraps(add)
    def add_for(self: Optimizer, reference_variable: KerasVariable | Variable, *args: Any, **kwargs: Any) -> Any:
        return add(self, as_keras(reference_variable), *args, **kwargs)

    return add_for


def _listed(
    optimizer: Optimizer, grads: Iterable[Any], variables: Iterable[KerasVariable | Variable] | None
) -> tuple[list[Any], list[Any] | None]:
    """Returns gradients and Keras variables, which may be iterators, as lists; raises an error for dict keys."""
    grads, given = list(grads), None if variables is None else list(variables)
    _refuse_keys(optimizer, grads, given or ())
    # JAX reads the memory of NumPy arrays after the call, too, when the program may have changed it.
    grads = [owned(grad) for grad in grads]
    return grads, None if given is None else [as_keras(one) for one in given]


def _refuse_keys(optimizer: Optimizer, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    called = f"{type(optimizer).__name__}.apply_gradients"
    of_dicts = "[(gradients[name], variables[name]) for name in variables]"
    refuse_keys([*grads, *variables], called, of_dicts)
    tree = next((one for one in variables if isinstance(one, dict | list | tuple)), None)
    if tree is not None:
        raise StructureError(
            called,
            found=f"a {type(tree).__name__} in place of a variable",
            rule="a Keras optimizer takes pairs of one gradient and one variable",
            remedy=f"write {called}({of_dicts}) for dicts, {called}(zip(gradients, variables)) for lists; "
            "the optimizers of mirrored.optimizers take trees",
        )


def _is_ours(variables: Sequence[KerasVariable]) -> bool:
    return bool(variables) and all(isinstance(variable, StrategyVariable) for variable in variables)


def _adopt_made_before(optimizer: Optimizer, variables: Sequence[KerasVariable] | None) -> None:
    """Turns an optimizer's own variables and those that it updates into `StrategyVariable`s, if required.

    This is required in a run, compiled function or tape, and if one of the updated variables is a `StrategyVariable`.
    """
    updated = [*(variables or ()), *(variables_of_optimizer(optimizer) if optimizer.built else ())]
    if is_observed() or any(isinstance(variable, StrategyVariable) for variable in updated):
        adopt_made_before(updated)
        adopt_made_before(optimizer.variables, of_optimizer=True)


def _in_order_of(optimizer: Optimizer, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns one gradient for each variable that the optimizer was built with; None for those without a gradient."""
    all_grads: list[Any] = [None] * len(variables_of_optimizer(optimizer))
    for grad, variable in zip(grads, variables, strict=True):
        all_grads[index_of(optimizer, variable)] = grad
    return all_grads


def _would_each_replica_update(variables: Sequence[Any]) -> bool:
    """Returns whether each replica of an eager run would update a variable that has one copy and no strategy."""
    context, here = get_replica_context(), ambient()
    if context is None or context.num_replicas_in_sync == 1 or here.runner is None or not is_eval(current_trace()):
        return False
    return any(map(_is_of_no_strategy, variables))


def _is_of_no_strategy(variable: StrategyVariable) -> bool:
    made = variable.mirrored
    return made is not None and made.device_assignment is None


def _apply_once(optimizer: Optimizer, grads: list[Any], variables: Sequence[Any], outside: str) -> None:
    """Updates variables that belong to no strategy once for all replicas, with the sum of the replicas' gradients.

    Warns once per optimizer; `outside` is the path of one of the variables, for the message.
    """
    called = f"{type(optimizer).__name__}.apply_gradients"
    places = {id(one.mirrored): place for place, one in enumerate(variables) if not _overwrites(one)}
    pairs = [(grads[place], variables[place].mirrored) for place in places.values()]
    context = get_replica_context()
    assert context is not None  # `_would_each_replica_update` has checked it
    # On the host, because the update runs on the devices of all replicas.
    maxima = [None if one is None else np.asarray(one) for one in _maxima(called, context, grads, variables)]

    def update(sums: Sequence[Pair], _: Sequence[Any]) -> None:
        all_sums: list[Any] = list(maxima)
        for total, variable in sums:
            all_sums[places[id(variable)]] = total
        _apply(optimizer, all_sums, variables)

    update_with_sums_of(pairs, (), update, called, optimizer)
    if not vars(optimizer).get("_mirrored_warned"):
        optimizer.__dict__["_mirrored_warned"] = True
        warnings.warn(
            f"{called}: variable {outside!r} and the others of its model were made outside of "
            "strategy.scope(), and replicas update them\n"
            "  rule:   the model and the optimizer must belong to the strategy; here the sum of the replicas' "
            "gradients is applied once, to the only copy\n"
            "  remedy: make the model and the optimizer inside `with strategy.scope():`",
            OutOfScopeWarning,
            stacklevel=user_stacklevel(),
        )


def _build(optimizer: Optimizer, variables: Sequence[KerasVariable] | None) -> None:
    """Creates the optimizer's slot variables; inside `strategy.run`, once for all replicas."""
    with keras.name_scope(optimizer.name, caller=optimizer), built_once(optimizer):
        optimizer.build(variables)
    optimizer.built = True


def _check_known(optimizer: Optimizer, variables: Sequence[Any]) -> None:
    unknown = [variable.path for variable in variables if not is_optimized(optimizer, variable)]
    if unknown:
        shown = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        raise ArgumentError(
            f"{type(optimizer).__name__}.apply_gradients",
            found=f"the optimizer was not built with these variables: {shown}",
            rule="a Keras optimizer must create the slots of all variables at once, at the latest in its first step",
            remedy="for one optimizer over several models write, before the first step: "
            "optimizer.build(first_model.trainable_variables + second_model.trainable_variables)",
        )
    seen: set[int] = set()
    for variable in variables:
        if id(variable) in seen:
            raise ArgumentError(
                f"{type(optimizer).__name__}.apply_gradients",
                found=f"variable {variable.path!r} was passed twice",
                rule="a call can update each variable only once",
                remedy="sum its gradients first: mirrored.aggregate_gradients([gradients_1, gradients_2])",
            )
        seen.add(id(variable))


def _refuse_complex(optimizer: Optimizer, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Raises an error for complex variables with a gradient: the arithmetic of Keras' optimizers is that of reals.

    Keras subtracts JAX's gradient itself, whose conjugate is the direction in which the loss increases fastest; its
    second moments and norms are sums of z², not of |z|².
    """
    for grad, variable in zip(grads, variables, strict=False):  # `check_gradients` raises the error of their numbers
        if grad is not None and variable.dtype.startswith("complex"):
            name = type(optimizer).__name__
            raise ArgumentTypeError(
                f"{name}.apply_gradients",
                found=f"variable {variable.path!r} has dtype {variable.dtype}",
                rule="Keras' optimizers update real variables; they neither conjugate complex gradients nor use |z|²",
                remedy="use an optimizer of mirrored.optimizers with a mirrored.Variable (tf.Variable), or keep the "
                "real and imaginary parts in two variables",
            )


class _Largest(ReduceOp):
    """Max reduction over replicas; instances compare equal, so that compiled programs are reused."""

    def __call__(self, per_replica: jax.Array) -> Any:
        return jnp.max(per_replica, axis=0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Largest)

    def __hash__(self) -> int:
        return hash(_Largest)


def _overwrites(variable: KerasVariable) -> bool:
    """Returns whether the "gradient" of a variable is the variable's new value, as for the scales of float8 layers."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _maxima(called: str, context: ReplicaContext, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns the maximum over replicas of each gradient that replaces a variable's value.

    These are the gradients of variables with `overwrite_with_gradient`. The result has None for other variables. Keras
    combines several such values in the same way.
    """
    if context.num_replicas_in_sync == 1 or not any(map(_overwrites, variables)):
        return [grad if _overwrites(one) else None for grad, one in zip(grads, variables, strict=True)]
    values = [grad for grad, one in zip(grads, variables, strict=True) if _overwrites(one)]
    largest = iter(all_reduce_for(called, context, _Largest(), values))
    return [next(largest) if _overwrites(one) else None for one in variables]


def _reduced(optimizer: Optimizer, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    context = get_replica_context()
    if context is None:
        raise ContextError(
            f"{type(optimizer).__name__}.apply_gradients",
            found="it was called in cross-replica context",
            rule="every replica must apply a Keras optimizer, which first sums the gradients over replicas",
            remedy="call it inside the function passed to strategy.run",
        )
    if context.num_replicas_in_sync == 1:
        return grads
    called = f"{type(optimizer).__name__}.apply_gradients"
    maxima = _maxima(called, context, grads, variables)
    summed = [None if _overwrites(one) else grad for grad, one in zip(grads, variables, strict=True)]
    note_summed(called, [gradient for gradient in summed if gradient is not None])
    sums = all_reduce_for(called, context, ReduceOp.SUM, summed)
    return [high if total is None else total for total, high in zip(sums, maxima, strict=True)]


@with_noted_state
def _apply(optimizer: Optimizer, all_grads: list[Any], everything: Sequence[Any]) -> None:
    """Runs the optimizer as a pure function; assigns its results to the slots and to variables with a gradient.

    This includes clipping, weight decay, loss scaling and moving averages, which may overwrite all variables.
    """
    # `stateless_apply` requires one entry for every variable that the optimizer was built with; it skips None.
    slots = list(optimizer.variables)
    present = tuple(grad is not None for grad in all_grads)
    update = _updates(optimizer, present)
    new_values, new_slots = update(
        [grad for grad in all_grads if grad is not None],
        [variable.read_value() for variable in everything],
        [variable.read_value() for variable in slots],
    )
    averages = _overwrites_with_averages(optimizer)  # all variables, with and without a gradient
    for variable, value, used in zip(everything, new_values, present, strict=True):
        if used or averages:
            variable.assign(value)
    for variable, value in zip(slots, new_slots, strict=True):
        variable.assign(value)


def _overwrites_with_averages(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer, or one that it wraps, overwrites variables with their moving averages."""
    return any(one.use_ema and one.ema_overwrite_frequency for one in with_wrapped(optimizer))


def _updates(optimizer: Optimizer, present: tuple[bool, ...]) -> Callable[..., Any]:
    """Returns the optimizer's update as a function of arrays.

    For eager code the function is compiled and cached, because eager code would dispatch each operation separately. The
    cache key contains the optimizer's settings, which a trace keeps as constants. Under a listener (a tape) the
    function stays uncompiled, so that the listener sees its operations.
    """

    def update(grads: list[Any], values: list[Any], slots: list[Any]) -> Any:
        remaining = iter(grads)
        full = [next(remaining) if is_present else None for is_present in present]
        with within(listeners=()), warnings.catch_warnings():
            # Only gradients of other models are missing: the caller has already warned of missing gradients of its own.
            warnings.filterwarnings("ignore", "Gradients do not exist")
            return optimizer.stateless_apply(slots, full, values)

    settings = settings_of(optimizer)
    if not is_eval(current_trace()) or ambient().listeners or settings is None:
        return update
    cache = optimizer.__dict__.setdefault("_mirrored_updates", {})
    key = (present, settings)
    if key not in cache:
        if len(cache) == _MOST_COMPILED:  # a setting that changes in each step, such as a Python counter
            return update
        cache[key] = jax.jit(update)
    return cache[key]  # type: ignore[no-any-return]
