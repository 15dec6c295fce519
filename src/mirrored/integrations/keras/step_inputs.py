"""Passes further inputs to Keras' own training steps: keys of random streams, and values of variables.

Layers may call `tf.random.normal` and similar functions. A random stream is a variable, but not one of the model's
weights, so its state is not part of the state that Keras passes from step to step. Instead, each step receives a new
key of every stream that it draws from, as an input besides the batch. Which streams these are is known when the step is
traced: a draw from a stream without a key interrupts the trace, and the step is traced again with the key as an input.
Steps that draw nothing have no such input.

The values of variables that the model does not list are such inputs, too (see `untracked`).
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._blocks import setting
from mirrored._jax.traces import eager
from mirrored._typing import PyTree
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.untracked import CurrentValues, MissingValues, StepVariables, within_step

if TYPE_CHECKING:
    from mirrored.variables import Variable

keras = load()


class VariablesOf(Protocol):
    """Protocol of the function that returns the variables of a step."""

    def __call__(self, state: PyTree, values: Mapping[int, Any], *, interrupts: bool = False) -> StepVariables:
        """Returns the variables of a step.

        Args:
            state: The state of the step.
            values: The values of variables that are not in the state, by the `id` of the variable.
            interrupts: Whether the first read of a variable without a value interrupts the step.
        """
        ...


class MissingKey(BaseException):
    """Raised to interrupt the trace of a Keras step that lacks the key of a random stream.

    The step draws from the stream, and is then traced again with the key as an input. This class is no `Exception`,
    because Keras and users' code catch those.
    """

    def __init__(self, stream: Variable) -> None:
        super().__init__(stream.name)
        self.stream = stream


class StepKeys:
    """The random keys that one Keras step receives, one for each random stream.

    Args:
        words: By the `id` of the stream: two words of a key and a counter, ``uint32[3]``.
        missing: Returns the words of a stream that is not in `words`, or raises `MissingKey`.
    """

    def __init__(self, words: dict[int, Any], missing: Callable[[Variable], Any]) -> None:
        self._words = words
        self._missing = missing
        self._scopes = 0

    def initial_states(self) -> tuple[dict[int, Any], Callable[[Variable], Any]]:
        """Returns the initial states of the random streams for a new `StatelessScope`.

        The second result is a function that creates the state of a stream that the first one lacks.

        Each scope of a step has other states, because it begins anew: forward pass, loss, metrics.
        """
        number, self._scopes = self._scopes, self._scopes + 1

        def later(stream: Variable) -> Any:
            with eager():
                return _started(self._missing(stream), number)

        return {stream: _started(words, number) for stream, words in self._words.items()}, later


def _started(words: Any, number: int) -> Any:
    """Returns a random stream's initial state (a key and a counter), from the key data `words` that the step receives.

    The counter depends on the number of the step alone: operations with their own seed use it, but not the key.
    """
    words = jnp.asarray(words)
    key, zero = (jax.random.wrap_key_data(two, impl="threefry2x32") for two in (words[:2], jnp.zeros_like(words[:2])))
    own, counting = (jax.random.fold_in(jax.random.fold_in(one, words[2]), number) for one in (key, zero))
    return jnp.append(jax.random.key_data(own), jax.random.bits(counting, dtype=jnp.uint32))


_keys: contextvars.ContextVar[StepKeys | None] = contextvars.ContextVar("_keys", default=None)


def step_keys() -> StepKeys | None:
    """Returns the random keys of the Keras step that is being traced or run.

    None outside Keras' own steps.
    """
    return _keys.get()


def _interrupt(stream: Variable) -> Any:
    raise MissingKey(stream)


def _new_words(stream: Variable) -> Any:
    assert stream.words_of_step is not None
    return np.asarray(stream.words_of_step(), np.uint32)


class EagerStep:
    """Runs an uncompiled Keras step (``run_eagerly=True``); creates the key of each random stream at its first use.

    Args:
        step: The step, from (state, batch) to (logs, state).
        variables_of: Returns the variables of the step, given its state and the values of others.
    """

    def __init__(self, step: Callable[..., Any], variables_of: VariablesOf) -> None:
        self._step = step
        self._variables_of = variables_of

    def __call__(self, state: PyTree, data: PyTree) -> Any:
        """Runs the step on a batch."""
        words: dict[int, Any] = {}

        def fetched(stream: Variable) -> Any:
            if id(stream) not in words:
                words[id(stream)] = _new_words(stream)
            return words[id(stream)]

        with setting(_keys, StepKeys({}, fetched)), within_step(self._variables_of(state, {})):
            return self._step(state, data)


class CompiledStep:
    """A compiled Keras step; each call passes a new key for each random stream in use, and values of variables.

    Args:
        jitted: The step as Keras has compiled it, from (state, batch) to (logs, state).
        protected: Returns what calls a jitted step, see `mirrored.integrations.keras.newest`.
        variables_of: Returns the variables of the step, given its state and the values of others.
    """

    def __init__(self, jitted: Any, protected: Callable[[Any], Callable[..., Any]], variables_of: VariablesOf) -> None:
        self._function = jitted.__wrapped__
        self._protected = protected
        self._variables_of = variables_of
        self._step = protected(jitted)
        self._has_inputs = False  # besides the state and the batch
        self._streams: list[Variable] = []
        self._others = CurrentValues()

    def __call__(self, state: PyTree, data: PyTree) -> Any:
        """Runs the step on a batch with new keys.

        Traces the step again whenever it uses another random stream, or reads another variable.
        """
        words: list[Any] = []
        while True:
            words += [_new_words(stream) for stream in self._streams[len(words) :]]
            try:
                if self._has_inputs:
                    return self._step(state, (data, tuple(words), self._others.read(state)))
                variables = self._variables_of(state, {}, interrupts=True)
                with setting(_keys, StepKeys({}, _interrupt)), within_step(variables):
                    return self._step(state, data)
            except MissingKey as found:
                self._streams = [*self._streams, found.stream]
            except MissingValues as found:
                self._others = CurrentValues([*self._others.variables, *found.variables])
            self._has_inputs = True
            self._step = self._protected(self._with_inputs(state))

    def _with_inputs(self, state: Sequence[Any]) -> Any:
        function, variables_of = self._function, self._variables_of
        streams, others = self._streams, self._others.variables

        def with_inputs(state: PyTree, inputs: tuple[PyTree, tuple[Any, ...], tuple[Any, ...]]) -> Any:
            data, words, values = inputs
            known = {id(stream): one for stream, one in zip(streams, words, strict=True)}
            variables = variables_of(state, {id(one): value for one, value in zip(others, values, strict=True)})
            with setting(_keys, StepKeys(known, _interrupt)), within_step(variables):
                results = function(state, data)
            if variables.missing:
                raise MissingValues(variables.missing.values())
            return results

        out_shardings = None
        if keras.distribution.distribution() is not None:
            # Taken from the state, although Keras takes them from the variables: reading those would end `withhold` in
            # `newest`, and the loop would then overwrite what a callback assigns.
            out_shardings = (None, tuple([value.sharding for value in group] for group in state))
        return jax.jit(with_inputs, donate_argnums=0, out_shardings=out_shardings)
