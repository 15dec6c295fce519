"""Preserves the newest weights of a Keras model if an exception interrupts `fit`, `evaluate` or `predict`.

`fit`, `evaluate` and `predict` pass their state from step to step in local variables, and donate it to each step. An
exception (Ctrl-C) between the dispatch of a step and the assignment of its results would lose the whole state: the
donated inputs are deleted, and the results are not stored anywhere. So the C call that dispatches a compiled step also
stores its results with the model (see `mirrored._jax.interrupts`). `jax_state_sync`, which Keras calls at the end of a
loop, assigns the state from there. Uncompiled steps store their results, too: with several steps per execution, Keras
has only those of the last one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

import jax

from mirrored._jax.interrupts import CacheMisses, Dispatch, consume
from mirrored._jax.traces import Tracer
from mirrored._typing import PyTree
from mirrored.integrations.keras.belonging import strategy_of
from mirrored.integrations.keras.private import (
    call_outside_of_stateless_scopes,
    has_loop_state,
    keras_state,
    map_pending_state,
    resume_sync,
    set_loop_state,
)
from mirrored.integrations.keras.same_steps import SamePrograms, SameResults
from mirrored.integrations.keras.step_inputs import CompiledStep, EagerStep
from mirrored.integrations.keras.untracked import StepVariables
from mirrored.integrations.keras.variables import is_from_fit, lose_deleted
from mirrored.runtime.ambient import ambient, entered
from mirrored.runtime.entry_point import outside_of_everything
from mirrored.variables import Variable

if TYPE_CHECKING:
    from keras import Model

GROUPS: Final = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
_NEWEST: Final = "_mirrored_newest"
# The groups in the state of `fit`, `evaluate` and `predict`, by their number.
_GROUPS_OF: Final = {4: GROUPS, 3: (*GROUPS[:2], GROUPS[3]), 2: GROUPS[:2]}
GROUPS_OF_STEP: Final = {"train": _GROUPS_OF[4], "test": _GROUPS_OF[3], "predict": _GROUPS_OF[2]}
_CARRYING: Final = "_mirrored_carrying"
_HAS_ENDED: Final = "_mirrored_loop_has_ended"
_JITTED: Final = type(jax.jit(lambda: None))


def kept_steps(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer._make_function` so that the model keeps a reference to the results of the last compiled step."""

    @functools.wraps(make)
    def making(self: Model, step_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        spans = strategy is not None and strategy.device_assignment.spans_processes
        name = f"Model.{step_function.__name__}"
        of_step = functools.partial(_variables_of_step, self)
        if not isinstance(step_function, _JITTED):
            step: Callable[..., Any] = EagerStep(step_function, of_step)
            if strategy is None:  # once for all, because Keras has not stored the results of each
                return _withholding_again(self, make(self, step, *args, **kwargs))
            if spans:
                step = SameResults(step, name, functools.partial(_named, self))
            return make(self, _withholding_again(self, _storing(self, step)), *args, **kwargs)
        protected: Callable[[Any], Any] = _itself
        if strategy is not None:
            # Keras jits a bound method, such as `self.train_step`. JAX finds programs by equality of functions, and the
            # method equals that of an earlier `compile()`, whose function may still be alive: in a reference cycle, or
            # in a variable of the user. Without this line its program, with the former loss, would run again.
            step_function.clear_cache()  # type: ignore[attr-defined]
            newest = vars(self).setdefault(_NEWEST, deque(maxlen=1))
            protected = functools.partial(_Step, newest=newest, check=SamePrograms(name) if spans else None)
        compiled = CompiledStep(step_function, protected, of_step)
        return make(self, _withholding_again(self, compiled), *args, **kwargs)

    return making


def _withholding_again(model: Model, step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a Keras step so that later reads of variables return the newest values.

    The generator, the trace of a step, or an uncompiled step may read variables. They get the values from before the
    step, and the loop goes on with those that the step returns, or has stored before an exception such as Ctrl-C.
    A compiled step donates the arrays that they have read, so it is wrapped itself, also if Keras runs several at once.

    The generator may also call another loop of the model, such as `train_on_batch`, which assigns other values, or
    `predict` of a model that shares layers with it, which donates the arrays of the state, too. Then the step gets the
    newest values.
    """

    def running(state: Sequence[Sequence[Any]], *args: Any) -> Any:
        before = carrying = vars(model).get(_CARRYING)
        has_ended, is_read = False, carrying is not None and carrying.has_synced
        groups = dict.fromkeys(_GROUPS_OF[len(state)], True)
        if (vars(model).get(_HAS_ENDED) or _is_donated(state, is_read)) and strategy_of(model) is not None:
            state = model._get_jax_state(**groups)
        try:
            results = step(state, *args)
            has_ended = True
            return results
        finally:
            carrying = vars(model).get(_CARRYING)
            if carrying is not None and (has_ended or vars(model).get(_NEWEST)):
                if carrying.groups.keys() != groups.keys():  # those of a loop in the generator
                    withhold(model, groups)
                    resume_sync(model)
                elif carrying is not before or carrying.has_synced:
                    carrying.begin()
                    resume_sync(model)

    return running


def _variables_of_step(
    model: Model, state: Sequence[Sequence[Any]], values: Mapping[int, Any], *, interrupts: bool = False
) -> StepVariables:
    """Returns the variables of a step, for code in it that reads or assigns others than its scopes have."""

    def groups_of() -> list[list[Any]]:
        return [variables_of(model, group) for group in _GROUPS_OF[len(state)]]

    return StepVariables(model, state, groups_of, values, interrupts=interrupts)


def _storing(model: Model, step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an uncompiled Keras step to store its results in the model, as `_Step` does for a compiled step."""
    newest = vars(model).setdefault(_NEWEST, deque(maxlen=1))

    def storing(*args: Any) -> Any:
        results = step(*args)
        newest.append(results)
        return results

    return storing


def note_end_of_loop(model: Model) -> None:
    """Notes that a training loop of a model has ended: another one, whose generator has called it, reads the weights.

    The note holds until a loop reads the weights the next time.
    """
    vars(model)[_HAS_ENDED] = True


def _is_donated(state: Sequence[Sequence[Any]], is_read: bool) -> bool:
    """Returns whether another loop has donated the state, or a part of it, which is possible if variables were read."""
    arrays = itertools.islice(itertools.chain.from_iterable(state), None if is_read else 1)
    return any(isinstance(one, jax.Array) and not isinstance(one, Tracer) and one.is_deleted() for one in arrays)


def _itself(jitted: Callable[..., Any]) -> Callable[..., Any]:
    return jitted


def _named(model: Model, state: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Returns the values in the state of a step as a dict keyed by the paths of their variables."""
    found: dict[str, Any] = {}
    for group, values in zip(_GROUPS_OF[len(state)], state, strict=True):
        for place, (variable, value) in enumerate(zip(variables_of(model, group), values, strict=True)):
            found[f"{group}[{place}]" if variable.path in found else variable.path] = value
    return found


def with_newest_reads(get_state: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' `Trainer._get_jax_state` so that variables return their newest values during a training loop.

    Values of an earlier loop that are not assigned yet are assigned first.
    """

    @functools.wraps(get_state)
    def getting(self: Model, **which: bool) -> Any:
        vars(self).pop(_HAS_ENDED, None)
        if strategy_of(self) is not None:
            # A loop that an exception has ended, or in whose callback this one runs, may have left results that are not
            # assigned yet. Their inputs were donated, so without them all weights would be lost.
            if _is_carried(self):
                resume_sync(self)
                self.jax_state_sync()
            # Discards the state of an earlier loop, because the variables may have been assigned since.
            set_loop_state(self, None)
            vars(self).get(_NEWEST, deque()).clear()
        state = get_state(self, **which)
        if not which.get("purge_model_variables"):
            withhold(self, which)
        return state

    return getting


def kept_by_fit(purge: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Trainer._purge_model_variables` so that reading a variable during `fit` returns the newest value.

    Our variables keep their stored values, which are outdated from the first step on, so reads must sync first.
    """

    @functools.wraps(purge)
    def purging(self: Model, **which: bool) -> None:
        purge(self, **which)
        withhold(self, which)

    return purging


def withhold(model: Model, which: Mapping[str, bool]) -> None:
    """Makes a model's variables call `model.jax_state_sync` before they are read or assigned the next time."""
    carrying = _LoopValueSync(model, {group: variables_of(model, group) for group in GROUPS if which.get(group)})
    vars(model)[_CARRYING] = carrying
    carrying.begin()


class _LoopValueSync:
    """Copies the values in Keras' training loop to a model's variables before a variable is read or assigned.

    Attributes:
        model: The model.
        groups: The variables whose values the loop holds, by their group.
        has_synced: Whether a variable was read or assigned since the last `begin`.
    """

    def __init__(self, model: Model, groups: Mapping[str, Sequence[Any]]) -> None:
        self.model = model
        self.groups = groups
        self.has_synced = False

    def begin(self) -> None:
        """Registers this object as the callback for each variable's next read or assignment."""
        self.has_synced = False
        for one in itertools.chain.from_iterable(self.groups.values()):
            if isinstance(getattr(one, "mirrored", None), Variable):
                one.mirrored.withhold(self)

    def __call__(self, variable: Variable) -> None:
        self.has_synced = True
        with outside_of_everything():  # a replica, a tape or a stateless call may be the first to read
            call_outside_of_stateless_scopes(self.model.jax_state_sync)
        lose_deleted(variable)

    def before_write(self, variable: Variable) -> None:
        """Copies the training loop's values to the model before a variable is assigned.

        A later copy would overwrite the assigned value. Has no effect if Keras assigns the values of the loop.
        """
        if not is_from_fit():
            variable.supply_value()


def _is_carried(model: Model) -> bool:
    if not has_loop_state(model) and not vars(model).get(_NEWEST):
        return False
    for group in GROUPS:
        for one in variables_of(model, group):
            variable = getattr(one, "mirrored", None)
            carrying = variable.awaited() if isinstance(variable, Variable) else None
            if isinstance(carrying, _LoopValueSync) and carrying.model is model:
                return True
    return False


def newest_first(sync: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer.jax_state_sync` to assign the results of the last completed step to the model.

    After an exception, Keras may not have them.
    """

    @functools.wraps(sync)
    def syncing(self: Model) -> Any:
        newest = vars(self).get(_NEWEST)
        if newest:
            _, state = newest[0]
            set_loop_state(self, dict(zip(_GROUPS_OF[len(state)], state, strict=True)))
        map_pending_state(self, functools.partial(_in_present_groups, self))
        result = sync(self)
        if newest:
            newest.clear()
        return result

    return syncing


def _in_present_groups(model: Model, state: dict[str, Any]) -> dict[str, Any]:
    """Regroups a training loop's values (trainable, non-trainable) if `layer.trainable` has changed since its start."""
    carrying = vars(model).get(_CARRYING)
    carried = {} if carrying is None else carrying.groups
    present = {group: variables_of(model, group) for group in carried}
    if all(list(map(id, present[group])) == list(map(id, carried[group])) for group in carried):
        return state
    pairs = [pair for group in carried for pair in zip(carried[group], state.get(group) or (), strict=False)]
    values = {id(variable): value for variable, value in pairs}
    regrouped = {
        group: [values.get(id(one), one.value) for one in present[group]]
        for group in present
        if any(id(one) in values for one in present[group])
    }
    return {**dict.fromkeys(state), **regrouped}


def variables_of(model: Model, group: str) -> list[Any]:
    """Returns the variables of a Keras model that are in one category, such as ``"trainable_variables"``."""
    if group == "optimizer_variables":
        return [] if getattr(model, "optimizer", None) is None else list(model.optimizer.variables)
    return list(getattr(model, group))


class _Step:
    """A compiled step that stores its results in the model, so that an interrupt cannot lose them.

    Args:
        jitted: The step, from (state, batch) to (logs, state).
        newest: The deque of length 1 that receives the results.
        check: Compares the programs of several workers before they run.
    """

    def __init__(self, jitted: jax.stages.Wrapped, newest: deque[Any], check: SamePrograms | None) -> None:
        self._dispatch = Dispatch(jitted, lambda missed: _AheadOfTimeCompilation(missed, jitted, check))
        self._newest = newest
        self._check = check

    def __call__(self, state: PyTree, data: PyTree) -> Any:
        if self._check is not None:
            self._check.arrive()
        dispatch: Any = self._dispatch
        dispatch.job = None
        try:
            consume(map(self._newest.append, starmap(dispatch.function, ((state, data),))))
        except BaseException:
            dispatch.forget()
            if self._check is not None:
                self._check.passed(None)
            raise
        if self._check is not None:
            self._check.passed(self._newest[0][0])
        job, dispatch.job = dispatch.job, None
        if job is not None and job.interruption is not None:
            raise job.interruption
        return self._newest[0]


class _AheadOfTimeCompilation(CacheMisses):
    """Compiles a jitted Keras step before the call that donates arrays: an interrupted compilation loses no arrays."""

    def __init__(self, missed: Callable[..., Any], jitted: jax.stages.Wrapped, check: SamePrograms | None) -> None:
        super().__init__(missed)
        self._jitted, self._check = jitted, check

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Ahead-of-time compilation donates nothing, and JAX caches the executable for the call below.
        trace = functools.partial(self._jitted.trace, *args, **kwargs)
        traced = trace() if self._check is None else self._check.compare(trace, args[1])
        traced.lower().compile()
        here, adopt = ambient(), keras_state()

        @contextlib.contextmanager
        def in_context() -> Iterator[None]:
            adopt()
            with entered(here):
                yield

        self.compiling = in_context
        return super().__call__(*args, **kwargs)
