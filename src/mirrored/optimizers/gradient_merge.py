"""Pairs gradients with variables, sums the gradients over replicas, and applies one update on all replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import arrays
from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import current_trace, is_eval, trace_below_tapes
from mirrored._jax.trees import flatten_with_path, is_same_place, positions_in_order
from mirrored._typing import Operand, PyTree
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ArgumentError, StructureError, VariableError
from mirrored.optimizers.alignment import aligned
from mirrored.optimizers.checks import Pair, check_iterators, with_gradients
from mirrored.runtime.ambient import ambient
from mirrored.runtime.merge import Merge, run_merge, same_object
from mirrored.strategies import get_replica_context, get_strategy
from mirrored.values.belonging import none_or_complete
from mirrored.values.distributed_values import Mirrored, PerReplica
from mirrored.values.sparse_rows import SparseRows
from mirrored.variables import Variable
from mirrored.variables.component import VariableComponent

# Pairs gradients with variables.


def as_pairs(grads_and_vars: Iterable[Any], called: str) -> list[Pair]:
    """Returns gradients and variables as a list of pairs; splits a pair of trees into one pair per variable.

    Raises:
        StructureError: An element is not such a pair.
        ArgumentError: A variable occurs twice.
        VariableError: An optimizer cannot update one of the variables that have a gradient.
    """
    pairs: list[Pair] = []
    for position, pair in enumerate(grads_and_vars):
        refuse_keys(pair if isinstance(pair, tuple | list) else (), called, "[(gradients, variables)]")
        if isinstance(pair, tuple | list) and len(pair) == 2 and not isinstance(pair[1], Variable):
            found = tree_pairs(pair[0], pair[1], called)
            if found:
                pairs += [(_dense(gradient, variable, called), variable) for gradient, variable in found]
                continue
        if (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and _has_arrays(pair[1])
            and not isinstance(pair[0], Variable)
        ):
            raise _arrays_for_variables_error(
                f"{_kind(pair)} at position {position}: arrays in place of variables", called
            )
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], Variable):
            _refuse_keras(pair, called)
            raise StructureError(
                called,
                found=f"{_kind(pair)} at position {position}",
                rule="each element must be a pair (gradient, Variable)",
                remedy=f"write {called}(zip(gradients, variables))",
            )
        pairs.append((_dense(pair[0], pair[1], called), pair[1]))
    _check_variables(pairs, called)
    return pairs


def updatable_variables(var_list: PyTree, called: str) -> list[Variable]:
    """Returns the variables for which `Optimizer.build` creates slots.

    Raises:
        StructureError: There are objects that are no variables.
        ArgumentError: A variable occurs twice.
        VariableError: An optimizer cannot update one of the variables.
    """
    variables = [variable for _, variable in as_pairs([(None, one) for one in as_variables(var_list)], called)]
    for variable in variables:
        _check_kind(variable, called)
    return variables


def refuse_keys(given: Iterable[object], called: str, of_dicts: str) -> None:
    """Raises an error if gradients or variables are strings, as when `zip` iterates over the keys of dicts.

    Args:
        given: The gradients and variables.
        called: The method of the optimizer.
        of_dicts: The argument that is right for dicts of gradients and of variables.

    Raises:
        StructureError: There is a string.
    """
    key = next((one for one in given if isinstance(one, str)), None)
    if key is not None:
        raise StructureError(
            called,
            found=f"the string {key!r} in place of a gradient or a variable; "
            "zip and loops over a dict take its keys, not its values",
            rule="each element must be a pair (gradient, variable)",
            remedy=f"for dicts write {called}({of_dicts})",
        )


def _dense(gradient: object, variable: Variable, called: str) -> object:
    """Converts a sparse gradient to a dense array, and an int to a float; returns any other gradient unchanged.

    A gradient that is None on all replicas is None.

    An int would become an integer array, whose step is rounded to 0.
    """
    if isinstance(gradient, int):
        return float(gradient)
    if isinstance(gradient, PerReplica):
        return none_or_complete(called, gradient)
    shape = variable.component_shape
    if not isinstance(gradient, SparseRows) or (
        isinstance(gradient.dense_shape, tuple) and gradient.dense_shape != shape
    ):
        return gradient  # rows of another shape are refused later
    return SparseRows(gradient.values, gradient.indices, shape).to_dense()


def tree_pairs(gradients: PyTree, variables: PyTree, called: str) -> list[Pair]:
    """Pairs the leaves of a tree of gradients with the variables of a model that has the same structure.

    A variable that is not trainable and has no gradient is omitted. `gradients` of None means that no variable has a
    gradient.

    Raises:
        StructureError: The trees have different structures, or an array in place of a variable has a gradient.
    """
    places = flatten_with_path(variables, _is_leaf)[0]
    if not any(isinstance(leaf, Variable) for _, leaf in places):
        return []
    pairs = [(None, leaf) for _, leaf in places] if gradients is None else _paired(gradients, places, called)
    for gradient, leaf in pairs:
        if gradient is not None and _is_parameter(leaf):
            raise _arrays_for_variables_error(f"a gradient for an array of shape {np.shape(leaf)}", called)
    return [
        (gradient, variable)
        for gradient, variable in pairs
        if isinstance(variable, Variable) and (variable.trainable or gradient is not None)
    ]


def _paired(gradients: PyTree, places: Sequence[tuple[Any, Any]], called: str) -> list[tuple[Any, Any]]:
    """Pairs a tree of gradients with the leaves of a tree of variables, after checking that the paths match."""
    given = flatten_with_path(gradients, _is_leaf)[0]
    found = f"a tree of {len(given)} gradients was passed for a tree of {len(places)} variables"
    if len(given) == len(places):
        both = ((path, other) for (path, _), (other, _) in zip(given, places, strict=True))
        differing = next(((path, other) for path, other in both if not is_same_place(path, other)), None)
        if differing is None:
            return [(gradient, leaf) for (_, gradient), (_, leaf) in zip(given, places, strict=True)]
        found = "the gradient at {} of its tree was passed for the variable at {} of its tree".format(
            *map(jax.tree_util.keystr, differing)
        )
    raise StructureError(
        called,
        found=found,
        rule="the tree of gradients must have the structure of the tree of variables",
        remedy="pass what tape.gradient(loss, variables) returned, with the same variables",
    )


def as_variables(variables: PyTree) -> list[Any]:
    """Returns the trainable variables in a list or a tree (such as a model), in order.

    Elements of a list are returned unchanged.
    """
    found: list[Any] = []
    for one in [variables] if isinstance(variables, Variable) or not isinstance(variables, list | tuple) else variables:
        tree = [] if isinstance(one, Variable) else tree_pairs(None, one, "as_variables")
        found += [variable for _, variable in tree] or [one]
    return found


def in_insertion_order(variables: PyTree, found: Sequence[Variable]) -> list[Variable]:
    """Sorts the variables `found` in the order of the tree `variables`, and returns the sorted list.

    Dict entries count in insertion order, not in the order of their keys as in JAX.
    """
    leaves = jax.tree.leaves(variables, is_leaf=_is_leaf)
    rank = {id(leaves[at]): number for number, at in enumerate(positions_in_order(variables, is_leaf=_is_leaf))}
    return sorted(found, key=lambda variable: rank.get(id(variable), 0))


class PairsOf(list[Pair]):
    """A list of (gradient, variable) pairs that also stores the list or tree from which the variables come."""

    def __init__(self, pairs: Iterable[Pair], variables: PyTree) -> None:
        super().__init__(pairs)
        self.variables = variables


def variables_in_insertion_order(given: Sequence[Any], pairs: Sequence[Pair]) -> list[Variable]:
    """Returns the variables of `pairs`, sorted in the order of the user's argument `given`.

    Dict entries count in insertion order, not in the order of their keys as in JAX.
    """
    variables = given.variables if isinstance(given, PairsOf) else [one for _, one in given]
    return in_insertion_order(variables, [variable for _, variable in pairs])


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, Variable)


def _kind(pair: object) -> str:
    if isinstance(pair, tuple | list):
        return f"a {type(pair).__name__} of {', '.join(type(part).__name__ for part in pair) or 'nothing'}"
    return f"a {type(pair).__name__}"


def _refuse_keras(pair: object, called: str) -> None:
    for one in pair if isinstance(pair, tuple | list) else (pair,):
        if any(kind.__module__.partition(".")[0] == "keras" for kind in type(one).__mro__):
            raise StructureError(
                called,
                found=f"the {type(one).__name__} {getattr(one, 'path', one)!r} of Keras",
                rule="the optimizers of `mirrored` update variables of `mirrored`; Keras' optimizers update those of "
                "Keras, and sum the gradients of the replicas, too",
                remedy="create a Keras optimizer in the strategy's scope, as the model: keras.optimizers.SGD(...)",
            )


def _check_variables(pairs: Sequence[Pair], called: str) -> None:
    seen: set[int] = set()
    for gradient, variable in pairs:
        if id(variable) in seen:
            raise ArgumentError(
                called,
                found=f"variable {variable.name!r} was passed twice",
                rule="a call can update each variable only once",
                remedy="sum its gradients first: mirrored.aggregate_gradients([gradients_1, gradients_2])",
            )
        seen.add(id(variable))
        _refuse_component(variable, called)
        if gradient is not None:
            _check_kind(variable, called)


def _check_kind(variable: Variable, called: str) -> None:
    """Raises a `VariableError` if an optimizer cannot update a variable of this kind or dtype."""
    if variable.per_replica or not jnp.issubdtype(variable.dtype, jnp.inexact):
        kind = "sync-on-read" if variable.per_replica else str(variable.dtype)
        raise VariableError(
            called,
            found=f"variable {variable.name!r} is {kind}",
            rule="an optimizer can update only mirrored variables of floating-point or complex numbers",
            remedy="exclude it from the trained variables (trainable=False)",
        )


def _refuse_component(variable: object, called: str) -> None:
    if type(variable) is VariableComponent:  # for `isinstance` it is a variable
        raise VariableError(
            called,
            found=f"{variable.name!r} is one replica's copy of the variable {variable.container.name!r}",
            rule="an optimizer updates the copies of all replicas together",
            remedy="pass the variable itself, which is the attribute `container` of the copy",
        )


def _arrays_for_variables_error(found: str, called: str) -> StructureError:
    return StructureError(
        called,
        found=found,
        rule="an optimizer updates variables in place; arrays cannot be updated",
        remedy="convert the parameters first, params = mirrored.mirror(params) in strategy.scope(), "
        "and differentiate with respect to the resulting variables",
    )


def _is_parameter(leaf: object) -> bool:
    """Returns whether a leaf is a floating-point or complex array, which can be trained."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _has_arrays(tree: PyTree) -> bool:
    """Returns whether a tree contains plain arrays, i.e. parameters that `mirrored.mirror` has not converted."""
    return any(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree.leaves(tree))


