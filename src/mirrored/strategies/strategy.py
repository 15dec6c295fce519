"""`Strategy`: one program, N replicas in lock-step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mirrored._jax.host_memory import frozen
from mirrored._jax.tracebacks import boundary
from mirrored.collectives.cross_device_ops import CrossDeviceOps
from mirrored.compilation.function import Function, functions_run_eagerly
from mirrored.errors import ArgumentError, ArgumentTypeError
from mirrored.runtime.ambient import ambient, within
from mirrored.strategies import reducing
from mirrored.strategies.compiled import run_compiled
from mirrored.strategies.context import ReplicaContext
from mirrored.strategies.eager_runner import nested_run, run_alone, run_eager, run_plainly
from mirrored.strategies.extended import StrategyExtended
from mirrored.strategies.inputs import DistributesInput
from mirrored.strategies.older_names import OlderNames
from mirrored.strategies.out_specs import OutSpecs, mark_made_by, warn_if_fed_back
from mirrored.strategies.refusing import refuse_in_replica, refuse_mixing
from mirrored.strategies.scope import Scope
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues


class Strategy(DistributesInput, OlderNames):
    """Runs functions on replicas and keeps their variables equal. Made as `MirroredStrategy` and its kin.

    Args:
        layout: Which replica lives on which device; None is the default strategy: one replica, wherever JAX puts it.
        cross_device_ops: How values of several replicas become one.

    TensorFlow: `tf.distribute.Strategy`.
    """

    def __init__(self, device_assignment: DeviceAssignment | None, cross_device_ops: CrossDeviceOps) -> None:
        self._device_assignment = device_assignment
        self._cross_device_ops = cross_device_ops
        self._extended = StrategyExtended(self)

    @property
    def device_assignment(self) -> DeviceAssignment | None:
        """Which replica lives on which device."""
        return self._device_assignment

    @property
    def cross_device_ops(self) -> CrossDeviceOps:
        """How values of several replicas become one."""
        return self._cross_device_ops

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        here = ambient()
        if here.runner is not None and here.replica is not None:
            here.runner.tell_apart(here.replica.local_index)
        return 1 if self._device_assignment is None else self._device_assignment.num_replicas

    @property
    def extended(self) -> StrategyExtended:
        """The lower-level half: `reduce_to`, `update`, `broadcast_to`, ..."""
        return self._extended

    @property
    def cluster_resolver(self) -> Any:
        """Which tasks there are; None for strategies of one process."""
        return None

    # Contexts

    def scope(self) -> Scope:
        """Makes this the current strategy: variables made inside are mirrored on its replicas.

        Context: cross-replica. May be nested in itself, and entered several times.

        Raises:
            ContextError: On entering it inside `run`, or inside the scope of another strategy.
        """
        return Scope(self)

    def check_scope(self) -> None:
        """Refuses to open a scope where none may be opened. `Scope` calls it."""
        refuse_in_replica("scope")
        refuse_mixing(self, "scope")

    @boundary
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
        *,
        out_specs: Any = None,
    ) -> Any:
        """Calls `fn` on every replica, in lock-step.

        Context: cross-replica. Outside `function` the replicas really run one after another, each on its own device;
        inside (or if `fn` itself is a `function`) one compiled program runs on all devices at once. While an eager
        run lasts, other threads may read variables; what replaces values (another run, a compiled step, an assignment,
        an optimizer) or saves them waits for its end. So an eager run must not wait for such a thread.

        An exception in `fn` leaves the strategy's variables as they were before the run. The default strategy, which
        `get_strategy` gives outside any scope, calls `fn` as plain Python: what was assigned before stays assigned.

        Args:
            fn: The function. A `function` is compiled around the whole run.
            args: Positional arguments, a list or tuple; of per-replica values at any depth, each replica gets its
                component.
            kwargs: Keyword arguments, likewise.
            options: Accepted for TensorFlow's sake.
            out_specs: Which results are equal on all replicas, as in `jax.shard_map`: a tree prefix of the result, with
                ``PartitionSpec()`` for what is equal, and ``PartitionSpec("replica")`` for what is per replica. What is
                equal comes back as plain arrays, on all devices. The declaration is checked: in compiled code while it
                is traced, in eager code by comparing bits. Default: every result is per replica.

        Returns:
            The structure that `fn` returns, with per-replica leaves except where `out_specs` says otherwise; an object
            that is the very same on all replicas (None, a variable) stays itself. With one replica: exactly what `fn`
            returns.

        Raises:
            ContextError: Inside another run's replica, or in another strategy's scope.
            ArgumentError: `args` is no list or tuple.
            ReplicaDivergenceError: A mirrored variable would differ between replicas, or a result that `out_specs` declares
                equal.
            MergeError: The replicas do not meet at the same merges.

        Warns:
            DivergingStateWarning: `fn` gets per-replica results of its own as arguments: without `out_specs` each
                replica trains a model of its own.

        Example:
            >>> import mirrored as mr
            >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
            >>> strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group * 10)
            PerReplica:{
              0: 0,
              1: 10
            }
        """
        if not isinstance(args, (list, tuple)):
            raise ArgumentError(
                "Strategy.run",
                found=f"args={args!r}, a {type(args).__name__}",
                rule="args is a list or tuple of the function's positional arguments",
                remedy="run(fn, args=(x,)) for a single argument x",
            )
        refuse_in_replica("run")
        refuse_mixing(self, "run")
        kwargs, specs = kwargs or {}, OutSpecs(out_specs)
        if callable(fn) and isinstance(type(fn).__call__, Function):
            fn = fn.__call__  # type: ignore[operator]
        here = ambient()
        if here.driver is not None and here.store is None and here.runner is None and not isinstance(fn, Function):
            fn = here.driver.compiled(fn)
        if isinstance(fn, Function):
            if here.store is None and here.runner is None and not functions_run_eagerly():
                return fn.around(self, functools.partial(self._runs, out_specs), specs.key)(*args, **kwargs)
            fn = fn.python_function
        with within(strategies=(*ambient().strategies, self)):
            if self._device_assignment is None or self._device_assignment.num_replicas == 1 or specs.is_given:
                return self._run(fn, args, kwargs, specs)
            made_by = warn_if_fed_back(fn, (args, kwargs))
            result = self._run(fn, args, kwargs, specs)
            mark_made_by(result, made_by)
            return result

    def _runs(self, out_specs: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            # Where shapes differ between replicas this runs eagerly, also in a loop that would compile it anew.
            with within(driver=None):
                return self.run(fn, args, kwargs, out_specs=out_specs)

        return run

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], specs: OutSpecs) -> Any:
        here = ambient()
        if here.store is None:
            # Operations on a NumPy argument read its buffer after `run` has returned, when the caller may refill it.
            args, kwargs = structures.map_leaves(frozen, (tuple(args), kwargs))
        if self._device_assignment is None or self.num_replicas_in_sync == 1:
            mine_args, mine_kwargs = structures.select((tuple(args), kwargs), 0)
            call = run_plainly if self._device_assignment is None or here.store is not None else run_alone
            with within(replica=ReplicaContext(self, 0, 0), runner=None):
                result = call(fn, mine_args, mine_kwargs)
            return specs.as_arrays(result) if specs.is_given else result
        if here.runner is not None:
            return nested_run(fn, args, kwargs, specs)
        if here.store is not None:
            return run_compiled(self, fn, args, kwargs, specs)
        return run_eager(self, fn, args, kwargs, specs)

    # Results

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """Reduces a per-replica value to one value, as it is on every replica.

        Context: cross-replica, eager or compiled.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, their names in any case, or a custom reduction.
            value: A per-replica value, or a structure of such.
            axis: None: the components are reduced with each other. An int or several: each component is also reduced
                along these dimensions; MEAN then weights by the true number of elements, also of uneven or empty
                shares.

        Returns:
            Arrays in the structure of `value`.

        Raises:
            ArgumentError: `reduce_op` is none, an axis is out of range, or SUM of a value that is not per replica.
            ContextError: Inside a replica.

        Example:
            >>> import mirrored as mr
            >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
            >>> ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 1.0)
            >>> float(strategy.reduce("SUM", ids, axis=None))
            3.0
        """
        refuse_in_replica("reduce")
        refuse_mixing(self, "reduce")
        return reducing.reduce_structure(self, reduce_op, value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates a per-replica value's components along `axis`, in replica order; sizes along it may differ.

        Context: cross-replica, eager or compiled.

        Raises:
            ArgumentError: Scalars, an axis out of range, or other dimensions that differ.
            ContextError: Inside a replica.
        """
        refuse_in_replica("gather")
        refuse_mixing(self, "gather")
        return reducing.gather_structure(self, value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The components of a value on this process's replicas, always a tuple.

        Context: cross-replica. A structure gives a tuple of structures; a plain value a tuple of one; a structure
        without anything in it one for each replica.
        """
        if isinstance(value, DistributedValues):
            return tuple(value.values)
        leaves, treedef = structures.flatten(value)
        if not leaves:
            return (value,) * len(self._extended.worker_devices)
        if not any(isinstance(leaf, DistributedValues) for leaf in leaves):
            return (value,)
        counts = [len(leaf.values) if isinstance(leaf, DistributedValues) else 0 for leaf in leaves]
        return tuple(
            structures.unflatten(
                treedef, [leaf.values[i] if isinstance(leaf, DistributedValues) else leaf for leaf in leaves]
            )
            for i in range(max(counts))
        )

    local_results = experimental_local_results

    def __repr__(self) -> str:
        where = (
            "one replica, wherever JAX puts it" if self._device_assignment is None else repr(self._device_assignment)
        )
        return f"{type(self).__name__}({where})"

    def __copy__(self) -> Strategy:
        # A strategy is a place, not a value: copies of models keep living where they were.
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Strategy:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ArgumentTypeError(
            f"pickle of {type(self).__name__}",
            found=f"{self!r}",
            rule="devices have no meaning in another process, so strategies are not pickled",
            remedy=f"make the strategy in the other process: {type(self).__name__}(...)",
        )
