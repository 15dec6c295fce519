"""Pytrees over variables: `mirror` puts their arrays on variables, `unmirror` reads them, `assign` writes them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.keys import implementation_of, is_key_dtype
from mirrored.errors import ArgumentTypeError, StructureError
from mirrored.runtime.ambient import ambient
from mirrored.variables import Variable, VariableAggregation, VariableSynchronization


class Bridge(Protocol):
    """What a framework does with its own objects."""

    def is_whole(self, value: Any) -> bool:
        """Whether `value` is an object of the framework that it mirrors as a whole."""
        ...

    def mirror(self, value: Any, path: str) -> Any:
        """Puts its state on variables."""
        ...

    def unmirror(self, value: Any) -> Any:
        """The object with its variables' values."""
        ...


# A framework that the program has not imported cannot have made the tree.
_BRIDGES: Final = {"equinox": "mirrored.integrations.equinox", "flax.nnx": "mirrored.integrations.flax"}


def mirror(tree: Any, strategy: Any = None) -> Any:
    """Puts the arrays of a model, or of any pytree, on variables of the strategy in force.

    What becomes of each array:

    | where | array | variable |
    |---|---|---|
    | pytree, Equinox module | floating or complex | mirrored, trainable |
    | pytree, Equinox module | integer, bool | mirrored |
    | pytree, Equinox module | random keys | mirrored: the same key on all replicas |
    | `equinox.nn.State` (batch statistics) | floating | one component per replica, MEAN on read |
    | Flax NNX | `Param` | mirrored, trainable |
    | Flax NNX | `BatchStat`, other floating variables | one component per replica, MEAN on read |
    | Flax NNX | a metric's state | one component per replica, SUM on read |
    | Flax NNX | counts, optimizer state | mirrored |
    | Flax NNX | random keys | one key; in `run` each replica draws from a key of its own |

    Context: cross-replica, in the strategy's scope; without a strategy the variables are plain.

    Args:
        tree: A Flax NNX module, an Equinox module, or a pytree of arrays (also of such modules). Leaves that are no
            arrays (functions, numbers, names) stay what they are.
        strategy: Whose variables they become. Default: the strategy whose scope is open.

    Returns:
        Flax NNX modules themselves, changed in place; of other trees one of the same structure with a `Variable` in
        place of each array. `GradientTape.gradient` takes it as sources and `Optimizer.apply_gradients` as variables.

    Raises:
        ArgumentTypeError: There is no array in it.
        MissingExtraError: It is an Equinox or Flax object, and that package is too old to be used.

    Example:
        >>> import mirrored as mr
        >>> params = mr.mirror({"w": jnp.ones(2), "b": jnp.zeros(())})
        >>> with mr.GradientTape() as tape:
        ...     loss = jnp.sum(params["w"] * 3.0) + params["b"]
        >>> {name: gradient.tolist() for name, gradient in tape.gradient(loss, params).items()}
        {'b': 1.0, 'w': [3.0, 3.0]}

    TensorFlow: there a model makes variables itself. Models of JAX's libraries hold arrays; this is the step between.
    """
    with _scope(strategy):
        bridges = _bridges()
        mirrored = _map(tree, bridges, lambda bridge, value, path: bridge.mirror(value, path), _variable_for)
        if not any(isinstance(leaf, Variable) for leaf in _leaves(mirrored)):
            raise ArgumentTypeError(
                "mirrored.mirror",
                found=f"a {type(tree).__name__} without arrays",
                rule="it takes Flax NNX modules, Equinox modules and pytrees of arrays",
                remedy="make Keras models inside strategy.scope(); pass the pytree that holds the parameters",
            )
        return mirrored


def unmirror(tree: Any) -> Any:
    """The tree with the present value in place of each variable: an ordinary model or pytree of arrays.

    Context: any. Under a tape the reads are recorded, so that gradients with respect to `tree` flow through what is
    computed from the result. For code that asks for arrays by type (`equinox.filter_jit`, `jax.vmap` outside a tape).

    Args:
        tree: What `mirror` returned, or any pytree; leaves that are no variables stay what they are.

    Example:
        >>> import mirrored as mr
        >>> unmirror(mr.mirror({"w": jnp.ones(2)}))
        {'w': Array([1., 1.], dtype=float32)}
    """
    bridges = _bridges()
    return _map(tree, bridges, lambda bridge, value, _: bridge.unmirror(value), lambda leaf, _: _read(leaf))


