"""Creates variables: one object for all replicas, with its initial value or its value in a restored checkpoint."""

from __future__ import annotations

import abc
import functools
import inspect
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np

from mirrored._blocks import contextmanager
from mirrored._jax import caches, distributed
from mirrored._jax.array_types import keeping_width_of, not_weakly_typed
from mirrored._jax.arrays import check_fit, is_key, new_array
from mirrored._jax.source_lines import user_line
from mirrored._jax.traces import NotConstant, Tracer, eager, evaluate
from mirrored._jax.trees import tree_map
from mirrored._typing import DTypeLike, Operand
from mirrored.collectives.host_allgather import digest, host_allgather
from mirrored.errors import ArgumentError, DisagreementError, MergeError, ValuesError
from mirrored.runtime.ambient import ambient, thread, within
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values.attributes import attribute, has_attribute
from mirrored.values.distributed_values import PerReplica
from mirrored.variables.rules import check_kind
from mirrored.variables.state_lock import stored_immediately

# Variable creation: the replicas of a run that execute one constructor call share one variable.

Creator = Callable[..., Any]


class _Calls:
    """Counter of variable constructor calls."""

    number = 0


def constructor_calls() -> int:
    """Returns the number of variable constructor calls so far, to detect whether a block of code creates variables."""
    return _Calls.number


def discount_constructor_call() -> None:
    """Takes one constructor call off the count: that of a variable of the library, which user code cannot hold."""
    _Calls.number -= 1


class VariableMeta(abc.ABCMeta):
    """Metaclass of `Variable`: if all replicas of a `run` create a variable, all of them get the same object.

    It also applies the creators of `variable_creator_scope`.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of the variable's constructor, for `inspect.signature` and `help`."""
        first, *rest = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
        return inspect.Signature(rest)

    # Type checkers do not look at a constructor's arguments if the metaclass has a `__call__`.
    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            _Calls.number += 1
            make: Creator = super().__call__
            here = ambient()
            if here.creators:
                bound = inspect.signature(cls).bind(*args, **kwargs)
                bound.apply_defaults()
                args, kwargs = (), dict(bound.arguments)
            for creator in here.creators:
                make = _nested(creator, make)
            runner = here.runner
            if runner is None or runner.in_place or here.replica is None:
                return make(*args, **kwargs)
            name = inspect.signature(cls).bind(*args, **kwargs).arguments.get("name")
            return _shared(runner, here.replica.local_index, name, lambda: make(*args, **kwargs))


def _nested(creator: Callable[..., Any], make: Creator) -> Creator:
    return lambda *args, **kwargs: creator(make, *args, **kwargs)


def _shared(runner: ReplicaRunner, replica: int, name: str | None, make: Callable[[], Any]) -> Any:
    """Returns the variable that all replicas share, which `make` creates on replica 0.

    The n-th execution of a line of user code on one replica creates the same variable as the n-th execution of that
    line on every other replica.
    """
    line = user_line()
    count = runner.creations[replica, line] = runner.creations.get((replica, line), 0) + 1
    # Replicas run in index order: replica 0 has already created every variable that another replica may create here.
    if replica == 0:
        runner.created[line, count] = made = make()
        return made
    if (line, count) not in runner.created:
        raise MergeError(
            "Variable",
            found=f"replica {replica} creates variable {name!r} at {line}, and replica 0 does not",
            rule="all replicas of a run must create the same variables",
            remedy="create it on every replica, at the same line, or outside run",
        )
    made = runner.created[line, count]
    _check_names(made.name, name)
    return made


def _check_names(first: str, name: str | None) -> None:
    if name is None or _stem(name) == _stem(first):
        return
    raise MergeError(
        "Variable",
        found=f"the replicas create one variable under the names {first!r} and {name!r}",
        rule="all replicas of a run must give a variable the same name (a final number may differ)",
        remedy="give it the same name on every replica",
    )


