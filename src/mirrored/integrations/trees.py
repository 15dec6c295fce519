"""Converts the arrays of models and pytrees to variables (`mirror`) and back (`unmirror`).

`assign` writes new values to the variables.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import implementation_of, is_key_dtype
from mirrored._jax.traces import Tracer
from mirrored._jax.trees import flatten_with_path, in_order_of, is_same_place, tree_flatten
from mirrored._typing import Array, HostArray, Leaf, PyTree
from mirrored.errors import ArgumentTypeError, StructureError
from mirrored.runtime.ambient import ambient
from mirrored.values.attributes import has_attribute
from mirrored.variables import Variable, VariableAggregation, VariableSynchronization
from mirrored.variables.access import assign_all
from mirrored.variables.state_lock import together

if TYPE_CHECKING:
    from mirrored.strategies import Strategy


class Bridge(Protocol):
    """The interface of adapters by which `mirror` and `unmirror` convert objects of Flax NNX and Equinox."""

    def converts(self, value: object) -> bool:
        """Returns whether this adapter converts `value` as a whole, instead of each of its pytree leaves separately."""
        ...

    def mirror(self, value: PyTree, path: str) -> Any:
        """Returns the framework object `value` with `mirrored` variables in place of its arrays."""
        ...

    def unmirror(self, values: list[Any]) -> list[Any]:
        """Returns copies of framework objects of a tree, with arrays in place of their `mirrored` variables."""
        ...

    def assignment_target(self, value: object) -> tuple[Variable, Callable[[Any], Any]] | None:
        """Returns the `mirrored.Variable` behind `value`, and a function that converts new values for the variable.

        None if the adapter does not assign such values.
        """
        ...


# Bridges of frameworks that the program has not imported are not loaded: the tree cannot contain their objects.
# Keras is connected by its first use in a scope: before, and on another backend of Keras, it has no such objects.
_BRIDGES: Final = {
    "equinox": "mirrored.integrations.equinox",
    "flax.nnx": "mirrored.integrations.flax",
    "mirrored.integrations.keras": "mirrored.integrations.keras",
}
_NUMBERS: Final = (int, float, complex, np.number, np.bool_)


def mirror(tree: PyTree, strategy: Strategy | None = None) -> Any:
    """Replaces each array of a model or pytree with a `mirrored.Variable` of the current strategy.

    The kind of variable depends on the array:

    ======================  ===========================  ===============================================
    where                   array                        variable
    ======================  ===========================  ===============================================
    pytree, Equinox module  floating or complex          mirrored, trainable
    pytree, Equinox module  integer, bool                mirrored
    pytree, Equinox module  random keys                  mirrored: the same key on all replicas
    `equinox.nn.State`      floating                     one component per replica, MEAN on read
    Flax NNX                `Param`                      mirrored, trainable
    Flax NNX                `BatchStat`, other floating  one component per replica, MEAN on read
    Flax NNX                a metric's state             one component per replica, SUM on read
    Flax NNX                counts, optimizer state      mirrored
    Flax NNX                random keys                  one key; in `run`, a key of its own per replica
    ======================  ===========================  ===============================================

    Context: cross-replica, in the strategy's scope. Without a strategy, the variables are plain variables.

    Args:
        tree: A Flax NNX module, an Equinox module, or a pytree of arrays (also of such modules). Leaves that are not
            arrays (functions, numbers, names) are unchanged.
        strategy: The strategy to which the variables belong. Default: the one whose scope is open.

    Returns:
        A Flax NNX module, or a state of NNX variables, is changed in place and returned. For other trees, a tree of the
        same structure with a `Variable` in place of each array. `GradientTape.gradient` accepts it as sources and
        `Optimizer.apply_gradients` as variables.

    Raises:
        ArgumentTypeError: The tree contains no array.
        MissingExtraError: The tree contains an Equinox or Flax object, and the installed package is too old.

    Example:
        >>> import mirrored as mr
        >>> params = mr.mirror({"w": jnp.ones(2), "b": jnp.zeros(())})
        >>> with mr.GradientTape() as tape:
        ...     loss = jnp.sum(params["w"] * 3.0) + params["b"]
        >>> {name: gradient.tolist() for name, gradient in tape.gradient(loss, params).items()}
        {'w': [3.0, 3.0], 'b': 1.0}

    TensorFlow: no equivalent, because TensorFlow's models create variables themselves. Models of JAX libraries hold
    arrays, which `mirror` converts.
    """
    with _scope(strategy):
        bridges = _bridges()
        one = functools.partial(_variable_for, made={})
        mirrored = _map(tree, bridges, lambda bridge, value, path: bridge.mirror(value, path), one)
        if not any(isinstance(leaf, Variable) for leaf in _leaves(mirrored)):
            raise ArgumentTypeError(
                "mirrored.mirror",
                found=f"a {type(tree).__name__} without arrays was passed",
                rule="the argument must be a Flax NNX module, an Equinox module or a pytree with arrays",
                remedy="pass the pytree that holds the parameters; create Keras models inside strategy.scope() instead",
            )
        return mirrored


def unmirror(tree: PyTree) -> Any:
    """Returns a copy of a model or pytree with arrays in place of its `mirrored` variables.

    Use it for code that accepts only arrays (`equinox.filter_jit`, `jax.vmap` outside a tape).

    Context: any. A tape records the reads, so gradients with respect to `tree` flow through computations on the result.

    Args:
        tree: The result of `mirror`, or any pytree. Leaves that are not variables are unchanged.

    Example:
        >>> import mirrored as mr
        >>> unmirror(mr.mirror({"w": jnp.ones(2)}))
        {'w': Array([1., 1.], dtype=float32)}

    TensorFlow: no equivalent.
    """
    bridges = _bridges()
    found: dict[Bridge, list[Any]] = {bridge: [] for bridge in bridges}

    def noted(bridge: Bridge, value: Any, _: str) -> Any:
        found[bridge].append(value)
        return value

    # A bridge converts all its objects of the tree at once, because they may share parts.
    _map(tree, bridges, noted, lambda leaf, _: leaf)
    made = {bridge: iter(bridge.unmirror(values)) for bridge, values in found.items() if values}
    return _map(tree, bridges, lambda bridge, _value, _path: next(made[bridge]), lambda leaf, _: _read(leaf))


def assign(tree: PyTree, values: PyTree) -> None:
    """Assigns the values in one pytree to the variables in another pytree of the same structure.

    Context: any, as for `Variable.assign`.

    Args:
        tree: The result of `mirror`, or a tree of Keras variables.
        values: A tree of the same structure. Values at leaves of `tree` that are not variables are ignored.

    Raises:
        StructureError: The structures differ, or `values` has a value for None, or a new value for a number.
        ArgumentTypeError: The tree has arrays or models, and no variable.

    Example:
        >>> import mirrored as mr
        >>> params = mr.mirror({"w": jnp.ones(2)})
        >>> mr.assign(params, {"w": jnp.zeros(2)})
        >>> params["w"].numpy().tolist()
        [0.0, 0.0]

    TensorFlow: no equivalent.
    """
    assignment_target = functools.partial(_assignment_target, bridges=_bridges())
    places, structure = flatten_with_path(tree, lambda value: _is_leaf(value) or assignment_target(value) is not None)
    given, other = flatten_with_path(values, _is_leaf)
    both = zip(places, given, strict=False)
    if len(places) != len(given) or not all(is_same_place(path, other_path) for (path, _), (other_path, _) in both):
        raise StructureError(
            "mirrored.assign",
            found=f"values has the structure {other}, the tree has {structure}",
            rule="values must have one value for each leaf of the tree",
            remedy="compute the values from mirrored.unmirror(tree)",
        )
    pairs = [
        (leaf, value) if (found := assignment_target(leaf)) is None else (found[0], found[1](value))
        for (_, leaf), (_, value) in zip(places, given, strict=True)
    ]
    for variable, value in pairs:
        _check_kept(variable, value)
    _check_assignable(pairs)
    changed = [(one, value) for one, value in pairs if isinstance(one, Variable) and value is not one]
    # All values are read before the first assignment: `values` may hold variables of `tree` at other places.
    now = [value.read_value() if isinstance(value, Variable) else value for _, value in changed]
    variables = [variable for variable, _ in changed]
    if ambient().replica is None:
        together(lambda: assign_all(variables, now))
    else:
        assign_all(variables, now)  # If it raises, the run undoes all assignments.


def _assignment_target(leaf: object, bridges: Sequence[Bridge]) -> tuple[Variable, Callable[[Any], Any]] | None:
    return next((found for bridge in bridges if (found := bridge.assignment_target(leaf)) is not None), None)


def _check_kept(leaf: object, value: object) -> None:
    """Raises StructureError if a new value would be lost because the tree holds a number or None, not a variable."""
    if leaf is None and value is not None:
        raise StructureError(
            "mirrored.assign",
            found=f"the tree has None where values has {type(value).__name__}",
            rule="only variables can be assigned; equinox.filter(model, equinox.is_array) has None for each variable",
            remedy="pass the tree that mirror has returned: assign(model, values)",
        )
    if isinstance(leaf, (dict, list)) and value is not leaf:
        raise StructureError(
            "mirrored.assign",
            found=f"the tree has an object of type {type(leaf).__name__}, which JAX takes as one leaf",
            rule="only variables can be assigned; a subclass of dict or list is not registered with JAX",
            remedy="use a plain dict or list, or register the class: jax.tree_util.register_pytree_node",
        )
    if not isinstance(leaf, _NUMBERS) or value is leaf:
        return
    if isinstance(value, _NUMBERS) and value == leaf:
        return
    raise StructureError(
        "mirrored.assign",
        found=f"the number {leaf!r} has the new value {value!r}, and is not a variable",
        rule="only variables can be assigned; mirror converts arrays to variables, but not numbers of Python and NumPy",
        remedy="make it an array before mirroring: state.replace(step=jnp.zeros((), jnp.int32)) for a TrainState",
    )


def _check_assignable(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Raises ArgumentTypeError if new values are assigned to a tree that has arrays or models but no variables."""
    if any(isinstance(leaf, Variable) for leaf, _ in pairs):
        return
    for leaf, value in pairs:
        methods = ("assign", "trainable_variables")
        if value is not leaf and (is_array(leaf) or any(has_attribute(leaf, name) for name in methods)):
            raise ArgumentTypeError(
                "mirrored.assign",
                found=f"the tree has no variable; it has a {type(leaf).__name__}",
                rule="only variables can be assigned: those of a tree that mirror has returned, or of Keras",
                remedy="pass params = mirrored.mirror(params); for a Keras model, model.trainable_variables",
            )


