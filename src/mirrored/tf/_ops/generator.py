"""Stateful random numbers: `tf.random.Generator`, `tf.random.set_seed` and the global random state.

A stream is a variable ``uint32[3]``: the two words of a key, and a counter of draws. A draw reads it, increments the
counter, and folds the counter and, inside `run`, the replica id into the key. Replicas thus draw different numbers, and
the numbers of a replica are the same on any number of devices and replicas, eager or compiled. Because the stream is a
variable, compiled functions carry it like any other state. Functions of datasets draw from other streams, which depend
on the element (`mirrored.runtime.element_draws`).
"""

from __future__ import annotations

import functools
import secrets
import weakref
from typing import TYPE_CHECKING, Any, Self, SupportsInt

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import distributed
from mirrored._jax.traces import eager
from mirrored._typing import DTypeLike, Operand, StaticInts
from mirrored.checkpoint.memory import keep_in_snapshots
from mirrored.data.global_seed import set_global_seed
from mirrored.runtime.ambient import Ambient, ambient, entered
from mirrored.runtime.element_draws import ElementDraws, Pipelines
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops import samplers
from mirrored.tf._ops.random_streams import advance, drawing_element, element_key, initial_state, key_of, of_replica
from mirrored.tf._tensors import as_tensor
from mirrored.variables.creation import discount_constructor_call
from mirrored.variables.variable import Variable

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy

_DEFAULT_GRAPH_SEED = 87654321  # TensorFlow's default: the global seed, if only an operation has a seed


def _state_of(key: SupportsInt, counter: Operand, method: str) -> np.ndarray[Any, Any]:
    word, *others = (int(one) for one in np.ravel(counter)) if np.size(counter) else (0,)
    if not -(2**63) <= int(key) < 2**64 or not 0 <= word < 2**32 or any(others):
        raise InvalidArgumentError.of(
            f"tf.random.Generator.{method}",
            found=f"the key {int(key)} and the counter {[word, *others]}",
            rule="the state holds a key of 64 bits and a counter of 32 bits",
            remedy="pass a smaller counter, or tf.random.Generator.from_seed(seed), which takes any integer",
        )
    return np.array([int(key) >> 32 & 0xFFFFFFFF, int(key) & 0xFFFFFFFF, word], np.uint32)


def _check_algorithm(alg: object) -> None:
    if isinstance(alg, str) and alg.lower() not in ("philox", "threefry", "auto_select"):
        raise ValueError(
            f"Argument `alg` got unsupported value {alg}. Supported values are philox, threefry and auto_select, which "
            "all mean threefry here"
        )


def key_from_seed(seed: Operand) -> jax.Array:
    """Creates a JAX random key from the pair of integers that `stateless_*` functions take as `seed`."""
    words = as_tensor(seed)
    if words.shape != (2,):
        raise ValueError(f"seed must have shape [2]; got shape {words.shape}")
    return key_of(words)


def _words_of_step(state: weakref.ref[Variable]) -> np.ndarray[Any, Any]:
    """Draws a random key for Keras training steps; returns ``uint32[3]``: the key and a step counter of 0."""
    stream = state()
    assert stream is not None
    return np.append(np.asarray(jax.random.key_data(advance(stream))), np.uint32(0))


