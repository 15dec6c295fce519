"""`Strategy`: the base class of strategies, which run one program on N synchronous replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, SupportsIndex

from mirrored._jax.arrays import frozen
from mirrored._typing import PyTree
from mirrored.collectives.cross_device_ops import CrossDeviceOps
from mirrored.compilation.function import Function
from mirrored.config import functions_run_eagerly
from mirrored.errors import ArgumentError, ArgumentTypeError
from mirrored.runtime import hooks
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.component_reads import component_of
from mirrored.runtime.entry_point import entry_point, restoring
from mirrored.strategies import reducing
from mirrored.strategies.argument_checks import wrong_arguments_error
from mirrored.strategies.checks import (
    axis_names_explained,
    check_context,
    explicit_axes_explained,
    mark_made_by,
    warn_if_fed_back,
)
from mirrored.strategies.compiled import run_compiled
from mirrored.strategies.context import ReplicaContext
from mirrored.strategies.declared_results import OutSpecs
from mirrored.strategies.eager import nested_run, run_alone, run_eager, run_inside, run_plainly
from mirrored.strategies.extended import StrategyExtended
from mirrored.strategies.inputs import DistributesInput
from mirrored.strategies.older_names import OlderNames
from mirrored.strategies.scope import Scope
from mirrored.topology.device_assignment import DeviceAssignment, name_device
from mirrored.values import html, structures
from mirrored.values.belonging import check_components
from mirrored.values.distributed_values import DistributedValues, Mirrored
from mirrored.variables.assigned import copies_of_result


class Strategy(DistributesInput, OlderNames):
    """Base class of strategies, which run functions on replicas and keep mirrored variables equal.

    Args:
        device_assignment: The device of each replica. None: the default strategy, one replica on JAX's default device.
        cross_device_ops: The algorithm that reduces values over replicas.

    Example:
        >>> import mirrored as mr
        >>> def total_of_ids(strategy: mr.Strategy) -> float:
        ...     ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 0.0)
        ...     return float(strategy.reduce("SUM", ids, axis=None))
        >>> total_of_ids(mr.MirroredStrategy(["CPU:0"], num_replicas=4)), total_of_ids(mr.OneDeviceStrategy("CPU:0"))
        (6.0, 0.0)

    TensorFlow: `tf.distribute.Strategy`.
    """

    def __init__(self, device_assignment: DeviceAssignment | None, cross_device_ops: CrossDeviceOps) -> None:
        self._device_assignment = device_assignment
        self._cross_device_ops = cross_device_ops
        self._extended = StrategyExtended(self)

    @property
    def device_assignment(self) -> DeviceAssignment | None:
        """The assignment of replicas to devices; None for the default strategy."""
        return self._device_assignment

    @property
    def cross_device_ops(self) -> CrossDeviceOps:
        """The all-reduce algorithm with which this strategy reduces values over replicas."""
        return self._cross_device_ops

    @property
    def num_replicas_in_sync(self) -> int:
        """The total number of replicas of the strategy."""
        here = ambient()
        # The number becomes a constant in the trace of a jitted helper that reads it. `separate_traces` keeps JAX from
        # reusing a replica's trace elsewhere. In eager cross-replica code nothing does, as for any global in plain JAX.
        if here.runner is not None and here.replica is not None:
            here.runner.separate_traces(here.replica.local_index)
        return 1 if self._device_assignment is None else self._device_assignment.num_replicas

    @property
    def extended(self) -> StrategyExtended:
        """The lower-level methods of the strategy: `reduce_to`, `update`, `broadcast_to`, ..."""
        return self._extended

    @property
    def cluster_resolver(self) -> Any:
        """The object that describes the cluster's tasks; None for a strategy of one process."""
        return None

    # Contexts

    def scope(self) -> Scope:
        """Returns a context manager that makes this strategy current: new variables are mirrored on its replicas.

        Context: cross-replica. A scope can be nested in itself and entered several times.

        Raises:
            ContextError: It is entered inside `run`, or inside the scope of another strategy.

        Example:
            >>> import mirrored as mr
            >>> with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
            ...     len(mr.Variable(1.0).values)
            2

        TensorFlow: `tf.distribute.Strategy.scope`.
        """
        return Scope(self)

    def check_scope(self) -> None:
        """Raises an error if `scope()` is entered inside a replica or inside another strategy's scope."""
        check_context(self, "scope")

    @entry_point
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
        *,
        out_specs: Any = None,
    ) -> Any:
        """Calls a function on every replica, and passes each replica its own value of per-replica arguments.

        Context: cross-replica. Outside `function`, the replicas run eagerly, one after another, each on its own device.
        Inside a `function`, or if `fn` is one, a single compiled program runs on all devices at once.

        During an eager run, other threads can read variables. Operations that replace values (another run, a compiled
        step, an assignment, an optimizer update) or save them block until the run ends. An eager run must therefore
        not wait for a thread that does so.

        If `fn` raises an exception, the strategy's variables keep their values from before the run. The default
        strategy, which `get_strategy` returns outside any scope, calls `fn` as plain Python: assignments that precede
        the exception persist.

        Args:
            fn: The function. If it is a `function`, the whole run is compiled.
            args: Positional arguments, a list or tuple. Each replica receives its component of every per-replica value
                in them, at any depth.
            kwargs: Keyword arguments, distributed in the same way.
            options: Accepted for compatibility with TensorFlow and ignored.
            out_specs: Declares the results that are replicated, as in `jax.shard_map`: a tree prefix of the result,
                with ``PartitionSpec()`` for replicated results and ``PartitionSpec("replica")`` for per-replica ones.
                Replicated results are returned as plain arrays, on all devices. The declaration is verified: by the
                replication check while compiled code is traced, by comparing bits in eager code. Default: every result
                is per replica.

        Returns:
            The structure that `fn` returns, with per-replica leaves except where `out_specs` declares otherwise. An
            object that is identical on all replicas (None, a variable) is returned as it is. So are Python numbers and
            strings: in compiled code if they are equal; in eager code, as in TensorFlow, only if they are one object,
            as equal small integers are. Return ``jnp.asarray(number)``, which is always per replica, for a number that
            is to be summed over replicas. With one replica: exactly what `fn` returns. For type checkers it is
            therefore `Any`; they know the attributes of a result that is annotated:
            ``loss: mirrored.PerReplica = strategy.run(...)``.

        Raises:
            ContextError: The call is inside a replica of another run, or in another strategy's scope; or `fn` calls a
                collective of JAX over an axis name, such as ``jax.lax.psum(x, "replica")``.
            ArgumentError: `args` is not a list or tuple.
            ReplicaDivergenceError: A mirrored variable, or a result that `out_specs` declares replicated, would differ
                between replicas.
            MergeError: The replicas do not call the same merges in the same order.
            ValuesError: A per-replica argument has not one component for each replica of this strategy.

        Warns:
            DivergingStateWarning: `fn` receives its own per-replica results as arguments. Without `out_specs`, each
                replica then trains a separate model.

        Example:
            >>> import mirrored as mr
            >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
            >>> strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group * 10)
            PerReplica:{
              0: 0,
              1: 10
            }

        TensorFlow: `tf.distribute.Strategy.run`. There, variables that were assigned before an exception stay assigned,
        and all results are per replica.
        """
        if not isinstance(args, (list, tuple)):
            found = f"args={args!r} is of type {type(args).__name__}"
            raise wrong_arguments_error("Strategy.run", found, "run(fn, args=(x,))")
        check_context(self, "run")
        kwargs, specs = kwargs or {}, OutSpecs(out_specs)
        if callable(fn) and isinstance(type(fn).__call__, Function):
            fn = fn.__call__  # type: ignore[operator]
        here = ambient()
        if not here.strategies:
            hooks.connect()
        given = fn
        if here.interceptor is not None and here.store is None and here.runner is None and not isinstance(fn, Function):
            fn = here.interceptor.for_run(self, fn, args, kwargs)
        if isinstance(fn, Function):
            if fn.steps_per_call is not None:
                raise ArgumentError(
                    "Strategy.run",
                    found=f"the function compiles steps_per_call={fn.steps_per_call} steps",
                    rule="a replica function is one step; several steps per call belong to the function around the run",
                    remedy="call the run in the step: mirrored.function(lambda x: strategy.run(step, args=(x,)), "
                    "steps_per_call=k)",
                )
            if here.store is None and here.runner is None and not functions_run_eagerly():
                run = functools.partial(
                    fn.around(self, functools.partial(self._runs, out_specs), specs.key), *args, **kwargs
                )
                return run() if here.interceptor is None or given is fn else here.interceptor.run(given, fn, run)
            # Inside a trace or a run, a call of `fn` runs inline, with its conversions.
        with within(strategies=(*here.strategies, self)), axis_names_explained():
            if self._device_assignment is None or self._device_assignment.num_replicas == 1:
                return self._run(fn, args, kwargs, specs)
            arguments = structures.flatten((tuple(args), kwargs))[0]
            made_by = None if specs.is_given else warn_if_fed_back(fn, arguments)
            with explicit_axes_explained(fn, arguments, here.store is not None):
                result = self._run(fn, args, kwargs, specs)
            if made_by is None:
                return result
            mark_made_by(result, made_by)
            return result

    def _runs(self, out_specs: PyTree, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            # Without a driver the run stays eager if shapes differ between replicas, also in a loop that compiles runs.
            with within(interceptor=None):
                return self.run(fn, args, kwargs, out_specs=out_specs)

        return run

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], specs: OutSpecs) -> Any:
        here = ambient()
        check_components("Strategy.run", self, structures.flatten((tuple(args), kwargs))[0])
        if here.store is None:
            # JAX reads a NumPy argument's buffer asynchronously, even after `run` has returned. The caller may have
            # refilled the buffer by then, so the replicas receive a copy.
            args, kwargs = structures.map_leaves(frozen, (tuple(args), kwargs))
        if self._device_assignment is None or self._device_assignment.num_replicas == 1:
            own_args, own_kwargs = structures.select((tuple(args), kwargs), 0, component_of)
            inside = run_alone if here.store is None else run_inside
            call = run_plainly if self._device_assignment is None else inside
            with within(replica=ReplicaContext(self, 0, 0), runner=None):
                result = call(fn, own_args, own_kwargs)
            return specs.as_arrays(result) if specs.is_given else result
        if here.runner is not None:
            return nested_run(fn, args, kwargs, specs)
        if here.store is not None:
            return run_compiled(self, fn, args, kwargs, specs)
        return run_eager(self, fn, args, kwargs, specs)

    # Results

    @restoring
    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """Reduces a per-replica value over all replicas to one replicated value.

        Context: cross-replica, eager or compiled.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, their names in any case, or a custom reduction.
            value: A per-replica value, or a structure of per-replica values.
            axis: None: the components are reduced elementwise. An int or several ints: each component is also reduced
                along these dimensions. MEAN then weights by the true number of elements, even for uneven or empty
                per-replica batches.

        Returns:
            Arrays in the structure of `value`. Their dtype does not depend on the number of replicas: that of the
            components, and float32 for the MEAN of integers.

        Raises:
            ArgumentError: `reduce_op` is not a valid reduction, an axis is out of range or given with a custom
                reduction, a value to sum is not per replica, or booleans or typed PRNG keys are to be summed or
                averaged.
            ContextError: The call is inside a replica.
            ValuesError: A value has not one component for each replica of this strategy.

        Example:
            >>> import mirrored as mr
            >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
            >>> ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 1.0)
            >>> float(strategy.reduce("SUM", ids, axis=None))
            3.0

        TensorFlow: `tf.distribute.Strategy.reduce`. Custom reductions are an extension.
        """
        check_context(self, "reduce")
        return reducing.reduce_structure(self, reduce_op, value, axis)

    @restoring
    def gather(self, value: object, axis: int) -> Any:
        """Concatenates all replicas' values along `axis`, in replica order; their sizes along `axis` may differ.

        Context: cross-replica, eager or compiled.

        Args:
            value: A per-replica value, or a structure of per-replica values.
            axis: The dimension; may be negative.

        Returns:
            Arrays in the structure of `value`, equal on all replicas.

        Raises:
            ArgumentError: The components are scalars or differ in other dimensions, or the axis is out of range.
            ContextError: The call is inside a replica.
            ValuesError: A value has not one component for each replica of this strategy.

        Example:
            >>> import mirrored as mr
            >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
            >>> dataset = strategy.experimental_distribute_dataset(mr.data.Dataset.range(3).batch(3))
            >>> strategy.gather(next(iter(dataset)), axis=0).tolist()
            [0, 1, 2]

        TensorFlow: `tf.distribute.Strategy.gather`.
        """
        check_context(self, "gather")
        return reducing.gather_structure(self, value, axis)

    def experimental_local_results(self, value: object) -> tuple[Any, ...]:
        """Returns a tuple with the values of this process's replicas in a distributed value.

        Context: cross-replica. The result for a structure is a tuple of structures, one for each replica, and for a
        plain value a tuple of one element. The array that `assign` of a mirrored variable returns, outside `run` and
        compiled functions, is not a plain value: the result has one copy of it per replica.

        TensorFlow: `tf.distribute.Strategy.experimental_local_results`.
        """
        if isinstance(value, DistributedValues):
            return tuple(value.values)
        copies = copies_of_result(value)
        if copies is not None:
            return copies
        leaves, treedef = structures.flatten(value)
        if not any(isinstance(leaf, DistributedValues) for leaf in leaves):
            is_leaf = len(leaves) == 1 and leaves[0] is value
            return (value,) if is_leaf else (value,) * self._extended.num_local_replicas
        counts = [len(leaf.values) if isinstance(leaf, DistributedValues) else 0 for leaf in leaves]
        # Traced per-replica values have the components of all processes, and mirrored ones no more than outside.
        leaves = [leaf.value if isinstance(leaf, Mirrored) else leaf for leaf in leaves]
        results = [
            [leaf.values[i] if isinstance(leaf, DistributedValues) else leaf for leaf in leaves]
            for i in range(max(counts))
        ]
        return tuple(treedef.unflatten(one) for one in results)

    local_results = experimental_local_results

    def __repr__(self) -> str:
        where = (
            "one replica, on JAX's default device" if self._device_assignment is None else repr(self._device_assignment)
        )
        return f"{type(self).__name__}({where})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks: the devices, and the replicas that run on each."""
        if self._device_assignment is None:
            return html.text(repr(self))
        assigned = self._device_assignment
        title = (
            f"{type(self).__name__}: {html.counted(assigned.num_replicas, 'replica')} on "
            f"{html.counted(assigned.num_devices, 'device')}"
        )
        rows = [
            (name_device(device), device.device_kind, " ".join(map(str, assigned.replicas_on(device))))
            for device in assigned.devices
        ]
        return html.table(title, ("device", "hardware", "replicas"), rows)

    def __copy__(self) -> Strategy:
        # A strategy identifies devices, so a copied model stays on the same strategy.
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Strategy:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ArgumentTypeError(
            f"pickle of {type(self).__name__}",
            found=f"{self!r} refers to devices of this process",
            rule="devices have no meaning in another process, so a strategy cannot be pickled",
            remedy=f"create the strategy in the other process: {type(self).__name__}(...)",
        )