def is_array(value: object) -> bool:
    """Returns whether `value` is a JAX or NumPy array that a variable can store."""
    return value.dtype.kind in "biufcV" if isinstance(value, np.ndarray) else isinstance(value, jax.Array)


def variable_of(value: Array | HostArray, name: str) -> Variable:
    """Creates a mirrored variable with the given value; trainable if the dtype is floating or complex."""
    return Variable(value, trainable=bool(jnp.issubdtype(value.dtype, jnp.inexact)), name=name)


def statistic_of(
    value: Array | HostArray, name: str, aggregation: VariableAggregation = VariableAggregation.MEAN
) -> Variable:
    """Creates a variable with a separate value per replica; reads outside `strategy.run` return the mean or sum.

    They return `value` until a replica assigns another one.
    """
    variable = Variable(
        value,
        trainable=False,
        name=name,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )
    _share_out(variable, value)
    return variable


def _share_out(variable: Variable, value: Any) -> None:
    """Divides the initial value of a sum-aggregated variable among replicas: their values sum to the initial value."""
    is_sum = variable.aggregation is VariableAggregation.SUM and variable.num_replicas > 1
    if is_sum and ambient().replica is None and not isinstance(value, Tracer) and np.any(np.asarray(value)):
        variable.assign(value)


def moved(variable: Variable) -> Variable:
    """Creates a copy of a variable in the current strategy, with the same value and options."""
    value = _value_to_move(variable)
    made = Variable(
        value,
        trainable=variable.trainable,
        name=variable.name,
        synchronization=variable.synchronization,
        aggregation=variable.aggregation,
        shape=variable.shape,
        constraint=variable.constraint,
    )
    if made.per_replica:
        _share_out(made, value)
    return made