# Sums the replicas' gradients in one merge, and computes the update once for all replicas.

Update = Callable[[Sequence[Any]], None]


def update_with_sums(
    gradients: Sequence[Any], update: Update, called: str, owner: object, *, check_scale: bool = True
) -> None:
    """Sums gradients over replicas in one all-reduce, and calls `update` with the sums in cross-replica context.

    In replica context this is one merge. The update is computed once per device for all virtual replicas of that device
    (in eager mode, once for all replicas), so its results are replicated by construction.

    Args:
        gradients: This replica's gradients.
        update: Receives the sums.
        called: The caller's name, for messages.
        owner: The object whose method calls this function. All replicas must call the method of the same object.
        check_scale: Whether the gradient of a mean over one replica's examples is too large (`LossScaleWarning`). False
            if `update` divides the sums by the number of examples on all replicas.
    """
    if not ambient().is_in_replica_context:
        update(_sums(gradients))
        return
    arrays = [as_array(gradient) for gradient in gradients]
    runner = ambient().runner
    if runner is None:
        update(arrays)
        return

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        rows = [list(components) for components in zip(*payloads, strict=True)]
        update(runner.reduce(ReduceOp.SUM, rows))
        if check_scale:
            runner.note_summed(called, rows)  # not for an update that raises
        return [[]] * len(payloads)

    run_merge(Merge(called, run, given=(same_object(owner, type(owner).__name__),)), arrays)


