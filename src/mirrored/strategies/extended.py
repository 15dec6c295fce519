"""`StrategyExtended`: the lower-level methods of a strategy (`strategy.extended`), for library code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax

from mirrored._blocks import contextmanager
from mirrored._typing import Leaf, Operand, PyTree
from mirrored.errors import ArgumentError, ContextError
from mirrored.runtime.ambient import ambient, within
from mirrored.strategies import reducing
from mirrored.strategies.argument_checks import as_arguments
from mirrored.strategies.checks import refuse_in_replica
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues, Mirrored, PerReplica
from mirrored.values.sparse_rows import SparseRows
from mirrored.values.stacking import as_given
from mirrored.variables.variable import Variable

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


class StrategyExtended:
    """The lower-level methods of a strategy, available as `strategy.extended`, as in TensorFlow.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> with strategy.scope():
        ...     v = mr.Variable(1.0)
        >>> def merge(strategy, update):
        ...     total = strategy.extended.reduce_to("SUM", update, v)
        ...     strategy.extended.update(v, lambda v, t: v.assign_add(t), args=(total,))
        >>> strategy.run(lambda: mr.get_replica_context().merge_call(merge, args=(mr.stop_gradient(2.0),)))
        >>> float(v)
        5.0

    TensorFlow: `tf.distribute.StrategyExtended`.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    # Reductions

    def reduce_to(self, reduce_op: Any, value: Operand, destinations: Any, options: Any = None) -> Any:
        """Reduces a per-replica value over all replicas; every replica gets the result, whatever `destinations` is.

        Context: cross-replica, such as in a function passed to `merge_call`.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, a `VariableAggregation` of that name, or a custom reduction.
            value: A per-replica value, or a structure of per-replica values.
            destinations: A variable, a value or a device name. It does not change where the result is: on all replicas.
            options: Accepted for compatibility with TensorFlow and ignored.

        Returns:
            The structure of `value` with `Mirrored` leaves; with arrays if `destinations` is a device name.

        Raises:
            ArgumentError: As for `Strategy.reduce`.
            ContextError: The call is inside a replica.

        TensorFlow: `tf.distribute.StrategyExtended.reduce_to`, whose result is only on the devices of `destinations`.
        """
        refuse_in_replica("extended.reduce_to")
        reduced = reducing.reduce_structure(self._strategy, reduce_op, value, None, "StrategyExtended.reduce_to")
        return self._delivered(value, reduced, destinations)

    def _delivered(self, value: object, reduced: PyTree, destinations: object) -> Any:
        """Returns a reduced value as `destinations` requires: an array for one device, else a mirrored value."""
        if isinstance(destinations, str):
            return reduced
        given, _ = structures.flatten(value, also=SparseRows)
        results, treedef = structures.flatten(reduced, also=SparseRows)
        # A value that was already replicated is returned unwrapped.
        wrapped = [
            self._mirrored(result) if isinstance(leaf, DistributedValues) else result
            for leaf, result in zip(given, results, strict=True)
        ]
        return treedef.unflatten(wrapped)

    def batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any = None
    ) -> list[Any]:
        """Reduces many per-replica values over all replicas, with one collective for all of them.

        Otherwise like `reduce_to`: the same context, result for each value, and errors.

        Args:
            reduce_op: As in `reduce_to`.
            value_destination_pairs: Pairs of a value and its `destinations`, as in `reduce_to`.
            options: Accepted for compatibility with TensorFlow and ignored.
        """
        refuse_in_replica("extended.batch_reduce_to")
        values = [value for value, _ in value_destination_pairs]
        reduced = reducing.reduce_structure(self._strategy, reduce_op, values, None, "StrategyExtended.batch_reduce_to")
        pairs = zip(value_destination_pairs, reduced, strict=True)
        return [self._delivered(value, result, destinations) for (value, destinations), result in pairs]

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Returns `tensor` as a mirrored value: the same array on all replicas.

        A NumPy array is copied, and a variable is read.

        Raises:
            ArgumentError: Integers of 64 bits do not fit into 32.
        """
        return self._mirrored(structures.map_leaves(_read_or_copied, tensor))

    def _mirrored(self, value: object) -> Any:
        return value if value is None else Mirrored(value, self.num_local_replicas)

    # Variables

    def update(
        self, var: Variable, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        """Calls ``fn(var, *args, **kwargs)`` to update a variable on all replicas.

        Context: cross-replica. A mirrored variable is updated once for all replicas. For a sync-on-read variable, and
        if an argument is a per-replica value, every replica calls `fn` with its own components, as in `run`. What the
        replicas assign to a mirrored variable must be equal, or is averaged if its aggregation is MEAN and taken from
        the first replica if that is ONLY_FIRST_REPLICA. Other aggregations do not apply: each replica assigns the value
        that its copy is to have, as in TensorFlow. In replica context, `fn` is called directly.

        Args:
            var: The variable.
            fn: A function that assigns it. It receives the plain values of mirrored arguments.
            args: Positional arguments.
            kwargs: Keyword arguments.
            group: Whether to return one result, in which arrays are mirrored values if there are several replicas.
                False: a tuple with one result per replica.

        Raises:
            ArgumentError: `var` is not a variable of this strategy, or `args` is not a list or tuple.
            ReplicaDivergenceError: The replicas assign different values to a mirrored variable, which is not averaged.
        """
        if not isinstance(var, Variable) or (
            self._strategy.device_assignment is not None and var.strategy is not self._strategy
        ):
            raise ArgumentError(
                "StrategyExtended.update",
                found=f"{var!r} was not created in this strategy's scope",
                rule="a strategy can update only variables that were created in its scope",
                remedy="create the variable inside `with strategy.scope():`",
            )
        args = as_arguments("StrategyExtended.update", args, "update(var, fn, args=(x,))")
        if ambient().replica is None and (var.per_replica or _has_components((args, kwargs))):
            results = self._strategy.run(_as_update(fn), args=(var, *args), kwargs=kwargs)
            return results if group else self._strategy.experimental_local_results(results)
        own = structures.map_leaves(
            lambda leaf: leaf.value if isinstance(leaf, Mirrored) else leaf, (args, kwargs or {})
        )
        result = self._cross_replica(lambda: fn(var, *own[0], **own[1]))
        if not group:
            return (result,) * self.num_local_replicas
        if self.num_local_replicas == 1 or ambient().replica is not None:
            return result
        return structures.map_leaves(lambda leaf: self._mirrored(leaf) if isinstance(leaf, jax.Array) else leaf, result)

    def _cross_replica(self, call: Callable[[], Any]) -> Any:
        """Runs `call` in this strategy's cross-replica context, or directly if the caller is in replica context."""
        here = ambient()
        if here.replica is not None or here.strategies[-1:] == (self._strategy,):
            return call()
        with self._strategy.scope():
            return call()

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        """Calls ``fn(*args, **kwargs)`` once, in cross-replica context, to update state common to all replicas.

        Args:
            colocate_with: Accepted for compatibility with TensorFlow and ignored.
            fn: The function.
            args: Positional arguments.
            kwargs: Keyword arguments.
            group: Whether to return the result once. False: a tuple that repeats it once per local replica.
        """
        args = as_arguments("StrategyExtended.update_non_slot", args, "update_non_slot(var, fn, args=(x,))")
        result = self._cross_replica(lambda: fn(*args, **(kwargs or {})))
        return result if group else (result,) * self.num_local_replicas

    def read_var(self, v: Variable) -> Any:
        """Returns the current value of a variable."""
        return v.read_value()

    def value_container(self, value: object) -> Any:
        """Returns the variable of which `value` is one replica's copy; returns any other value unchanged."""
        return getattr(value, "container", value)

    def variable_created_in_scope(self, v: object) -> bool:
        """Returns whether the variable `v` was created in this strategy's scope."""
        return isinstance(v, Variable) and v.strategy is self._strategy

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: object) -> Iterator[None]:
        """Creates the variables of a ``with`` block on the same devices as a given variable.

        These are the devices of all replicas.

        Raises:
            ArgumentError: `colocate_with_variable` is not a variable of this strategy.
        """
        container = self.value_container(colocate_with_variable)
        if not self.variable_created_in_scope(container):
            raise ArgumentError(
                "StrategyExtended.colocate_vars_with",
                found=f"{colocate_with_variable!r} was not created in this strategy's scope",
                rule="variables can only be colocated with variables of the same strategy",
                remedy="pass a variable that was created inside `with strategy.scope():`",
            )
        with self._strategy.scope():
            yield

    def non_slot_devices(self, var_list: object) -> Any:
        """Returns `parameter_devices`, because non-slot variables are placed like all other variables."""
        return self.parameter_devices

    # Devices

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device names of this worker's replicas, one per replica, in TensorFlow's format.

        Raises:
            ContextError: This is the default strategy.
        """
        device_assignment = self._strategy.device_assignment
        if device_assignment is None:
            raise ContextError(
                "StrategyExtended.worker_devices",
                found="this is the default strategy",
                rule="the default strategy places nothing on devices, so it has no list of them",
                remedy="create a strategy (MirroredStrategy, OneDeviceStrategy), or use jax.devices()",
            )
        return tuple(device_assignment.name_of(replica) for replica in device_assignment.addressable_replicas)

    @property
    def num_local_replicas(self) -> int:
        """The number of replicas of this worker."""
        device_assignment = self._strategy.device_assignment
        return 1 if device_assignment is None else len(device_assignment.addressable_replicas)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The names of the devices that hold this worker's copies of variables; the same as `worker_devices`."""
        return self.worker_devices

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether all replicas need inputs of equal shapes; always False.

        Steps with unequal shapes run eagerly.
        """
        return False

    @property
    def experimental_between_graph(self) -> bool:
        """Whether the strategy belongs to a cluster, in which each worker process runs its own copy of the program.

        True with a cluster, even of one worker.
        """
        return self._strategy.cluster_resolver is not None

    @property
    def experimental_should_init(self) -> bool:
        """Whether this process initialises variables; always True.

        Each process initialises its own.
        """
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints: True only on the first worker."""
        return self._is_chief

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries (TensorBoard logs): True only on the first worker."""
        return self._is_chief

    @property
    def _is_chief(self) -> bool:
        device_assignment = self._strategy.device_assignment
        return (
            device_assignment is None
            or not device_assignment.spans_processes
            or jax.process_index() == device_assignment.processes[0]
        )

    # Running

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any] | DistributedValues = (), kwargs: Any = None
    ) -> Any:
        """Calls a function on every replica, like `Strategy.run`.

        `args` may also be a per-replica value: its component for each replica is that replica's tuple of arguments.
        """
        if isinstance(args, DistributedValues):
            return self._strategy.run(lambda own, **named: fn(*own, **named), args=(args,), kwargs=kwargs)
        args = as_arguments("StrategyExtended.call_for_each_replica", args, "call_for_each_replica(fn, args=(x,))")
        return self._strategy.run(fn, args=args, kwargs=kwargs)

    def local_results(self, value: object) -> tuple[Any, ...]:
        """Returns a tuple with the values of this process's replicas in a distributed value.

        The same as `Strategy.experimental_local_results`.
        """
        return self._strategy.experimental_local_results(value)

    def __repr__(self) -> str:
        return f"StrategyExtended({self._strategy!r})"


def _read_or_copied(leaf: Leaf) -> Any:
    """Reads a variable or copies a NumPy array.

    Any other leaf is returned unchanged (`as_given`).
    """
    return leaf.read_value() if isinstance(leaf, Variable) else as_given(leaf)


def _as_update(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `fn`, for replicas that assign the values of their copies: they are not summed."""

    @functools.wraps(fn)
    def update(*args: Any, **kwargs: Any) -> Any:
        with within(updates=True):
            return fn(*args, **kwargs)

    return update


def _has_components(tree: PyTree) -> bool:
    """Returns whether a leaf is a per-replica value."""
    return any(isinstance(leaf, PerReplica) for leaf in structures.flatten(tree)[0])