def _value_to_move(variable: Variable) -> Any:
    """Returns a variable's value for use on any device: a NumPy array, or an uncommitted random key."""
    if not is_key_dtype(variable.dtype):
        return variable.numpy()
    data = np.asarray(jax.random.key_data(variable.read_value()))
    return jax.random.wrap_key_data(jnp.asarray(data), impl=implementation_of(variable.dtype))


def named(path: tuple[Any, ...], default: str = "parameter") -> str:
    """Returns the name of a variable from its path in a pytree, such as ``layers/0/weight``."""
    return jax.tree_util.keystr(path, simple=True, separator="/").replace(".", "") or default


def belongs_here(variable: Variable) -> bool:
    """Returns whether a variable belongs to the strategy whose scope is open.

    Outside every scope, returns whether the variable has no strategy.
    """
    strategies = ambient().strategies
    return variable.device_assignment is None if not strategies else variable.strategy is strategies[-1]


def _variable_for(leaf: Leaf, name: str, made: dict[int, Variable]) -> Any:
    if isinstance(leaf, Variable):
        if id(leaf) not in made:  # tied: the leaf stands at several places of the tree
            made[id(leaf)] = leaf if belongs_here(leaf) else moved(leaf)
        return made[id(leaf)]
    return variable_of(leaf, name) if is_array(leaf) else leaf