def update_with_sums_of(
    pairs: Sequence[Pair],
    extra: Sequence[Any],
    update: Callable[[Sequence[Pair], Sequence[Any]], None],
    called: str,
    owner: object,
    iterator: object = None,
) -> tuple[str, ...]:
    """Sums each variable's gradient over replicas, with zeros for missing gradients, and calls `update` with the sums.

    Gradients of different replicas are matched by variable, not by position in the list.

    Args:
        pairs: This replica's pairs, with None for a missing gradient.
        extra: Arrays that are also summed over replicas.
        update: Receives the (sum, variable) pairs and the sums of `extra`, in cross-replica context.
        called: The caller's name, for messages.
        owner: The object whose method calls this function. All replicas must call the method of the same object.
        iterator: The iterator from which the pairs were taken, if they were not in a list.

    Returns:
        The names of the variables for which no replica has a gradient.

    Raises:
        ArgumentError: No replica has any gradient, or replicas share an iterator.
    """
    here = ambient()
    runner = here.runner
    if runner is None or not here.is_in_replica_context:
        present, absent = with_gradients(pairs, called)

        def with_variables(sums: Sequence[Any]) -> None:
            variables = [variable for _, variable in present]
            update(list(zip(sums[: len(present)], variables, strict=True)), sums[len(present) :])

        update_with_sums([*(gradient for gradient, _ in present), *extra], with_variables, called, owner)
        return absent

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        check_iterators([taken for _, _, taken in payloads], called)
        variables, rows, absent = aligned([own for own, _, _ in payloads], runner, called)
        extras = [list(components) for components in zip(*(others for _, others, _ in payloads), strict=True)]
        sums = runner.reduce(ReduceOp.SUM, [*rows, *extras])
        update(list(zip(sums[: len(rows)], variables, strict=True)), sums[len(rows) :])
        runner.note_summed(called, rows)  # not for an update that raises
        return [absent] * len(payloads)

    own = [(None if gradient is None else as_array(gradient), variable) for gradient, variable in pairs]
    merge = Merge(called, run, given=(same_object(owner, type(owner).__name__),))
    return tuple(run_merge(merge, [own, [as_array(value) for value in extra], iterator]))