def _stem(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


@contextmanager
def variable_creator_scope(creator: Callable[..., Any]) -> Iterator[None]:
    """A context manager that creates each variable of its block by calling ``creator(next_creator, **kwargs)``.

    Context: any; it also applies to variables that replicas create in a run inside the block.

    Args:
        creator: Receives the next creator and all of `Variable`'s arguments by keyword. Returns the result of
            ``next_creator(**kwargs)`` or a replacement. In nested scopes the creator of the innermost scope is called
            first.

    Example:
        >>> import mirrored as mr
        >>> def frozen(next_creator, **kwargs):
        ...     return next_creator(**{**kwargs, "trainable": False})
        >>> with mr.variable_creator_scope(frozen):
        ...     print(mr.Variable(1.0).trainable)
        False

    TensorFlow: `tf.variable_creator_scope`. The creator is called once per variable, not once per copy.
    """
    before = thread.current
    try:  # not `within`: an interrupt where its `__exit__` begins would keep the creator
        thread.current = before.fork(creators=(*before.creators, creator))
        yield
    finally:
        thread.current = before


# Evaluates initial values (an array, a number, a list or a callable), also inside a trace.


def evaluate_initial(initial_value: Operand, dtype: DTypeLike | None, name: str | None) -> jax.Array:
    """Returns a variable's initial value as a new array; computes it eagerly even during tracing.

    Raises:
        ArgumentError: The value is missing, depends on an argument of the function being traced, or has integers that
            do not fit into 32 bits outside of JAX's 64-bit mode.
        ValuesError: The value is a per-replica value.
    """
    if initial_value is None:
        raise ArgumentError(
            "Variable",
            found=f"no initial value for variable {name!r}",
            rule="a variable takes its shape and dtype from its initial value",
            remedy="write Variable(jnp.zeros(shape)), Variable(0.0) or Variable(lambda: jnp.zeros(shape))",
        )
    store = ambient().store
    if store is not None and store.captures:  # its values are tracers; the store of an eager run has current values
        store = None
    with eager(), caches.using(None), within(store=store, listeners=()):
        is_initializer = callable(initial_value) and not has_attribute(initial_value, "dtype")
        value = initial_value() if is_initializer else initial_value
        if store is not None and has_attribute(value, "stored_component"):
            value = value.read_value()
        if isinstance(value, PerReplica):
            raise ValuesError(
                "Variable",
                found=f"a per-replica initial value for variable {name!r}",
                rule="an initial value is one array, the same for all replicas",
                remedy="reduce it first, or create a sync-on-read variable and assign each component inside run",
            )
        try:
            value = _evaluated(value)
        except NotConstant:
            raise ArgumentError(
                "Variable",
                found=f"the initial value of variable {name!r} depends on a value that is being traced",
                rule="a variable created inside a function is initialized once, before the function runs",
                remedy="pass a callable that computes it from constants: Variable(lambda: jnp.zeros(shape))",
            ) from None
        if dtype is not None:
            check_kind(value, dtype, "Variable", name)
        check_fit(value, dtype)
        array = new_array(value, dtype)
        # A Python number gives a weakly typed array. Assigned values are not weakly typed, and the change of type would
        # cause one unnecessary retrace of every function that captures the variable.
        return not_weakly_typed(array)


def _evaluated(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        return tree_map(lambda leaf: evaluate(leaf, _first_value), value)
    return evaluate(value, _first_value)


def _first_value(source: Any) -> Any:
    """Returns a variable's value on the first replica.

    The variable is ``source.variable``, or `source` itself if it has no such attribute.
    """
    variable = attribute(source, "variable", source)
    return variable.stored_component(0)


# Initial values in a multi-worker job: every worker uses the value of worker 0.


def broadcast_initial(value: Any, name: str | None, device_assignment: DeviceAssignment) -> jax.Array:
    """Broadcasts worker 0's initial value of a new variable to all workers.

    Context: a host all-gather, so all workers call it in the same order; also while tracing. It exchanges digests
    first: values that are equal on all workers (usually because they come from the same seed) are not sent.

    Raises:
        DisagreementError: The workers create variables with different names, shapes or dtypes.
    """
    if is_key(value):
        data = broadcast_initial(jax.random.key_data(value), name, device_assignment)
        with eager():
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    with eager(), keeping_width_of([value]):
        host_value = np.asarray(value)
        outline = f"{host_value.dtype.name}{list(host_value.shape)}"
        gathered = host_allgather("Variable", f"create variable {name!r}", [outline, digest(host_value)])
        _check_outlines([one[0] for one in gathered], name)
        if all(one[1] == gathered[0][1] for one in gathered):
            return new_array(host_value)
        return new_array(from_first(host_value, device_assignment))


_numbers_in_job: Final[Counter[str]] = Counter()
distributed.on_leave(_numbers_in_job.clear)


def number_in_job(name: str) -> int:
    """Counts a new variable and returns how many variables of this name the job has.

    Only variables that all workers create together count: `broadcast_initial` has checked that all workers create a
    variable of this name now.
    """
    _numbers_in_job[name] += 1
    return _numbers_in_job[name]


def from_first(array: np.ndarray[Any, Any], device_assignment: DeviceAssignment) -> np.ndarray[Any, Any]:
    """Broadcasts worker 0's array to all workers; every worker passes an array of the same shape and dtype."""
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    # The bytes are padded to a power of two: one program is compiled per size, so few programs are compiled.
    size = 1 << max(10, (max(data.size, 1) - 1).bit_length())
    padded = np.zeros((1, size), np.uint8)
    padded[0, : data.size] = data
    parts = [jax.device_put(padded, device) for device in device_assignment.addressable_devices]
    shape = (len(device_assignment.devices), size)
    whole = jax.make_array_from_single_device_arrays(shape, device_assignment.sharded, parts)
    received = np.asarray(_first(device_assignment)(whole))[: data.size]
    return np.frombuffer(received.tobytes(), array.dtype).reshape(array.shape)


@functools.lru_cache(maxsize=8)
def _first(device_assignment: DeviceAssignment) -> Callable[..., Any]:
    return jax.jit(lambda rows: rows[0], out_shardings=device_assignment.replicated)


def _check_outlines(outlines: list[str], name: str | None) -> None:
    if len(set(outlines)) == 1:
        return
    raise DisagreementError(
        "Variable",
        found=f"variable {name!r} is "
        + ", ".join(f"{outline} on worker {worker}" for worker, outline in enumerate(outlines)),
        rule="all workers must create the same variables, in the same order",
        remedy="build the model from the same settings on all workers",
    )


# Deferred restoration: a new variable may take its value from a checkpoint that was restored before it existed.
#
# A checkpoint identifies a variable by its path in the object graph, and a variable has no path while its constructor
# runs. So the constructor only registers a callback. The first access to the stored value calls it, and the checkpoint
# then looks the variable up.

Supplier = Callable[[Any], None]
withheld: Final[dict[int, weakref.ref[Any]]] = {}
"""The variables with a pending restore callback, by identity."""


class _RestoreWatch:
    made: Callable[[Any], Supplier | None] | None = None


def set_restore_hook(made: Callable[[Any], Supplier] | None) -> None:
    """Registers a function to be called with every new variable, so that a checkpoint can restore the variable later.

    Args:
        made: Returns the callback to call with the variable before its value is first used, or None. If `made` itself
            is None, no function is registered any more.
    """
    _RestoreWatch.made = made


class Awaiting:
    """Mixin of variables whose value a restored checkpoint may supply later, before the first use."""

    # The pending callback, set by a checkpoint that was restored earlier. Nearly always None.
    _withheld: Supplier | None = None
    _array: Any

    def stored_value(self) -> Any:
        """Returns the variable's current array without taking a value from a restored checkpoint."""
        return self._array

    def await_value(self) -> None:
        """Marks the new variable so that its first use takes the value from a checkpoint that was restored earlier."""
        ask = None if _RestoreWatch.made is None else _RestoreWatch.made(self)
        if ask is not None:
            self.withhold(ask)

    def withhold(self, ask: Supplier) -> None:
        """Registers a callback that will supply the variable's value before the value is next used."""
        key = id(self)
        self._withheld = ask
        withheld[key] = weakref.ref(self, lambda _: withheld.pop(key, None))

    def awaited(self) -> Supplier | None:
        """Returns the callback that will supply the variable's value, or None."""
        return self._withheld

    def awaits_other_than(self, ask: Supplier) -> bool:
        """Returns whether a callback other than `ask` is registered to supply the variable's value."""
        return self._withheld is not None and self._withheld is not ask

    def supply_value(self) -> None:
        """Calls and removes the callback that supplies the variable's value, if one is registered."""
        ask = self._withheld
        self.release()
        if ask is not None:
            with stored_immediately():  # the value stays if the code that reads it fails
                ask(self)

    def before_write(self) -> None:
        """Notifies the callback registered by `withhold`, if any, that the variable is about to be assigned.

        Calls the `before_write` of the callback, if it has one.
        """
        before_write = getattr(self._withheld, "before_write", None)
        if before_write is not None:
            with stored_immediately():
                before_write(self)

    def release(self) -> None:
        """Removes the callback that would replace the variable's value.

        A restored checkpoint has registered the callback. The variable keeps its value.
        """
        if self._withheld is not None:
            self._withheld = None
            withheld.pop(id(self), None)


def supply_values(variables: Iterable[Any]) -> None:
    """Calls the registered callbacks that supply the values of several variables (deferred restoration)."""
    for variable in variables:
        if id(variable) in withheld:
            variable.supply_value()