def _read(leaf: object) -> Any:
    return leaf.read_value() if isinstance(leaf, Variable) else leaf


def _map(tree: PyTree, bridges: list[Bridge], whole: Callable[[Bridge, Any, str], Any], one: Callable[..., Any]) -> Any:
    """Converts a tree: applies `whole` to the objects that a bridge converts, and `one` to all other leaves."""

    def owner(value: object) -> Bridge | None:
        return next((bridge for bridge in bridges if bridge.converts(value)), None)

    def mapped(path: tuple[Any, ...], value: Leaf) -> Any:
        bridge = owner(value)
        return one(value, named(path)) if bridge is None else whole(bridge, value, named(path, ""))

    places, treedef = flatten_with_path(tree, lambda value: _is_leaf(value) or owner(value) is not None)
    made = jax.tree_util.tree_unflatten(treedef, [mapped(path, leaf) for path, leaf in places])
    return in_order_of(tree, made)


def _leaves(tree: PyTree) -> list[Any]:
    return tree_flatten(tree, _is_leaf)[0]


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, Variable)


def _scope(strategy: Strategy | None) -> AbstractContextManager[Any]:
    if strategy is None or strategy in ambient().strategies[-1:]:
        return nullcontext()
    scope: AbstractContextManager[Any] = strategy.scope()
    return scope


def _bridges() -> list[Bridge]:
    """Returns the installed bridges (adapters) to the frameworks that the program has imported."""
    used = [bridge for module, bridge in _BRIDGES.items() if module in sys.modules]
    return [importlib.import_module(bridge).BRIDGE for bridge in used if importlib.util.find_spec(bridge) is not None]