def note_summed(called: str, gradients: Sequence[Any]) -> None:
    """Records gradients that another library's optimizer sums over replicas, so that their scale can be checked.

    Context: replica context, in all replicas, directly before the sum. It has an effect in compiled runs only, and not
    under a transform, where replicas cannot wait for each other.
    """
    runner = ambient().runner
    if runner is None or is_eval(current_trace()) or trace_below_tapes(current_trace()) is not runner.base_trace:
        return

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        runner.note_summed(called, [list(row) for row in zip(*payloads, strict=True)])
        return [[]] * len(payloads)

    run_merge(Merge(called, run), list(gradients))


def _sums(gradients: Sequence[Any]) -> list[jax.Array]:
    """Sums per-replica gradients with one reduction in cross-replica context; returns all other gradients unchanged."""
    per_replica = [gradient for gradient in gradients if isinstance(gradient, PerReplica)]
    sums = iter(get_strategy().reduce(ReduceOp.SUM, per_replica, axis=None))
    return [next(sums) if isinstance(gradient, PerReplica) else as_array(gradient) for gradient in gradients]


def as_they_are(gradients: Sequence[Any], called: str) -> list[jax.Array]:
    """Returns already summed gradients unchanged, after checking that none is a per-replica value.

    Raises:
        ArgumentError: A gradient is a per-replica value.
    """
    if any(isinstance(gradient, PerReplica) for gradient in gradients):
        raise ArgumentError(
            called,
            found="the gradients are per-replica values, and their aggregation is skipped",
            rule="without aggregation, the gradient of a mirrored variable must be one array, equal on all replicas",
            remedy="omit skip_gradients_aggregation, or reduce the gradients first with strategy.reduce",
        )
    return [as_array(gradient) for gradient in gradients]


def as_array(gradient: Operand) -> jax.Array:
    """Converts a gradient, which may be a mirrored value or a variable, to a JAX array."""
    if isinstance(gradient, Mirrored):
        gradient = gradient.value
    return arrays.as_array(gradient.read_value() if isinstance(gradient, Variable) else payload_of(gradient))


def once(make: Callable[[], None]) -> None:
    """Calls `make()` in cross-replica context, a single time for all replicas of a `run`."""
    context = get_replica_context()
    if context is None:
        make()
    else:
        context.merge_call(lambda strategy: make())


def scope_of(variables: Sequence[Variable]) -> AbstractContextManager[Any]:
    """Returns the `scope()` of the strategy to which variables belong; an empty context if a scope is already open.

    Gradients that `strategy.run` returned may be applied outside every scope.
    """
    owner = next((variable.strategy for variable in variables if variable.strategy is not None), None)
    if owner is None or ambient().strategies:
        return nullcontext()
    scope: AbstractContextManager[Any] = owner.scope()
    return scope