def assign(tree: Any, values: Any) -> None:
    """Assigns a tree of values to a tree of variables, each by its variable's rules.

    Context: any, as `Variable.assign`.

    Args:
        tree: What `mirror` returned.
        values: A tree of the same structure; what stands where `tree` has no variable is ignored.

    Raises:
        StructureError: The structures differ, or there is a new value where `tree` has a Python number.

    Example:
        >>> import mirrored as mr
        >>> params = mr.mirror({"w": jnp.ones(2)})
        >>> mr.assign(params, {"w": jnp.zeros(2)})
        >>> params["w"].numpy().tolist()
        [0.0, 0.0]
    """
    mine, structure = jax.tree.flatten(tree, is_leaf=_is_leaf)
    given, other = jax.tree.flatten(values, is_leaf=_is_leaf)
    if len(mine) != len(given):
        raise StructureError(
            "mirrored.assign",
            found=f"values of structure {other} for {structure}",
            rule="there is one value for each leaf",
            remedy="compute the values from mirrored.unmirror(tree)",
        )
    for variable, value in zip(mine, given, strict=True):
        _check_kept(variable, value)
    for variable, value in zip(mine, given, strict=True):
        if isinstance(variable, Variable) and value is not variable:
            variable.assign(value, read_value=False)


def _check_kept(leaf: Any, value: Any) -> None:
    """Refuses a new value for a Python number, which would be lost: `TrainState.step` of Linen, for instance."""
    if not isinstance(leaf, (int, float, complex)) or value is leaf:
        return
    if isinstance(value, (int, float, complex)) and value == leaf:
        return
    raise StructureError(
        "mirrored.assign",
        found=f"a new value ({value!r}) for the Python number {leaf!r}, which is no variable",
        rule="mirror puts arrays on variables; Python numbers stay what they are",
        remedy="make it an array before mirroring: state.replace(step=jnp.zeros((), jnp.int32)) for a TrainState",
    )


def is_array(value: Any) -> bool:
    """Whether it is an array that can live on a variable."""
    return value.dtype.kind in "biufcV" if isinstance(value, np.ndarray) else isinstance(value, jax.Array)


def variable_of(value: Any, name: str) -> Variable:
    """A mirrored variable with this value; tapes watch it if it is differentiable."""
    return Variable(value, trainable=bool(jnp.issubdtype(value.dtype, jnp.inexact)), name=name)


def statistic_of(value: Any, name: str, aggregation: VariableAggregation = VariableAggregation.MEAN) -> Variable:
    """A variable with one component per replica, aggregated on read."""
    return Variable(
        value,
        trainable=False,
        name=name,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )


def value_to_move(variable: Variable) -> Any:
    """A variable's value, free to go to other devices."""
    if not is_key_dtype(variable.dtype):
        return variable.numpy()
    data = np.asarray(jax.random.key_data(variable.read_value()))
    return jax.random.wrap_key_data(jnp.asarray(data), impl=implementation_of(variable.dtype))


def named(path: Any, default: str = "parameter") -> str:
    """A variable's name from where it sits: ``layers/0/weight``."""
    return jax.tree_util.keystr(path, simple=True, separator="/").replace(".", "") or default


def belongs_here(variable: Variable) -> bool:
    """Whether a variable lives where the strategy in force (or none) would put it."""
    strategies = ambient().strategies
    return variable.device_assignment is None if not strategies else variable.strategy is strategies[-1]


def _variable_for(leaf: Any, name: str) -> Any:
    if isinstance(leaf, Variable):
        return leaf if belongs_here(leaf) else variable_of(value_to_move(leaf), leaf.name)
    return variable_of(leaf, name) if is_array(leaf) else leaf


def _read(leaf: Any) -> Any:
    return leaf.read_value() if isinstance(leaf, Variable) else leaf


def _map(tree: Any, bridges: list[Bridge], whole: Callable[[Bridge, Any, str], Any], one: Callable[..., Any]) -> Any:
    """Maps the leaves of a tree, and what a framework takes as a whole."""

    def owner(value: Any) -> Bridge | None:
        return next((bridge for bridge in bridges if bridge.is_whole(value)), None)

    def mapped(path: Any, value: Any) -> Any:
        bridge = owner(value)
        return one(value, named(path)) if bridge is None else whole(bridge, value, named(path, ""))

    return jax.tree_util.tree_map_with_path(
        mapped, tree, is_leaf=lambda value: _is_leaf(value) or owner(value) is not None
    )


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=_is_leaf)


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Variable)


def _scope(strategy: Any) -> AbstractContextManager[Any]:
    if strategy is None or strategy in ambient().strategies[-1:]:
        return nullcontext()
    scope: AbstractContextManager[Any] = strategy.scope()
    return scope


def _bridges() -> list[Bridge]:
    """The bridges to the frameworks that this program uses."""
    return [importlib.import_module(bridge).BRIDGE for module, bridge in _BRIDGES.items() if module in sys.modules]
