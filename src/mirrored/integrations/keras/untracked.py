"""Gives Keras' own steps the current values of variables that the model does not list.

Keras' step on JAX is a pure function of the values of the variables that the model lists, for each of its scopes
(forward pass, loss, optimizer). A loss, a layer, a regularizer or a learning-rate schedule can read others: a weight
that a callback changes, or the weights of another model. A compiled step would have the value at its trace as a
constant. On TensorFlow, each step reads the current value. So a step receives these values as inputs besides the batch
(see `step_inputs`). Which ones it reads is known when it is traced: the first read interrupts the trace.

Keras drops what a step assigns to such variables, and what a layer's `call` assigns to trainable weights. A warning
says so.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import jax

from mirrored._blocks import setting
from mirrored._jax.arrays import copied
from mirrored._jax.source_lines import user_stacklevel
from mirrored._jax.traces import Tracer, eager
from mirrored.integrations.keras.private import in_symbolic_scope, read_stored
from mirrored.variables import Variable

if TYPE_CHECKING:
    from keras import Model, StatelessScope
    from keras import Variable as KerasVariable

_TOLD: Final = "_mirrored_told_of_assignments"
_STEPS: Final = {4: "train_step", 3: "test_step", 2: "predict_step"}  # by the number of groups in the state


class MissingValues(BaseException):
    """Raised to interrupt the trace of a Keras step that lacks the values of variables that it reads.

    The step is then traced again with the values as inputs. This class is no `Exception`, because Keras and users'
    code catch those.
    """

    def __init__(self, variables: Iterable[KerasVariable | Variable]) -> None:
        self.variables = list(variables)
        super().__init__(", ".join(one.name for one in self.variables))


class StepVariables:
    """The variables of a Keras step that is being traced or run, besides those that its scopes have.

    Each call of a step makes one. It looks at the model only if a scope lacks a variable, which is while tracing.

    Args:
        model: The model.
        state: The state of the step: values of the model's variables, group by group.
        groups_of: Returns the variables whose values the state has.
        values: The values of further variables, by the `id` of the variable.
        interrupts: Whether the first read of a variable without a value raises `MissingValues`.

    Attributes:
        missing: The variables without a value that the step has read.
    """

    def __init__(
        self,
        model: Model,
        state: Sequence[Sequence[Any]],
        groups_of: Callable[[], Sequence[Sequence[KerasVariable]]],
        values: Mapping[int, Any],
        *,
        interrupts: bool = False,
    ) -> None:
        self.missing: dict[int, KerasVariable | Variable] = {}
        self._model = model
        self._state = state
        self._groups_of = groups_of
        self._values = values
        self._interrupts = interrupts
        self._step = _STEPS[len(state)]

    @functools.cached_property
    def _groups(self) -> Sequence[Sequence[KerasVariable]]:
        return self._groups_of()

    @functools.cached_property
    def _of_state(self) -> dict[int, Any]:
        """The values in the state by the `id` of the variable: a forward pass may read the optimizer's variables."""
        # The numbers of variables differ for a moment if the program has changed `layer.trainable`.
        pairs = (zip(group, values, strict=False) for group, values in zip(self._groups, self._state, strict=True))
        return {id(variable): value for variable, value in itertools.chain.from_iterable(pairs)}

    def value_of(self, variable: KerasVariable | Variable) -> Any:
        """Returns the value of a variable that the current scope lacks; None if it has no value yet.

        Where the step lacks the value, too, and goes on to find other variables, it is the present one.
        """
        value = self._values.get(id(variable))
        if value is None and not self._interrupts:
            value = self._of_state.get(id(variable))
        if value is not None:
            return value
        if isinstance(variable, Variable):
            present = _on_devices_of(next(_arrays_in(self._state), None), variable.stored())
        else:
            present = read_stored(variable)
        if present is not None:
            if not self._interrupts:
                self.missing[id(variable)] = variable
            else:  # a variable whose value the state has needs no further input
                raise MissingValues([] if id(variable) in self._of_state else [variable])
        return present

    def note_assigned(self, variable: KerasVariable, scope: StatelessScope) -> None:
        """Warns, once for each variable, if Keras drops the value that the step assigns to it in a scope."""
        held = scope.state_mapping
        if id(variable) not in held:
            found = f"assigns {variable.path}, which is not among the variables of the model"
            remedy = "make it, or its layer or generator, an attribute of the model or of a layer of it, or"
        elif id(variable) in self._trainable and self._of_model.issuperset(held):
            found = f"assigns the trainable weight {variable.path} in the call of the model"
            remedy = "create it with trainable=False, or"
        else:
            return
        if self._step == "predict_step" and any(one is variable for one in self._model.metrics_variables):
            return  # `predict` has no metrics
        told = vars(self._model).setdefault(_TOLD, set())
        if (self._step, id(variable)) not in told:
            told.add((self._step, id(variable)))
            warnings.warn(
                f"keras.Model.{self._step}: the step {found}; the value is lost\n"
                "  rule:   the step of Keras on JAX returns the values of the variables that the model lists; only the "
                "optimizer changes trainable weights\n"
                f"  remedy: {remedy} override the step, as for TensorFlow: def {self._step}(self, data): return "
                f"super().{self._step}(data)",
                UserWarning,
                stacklevel=user_stacklevel(),
            )

    @functools.cached_property
    def _trainable(self) -> set[int]:
        return {id(one) for one in self._groups[0]}

    @functools.cached_property
    def _of_model(self) -> set[int]:
        """The variables of the model, by `id`; a scope that has those of an optimizer returns new values of weights."""
        groups = [*self._groups]
        if self._step == "train_step":
            del groups[2]  # that of the optimizer
        return {id(one) for one in itertools.chain.from_iterable(groups)}