class Generator:
    """A random number generator whose state is a variable (`tf.random.Generator`).

    Context: any. In a strategy's scope the state is mirrored: all replicas hold the same state and draw different
    numbers, which do not depend on the number of replicas. If the generator is created outside the scope, the replicas
    draw one after another from one stream. In an eager run a replica makes all its draws before the next one; in a
    compiled run they take turns.

    Args:
        copy_from: Another generator, whose state is copied.
        state: The initial state, ``uint32[3]``.

    Example:
        >>> import mirrored.tf as tf
        >>> a, b = tf.random.Generator.from_seed(1), tf.random.Generator.from_seed(1)
        >>> bool(a.normal([]) == b.normal([]))
        True

    TensorFlow: `tf.random.Generator`, with different numbers; the algorithm is always threefry.
    """

    def __init__(self, copy_from: Generator | None = None, state: Operand = None, alg: object = None) -> None:
        _check_algorithm(alg)
        if copy_from is not None:
            state = copy_from.state.read_value()
        if state is None:
            raise ValueError("Generator requires copy_from or state; Generator.from_seed(1) makes one from a seed")
        self._state = Variable(jnp.asarray(state, jnp.uint32), trainable=False, name="random_generator_state")
        self._state.counts_replicas = True
        self._pipelines = Pipelines()
        self._state.words_of_step = functools.partial(_words_of_step, weakref.ref(self._state))

    @classmethod
    def from_seed(cls, seed: int, alg: object = None) -> Self:
        """Creates a generator whose random numbers depend on the given seed."""
        return cls(state=initial_state(int(seed)), alg=alg)

    @classmethod
    def from_state(cls, state: Operand, alg: object = None) -> Self:
        """Creates a generator that continues from a given state, such as that of another generator."""
        return cls(state=state, alg=alg)

    @classmethod
    def from_key_counter(cls, key: SupportsInt, counter: Operand, alg: object = None) -> Self:
        """Creates a generator from a random key and the number of draws so far.

        Args:
            key: An integer of at most 64 bits.
            counter: The number of draws so far, an integer of 32 bits; or a vector of words, the lowest one first, of
                which only the first may be nonzero.
            alg: The name of an algorithm of TensorFlow; all are threefry here.

        Raises:
            InvalidArgumentError: The key or the counter is larger.
        """
        return cls(state=_state_of(key, counter, "from_key_counter"), alg=alg)

    @classmethod
    def from_non_deterministic_state(cls, alg: object = None) -> Self:
        """Creates a generator with a random seed from the operating system."""
        return cls.from_seed(secrets.randbits(64), alg=alg)

    def next_key(self) -> jax.Array:
        """Draws once: advances the state, and returns a JAX random key that differs for every draw and replica."""
        replica, element = ambient().replica, drawing_element()
        if element is not None:
            words = self._words()
            return element_key(element, words, self._pipelines.number_of(element.pipeline, words))
        if replica is None:
            return advance(self._state)
        index = replica.replica_id_in_sync_group
        if self._state.device_assignment is not None:
            return jax.random.fold_in(advance(self._state), jnp.asarray(index, jnp.uint32))
        # One stream for all replicas. Those of an eager run draw one after another. Those of a compiled run draw at
        # the same time: the stream advances by one draw of each.
        return (
            advance(self._state)
            if isinstance(index, int)
            else advance(self._state, replica.num_replicas_in_sync, index)
        )

    def _words(self) -> list[int]:
        with eager():
            return [int(word) for word in np.asarray(self._state.read_value()[:2])]

    @property
    def state(self) -> Variable:
        """The variable that holds the generator's state, ``uint32[3]``: a random key and the number of draws."""
        return self._state

    @property
    def key(self) -> jax.Array:
        """The random key in the generator's state, ``uint32[2]``."""
        return self._state.read_value()[:2]

    @property
    def algorithm(self) -> str:
        """The name of the random number algorithm, which is always ``"threefry"``."""
        return "threefry"

    def reset(self, state: Operand) -> None:
        """Sets the generator's state to the given state, ``uint32[3]``."""
        self._state.assign(jnp.asarray(state, jnp.uint32), read_value=False)

    def reset_from_seed(self, seed: int) -> None:
        """Sets the generator's state to the state of a new generator with the given seed."""
        self.reset(initial_state(int(seed)))

    def reset_from_key_counter(self, key: SupportsInt, counter: Operand) -> None:
        """Sets the generator's state to a random key and a number of draws, as in `from_key_counter`.

        Raises:
            InvalidArgumentError: The key or the counter is too large.
        """
        self.reset(_state_of(key, counter, "reset_from_key_counter"))

    def skip(self, delta: int) -> jax.Array:
        """Advances the generator as if `delta` draws had been made, and returns the new state."""
        step: jax.Array = self._state.assign(self._state.read_value() + jnp.asarray([0, 0, delta], jnp.uint32))
        return step

    def split(self, count: int = 1) -> list[Generator]:
        """Creates `count` new generators, whose random numbers are independent of each other.

        Their keys depend on one draw of this generator.
        """
        words = jax.random.key_data(jax.random.split(self.next_key(), count))
        return [Generator(state=jnp.concatenate([one, jnp.zeros(1, jnp.uint32)])) for one in words]

    def make_seeds(self, count: int = 1) -> jax.Array:
        """Returns `count` random seeds, ``int32[2, count]``, for `stateless_*` functions."""
        return samplers.full_int(self.next_key(), (2, count))

    def normal(
        self,
        shape: StaticInts,
        mean: Operand = 0.0,
        stddev: Operand = 1.0,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> jax.Array:
        """Returns random values from a normal distribution."""
        return samplers.normal(self.next_key(), shape, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: StaticInts,
        mean: Operand = 0.0,
        stddev: Operand = 1.0,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> jax.Array:
        """Returns random values from a normal distribution truncated at two standard deviations."""
        return samplers.truncated_normal(self.next_key(), shape, mean, stddev, dtype)

    def uniform(
        self,
        shape: StaticInts,
        minval: Operand | None = 0,
        maxval: Operand | None = None,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> jax.Array:
        """Returns random values from a uniform distribution over [minval, maxval).

        Integers without bounds (None for both) cover all values of the dtype.
        """
        return samplers.uniform(self.next_key(), shape, minval, maxval, dtype)

    def uniform_full_int(self, shape: StaticInts, dtype: DTypeLike = "uint64", name: str | None = None) -> jax.Array:
        """Returns random integers, uniform over all values of the dtype."""
        return samplers.full_int(self.next_key(), shape, dtype)

    def binomial(
        self, shape: StaticInts, counts: Operand, probs: Operand, dtype: DTypeLike = "int32", name: str | None = None
    ) -> jax.Array:
        """Returns random values from a binomial distribution."""
        return samplers.binomial(self.next_key(), shape, counts, probs, dtype)


class _Global:
    """The global random state: one variable for code outside of `strategy.run`, and one per strategy for code inside.

    Inside `run` the variable belongs to the strategy, so that its replicas advance it together.
    """

    def __init__(self) -> None:
        self.seed: int | None = None
        self._entropy = secrets.randbits(64)
        self._outside: Variable | None = None
        # The stream of each strategy, with its number among these streams.
        self._inside: weakref.WeakKeyDictionary[Any, tuple[int, Variable]] = weakref.WeakKeyDictionary()
        self._count = 0
        # The words of the next training step of Keras, on the host; None until the first such step.
        self._steps: np.ndarray[Any, Any] | None = None
        # The states with which further streams of strategies begin, by their numbers, from a snapshot.
        self._restored: dict[int, Any] = {}

    def state(self) -> Variable:
        """Returns the current strategy's random state variable in `strategy.run`, and the program's elsewhere."""
        replica = ambient().replica
        if replica is None:
            if self._outside is None:
                self._outside = self._made(None)
            return self._outside
        if replica.strategy not in self._inside:
            start = self._restored.pop(self._count, None)
            self._inside[replica.strategy] = self._count, self._made(replica.strategy, start)
            self._count += 1
        return self._inside[replica.strategy][1]

    def set_seed(self, seed: int) -> None:
        """Sets the global seed, and restarts all random states, inside and outside of `strategy.run`, from it."""
        self.seed = int(seed)
        self._steps = None
        self._restored.clear()
        if self._outside is not None:
            _assign(self._outside, None, self._start(None))
        for strategy, (_, state) in self._inside.items():
            _assign(state, strategy, self._start(strategy))

    def seed_or_default(self) -> int:
        """Returns the global seed, which operations combine with their own; TensorFlow's default if none is set."""
        return _DEFAULT_GRAPH_SEED if self.seed is None else self.seed

    def leave(self) -> None:
        """Discards all random states when this process leaves a job, because their arrays belong to that job."""
        self._outside = self._steps = None
        self._inside.clear()
        self._restored.clear()
        self._count = 0

    # State of the process in the snapshots of elastic jobs, see `ProcessState`.

    def describe(self) -> dict[str, Any]:
        """Returns the global random state except its variables, as a dict for snapshots of elastic jobs."""
        steps = None if self._steps is None else self._steps.tolist()
        numbers = [number for number, _ in self._inside.values()]
        waiting = [[number, np.asarray(words).tolist()] for number, words in self._restored.items()]
        outside = self._outside is not None
        return {"seed": self.seed, "steps": steps, "outside": outside, "inside": numbers, "waiting": waiting}

    def variables(self) -> list[Variable]:
        """Returns the random state variables: that of code outside `strategy.run`, if any, then one per strategy."""
        inside = [state for _, state in self._inside.values()]
        return inside if self._outside is None else [self._outside, *inside]

    def restore(self, described: dict[str, Any], values: list[np.ndarray[Any, Any]]) -> None:
        """Restores the global random state from a snapshot, including states that strategies use only later."""
        self.seed, steps = described["seed"], described["steps"]
        self._steps = None if steps is None else np.array(steps, np.uint32)
        if described["outside"]:
            outside, *values = values
            if self._outside is None:
                self._outside = self._made(None, outside)
            else:
                _assign(self._outside, None, outside)
        self._restored = {**dict(zip(described["inside"], values, strict=True)), **dict(described["waiting"])}
        for strategy, (number, state) in self._inside.items():
            if number in self._restored:
                _assign(state, strategy, self._restored.pop(number))

    def _made(self, strategy: Strategy | None, start: Operand = None) -> Variable:
        with eager(), entered(_outside_of_everything(strategy)):
            value = self._start(strategy) if start is None else jnp.asarray(start, jnp.uint32)
            made = Variable(value, trainable=False, name="global_random_state")
            made.internal = True
            discount_constructor_call()  # so that the draw of a trace that is discarded can be repeated as Python
            made.words_of_step = self.words_of_step
            return made

    def words_of_step(self) -> np.ndarray[Any, Any]:
        """Returns a random key and the counter for the next Keras training step, and increments the counter.

        They are counted on the host, because a draw from a variable would take longer than a short step.
        """
        if self._steps is None:
            self._steps = self._start_of_steps()
        words = self._steps.copy()
        self._steps[2] += 1
        return words

    def _start_of_steps(self) -> np.ndarray[Any, Any]:
        if self.seed is not None:
            return initial_state(self.seed ^ (1 << 62))
        strategy = next(reversed(ambient().strategies), None)
        if strategy is None or not getattr(strategy.device_assignment, "spans_processes", False):
            return initial_state(self._entropy ^ (1 << 62))
        # The random bits of the workers differ; a new variable has those of the first worker.
        return np.array(self._made(strategy).read_value()) ^ np.array([1 << 30, 0, 0], np.uint32)

    def _start(self, strategy: Strategy | None) -> jax.Array:
        seed = self._entropy if self.seed is None else self.seed
        # The streams inside and outside run differ, so that a replica does not repeat earlier draws.
        return jnp.asarray(initial_state(seed if strategy is None else seed ^ (1 << 63)))


def _assign(state: Variable, strategy: Strategy | None, value: Operand) -> None:
    with eager(), entered(_outside_of_everything(strategy)):
        state.assign(jnp.asarray(value, jnp.uint32), read_value=False)


def _outside_of_everything(strategy: Strategy | None) -> Ambient:
    return Ambient(strategies=() if strategy is None else (strategy,))


_global = _Global()
_global_generators: list[Generator] = []
keep_in_snapshots("tf.random", _global)


@distributed.on_leave
def _leave() -> None:
    _global.leave()
    _global_generators.clear()


def set_seed(seed: int) -> None:
    """Sets the global random seed, and restarts the random sequence of `tf.random.normal` and similar functions.

    Datasets created afterwards derive from it the seeds that they are not given. The functions of all datasets
    draw from it in passes that begin afterwards.

    TensorFlow: `tf.random.set_seed`: the same calls repeat the same numbers, which differ from TensorFlow's.
    """
    _global.set_seed(seed)
    set_global_seed(int(seed))


def next_key(seed: int | None = None) -> jax.Array:
    """Returns a new JAX random key for one call of `tf.random.normal` or a similar function.

    Args:
        seed: The operation's own seed; its numbers depend on it and the global seed, not on the operating system.
    """
    element = drawing_element()
    if element is not None:
        return _key_for_element(element, seed)
    key = advance(_global.state())
    if seed is None:
        return of_replica(key)
    state = _global.state().read_value()
    stream = key_of(jnp.asarray(initial_state(_global.seed_or_default())[:2]))
    return of_replica(jax.random.fold_in(jax.random.fold_in(stream, state[2]), seed))


def _key_for_element(element: ElementDraws, seed: int | None) -> jax.Array:
    words = [] if seed is None and _global.seed is None else [_global.seed_or_default()]
    if seed is None or _global.seed is not None:
        return element_key(element, [*words, *([] if seed is None else [int(seed)])], element.pipeline)
    # Without a global seed the number of the pipeline differs between runs of the program, and an order of the
    # pipelines would depend on what else the process has read. As in TensorFlow, the numbers are those of the seed.
    return element_key(element, [*words, int(seed)], 0)


def get_global_generator() -> Generator:
    """Returns the generator set by `set_global_generator`; if none was set, creates one with a random seed.

    TensorFlow: `tf.random.get_global_generator`. As there, `tf.random.normal` and similar functions do not draw from
    it, and `tf.random.set_seed` does not restart it.
    """
    if not _global_generators:
        _global_generators.append(Generator.from_non_deterministic_state())
    return _global_generators[-1]


def set_global_generator(generator: Generator) -> None:
    """Sets the generator that `get_global_generator` returns."""
    _global_generators[:] = [generator]