_current: contextvars.ContextVar[StepVariables | None] = contextvars.ContextVar("_current", default=None)
_in_step_of_keras: contextvars.ContextVar[bool] = contextvars.ContextVar("_in_step_of_keras", default=False)


def within_step(variables: StepVariables) -> AbstractContextManager[None]:
    """Context manager for the trace or the run of a Keras step."""
    return setting(_current, variables)


def within_step_of_keras() -> AbstractContextManager[None]:
    """Context manager for Keras' own step. An overridden one can itself return what it has assigned in a scope."""
    return setting(_in_step_of_keras, True)


def value_in_step(variable: KerasVariable | Variable) -> Any:
    """Returns the value of a variable in the current Keras step, for a scope that lacks it; None outside of steps.

    None also for a `mirrored` variable with a value for each replica.
    """
    step = _current.get()
    if step is None or in_symbolic_scope() or (isinstance(variable, Variable) and variable.per_replica):
        return None
    return step.value_of(variable)


def note_assigned(variable: KerasVariable, scope: StatelessScope) -> None:
    """Warns if Keras drops the value that the current step assigns to a variable in a scope."""
    step = _current.get()
    if step is not None and _in_step_of_keras.get() and scope.state_mapping and not in_symbolic_scope():
        step.note_assigned(variable, scope)


class CurrentValues:
    """The variables whose values a step receives, and their current values on the devices of the step.

    Args:
        variables: The variables.
    """

    def __init__(self, variables: Sequence[KerasVariable | Variable] = ()) -> None:
        self.variables = list(variables)
        self._made: dict[int, tuple[Any, Any]] = {}  # by `id`: the value, and the array that the step gets instead

    def read(self, state: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
        """Returns the current values, on the devices of a step's state, which the step donates."""
        if not self.variables:
            return ()
        donated = {id(one): one for one in _arrays_in(state)}
        with eager():
            return tuple(self._input(one, donated) for one in self.variables)

    def _input(self, variable: KerasVariable | Variable, donated: Mapping[int, jax.Array]) -> Any:
        """Returns the value of a variable on the devices of the step, in a buffer that the step does not donate."""
        value = variable.read_value() if isinstance(variable, Variable) else variable.value
        known = self._made.get(id(variable))
        if known is not None and known[0] is value:
            return known[1]
        if not donated or not isinstance(value, jax.Array):
            return value
        # A variable that was made of the array of a weight has it, too.
        made = _on_devices_of(next(iter(donated.values())), copied(value) if id(value) in donated else value)
        if made is not value:
            self._made[id(variable)] = (value, made)
        return made


def _arrays_in(state: Iterable[Sequence[Any]]) -> Iterator[jax.Array]:
    return (one for group in state for one in group if isinstance(one, jax.Array) and not isinstance(one, Tracer))


def _on_devices_of(like: jax.Array | None, value: Any) -> Any:
    """Returns `value` replicated on the devices of another array; `value` itself if it is there."""
    if like is None or not isinstance(value, jax.Array) or value.sharding.device_set == like.sharding.device_set:
        return value
    sharding = like.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return jax.device_put(value, sharding)
