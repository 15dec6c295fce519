"""Stateful randomness: `Generator`, the global stream behind `tf.random.normal`, and `set_seed`.

A stream is a variable ``uint32[3]`` (two words of a key, and how often it has been used). A draw reads it, adds one,
and uses the key folded with the count and, inside `run`, with the replica's number: replicas draw different numbers,
and the same ones on any number of devices, eager or compiled. Being a variable, it is carried through compiled
functions like any other state.
"""

from __future__ import annotations

import secrets
import weakref
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import current_trace, eager, is_eval
from mirrored.runtime.ambient import Ambient, ambient, entered
from mirrored.tf import _samplers as samplers
from mirrored.tf._tensors import as_tensor
from mirrored.variables.variable import Variable

_DEFAULT_GRAPH_SEED = 87654321  # TensorFlow's, for operations that have a seed of their own in a program that sets none


def _initial_state(seed: int) -> np.ndarray[Any, Any]:
    # numpy's integers wrap here on purpose: a seed is any Python int
    return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF, 0], np.uint32)


def key_of(words: jax.Array) -> jax.Array:
    """A key from two words."""
    return jax.random.wrap_key_data(words.astype(jnp.uint32), impl="threefry2x32")  # type: ignore[no-any-return]


def key_from_seed(seed: Any) -> jax.Array:
    """The key for the two integers that `stateless_*` takes."""
    words = as_tensor(seed)
    if words.shape != (2,):
        raise ValueError(f"seed must have shape [2]; got shape {words.shape}")
    return key_of(words)


def _advance(state: Variable) -> jax.Array:
    """One draw: a fresh key, unlike those of other draws and replicas."""
    here = ambient()
    if here.store is not None and here.store.captures and is_eval(current_trace()):
        with entered(here.fork(store=None)):  # an initial value, computed at once while a function is traced
            return _advance(state)
    value = state.read_value()
    state.assign(value + jnp.asarray([0, 0, 1], jnp.uint32), read_value=False)
    key = jax.random.fold_in(key_of(value[:2]), value[2])
    replica = ambient().replica
    if replica is None or replica.num_replicas_in_sync == 1:
        return key
    return jax.random.fold_in(key, jnp.asarray(replica.replica_id_in_sync_group, jnp.uint32))


class Generator:
    """A stream of random numbers with a state of its own.

    Context: any. Made in a strategy's scope its state is mirrored: all replicas hold the same state and draw
    different numbers.

    Args:
        copy_from: Another generator, whose state is copied.
        state: A state to start from, ``uint32[3]``.

    Example:
        >>> import mirrored.tf as tf
        >>> a, b = tf.random.Generator.from_seed(1), tf.random.Generator.from_seed(1)
        >>> bool(a.normal([]) == b.normal([]))
        True

    TensorFlow: `tf.random.Generator`, with other numbers; the algorithm is always threefry.
    """

    def __init__(self, copy_from: Generator | None = None, state: Any = None, alg: Any = None) -> None:
        del alg
        if copy_from is not None:
            state = copy_from.state.read_value()
        if state is None:
            raise ValueError("Generator wants copy_from or state; Generator.from_seed(1) makes one from a number")
        self._state = Variable(jnp.asarray(state, jnp.uint32), trainable=False, name="random_generator_state")

    @classmethod
    def from_seed(cls, seed: int, alg: Any = None) -> Self:
        """A generator started from a number."""
        return cls(state=_initial_state(int(seed)), alg=alg)

    @classmethod
    def from_state(cls, state: Any, alg: Any = None) -> Self:
        """A generator that goes on from a state."""
        return cls(state=state, alg=alg)

    @classmethod
    def from_key_counter(cls, key: Any, counter: Any, alg: Any = None) -> Self:
        """A generator from one key word and a counter."""
        return cls(state=np.array([0, int(key) & 0xFFFFFFFF, int(np.ravel(counter)[0])], np.uint32), alg=alg)

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Self:
        """A generator started from the operating system's randomness."""
        return cls.from_seed(secrets.randbits(64), alg=alg)

    @property
    def state(self) -> Variable:
        """The state, a variable of ``uint32[3]``."""
        return self._state

    @property
    def key(self) -> jax.Array:
        """The words of the key."""
        return self._state.read_value()[:2]

    @property
    def algorithm(self) -> str:
        """``"threefry"``."""
        return "threefry"

    def reset(self, state: Any) -> None:
        """Goes on from another state."""
        self._state.assign(jnp.asarray(state, jnp.uint32), read_value=False)

    def reset_from_seed(self, seed: int) -> None:
        """Starts again from a number."""
        self.reset(_initial_state(int(seed)))

    def skip(self, delta: int) -> jax.Array:
        """Leaves out `delta` draws; returns the new state."""
        step: jax.Array = self._state.assign(self._state.read_value() + jnp.asarray([0, 0, delta], jnp.uint32))
        return step

    def split(self, count: int = 1) -> list[Generator]:
        """Independent generators, one draw of this one."""
        words = jax.random.key_data(jax.random.split(_advance(self._state), count))
        return [Generator(state=jnp.concatenate([one, jnp.zeros(1, jnp.uint32)])) for one in words]

    def make_seeds(self, count: int = 1) -> jax.Array:
        """Seeds for `stateless_*` functions: ``int32[2, count]``."""
        return samplers.full_int(_advance(self._state), (2, count))

    def normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32", name: Any = None
    ) -> jax.Array:
        """Normal numbers."""
        return samplers.normal(_advance(self._state), shape, mean, stddev, dtype)

    def truncated_normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32", name: Any = None
    ) -> jax.Array:
        """Normal numbers within two standard deviations."""
        return samplers.truncated_normal(_advance(self._state), shape, mean, stddev, dtype)

    def uniform(
        self, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = "float32", name: Any = None
    ) -> jax.Array:
        """Uniform numbers in [minval, maxval)."""
        return samplers.uniform(_advance(self._state), shape, minval, maxval, dtype)

    def uniform_full_int(self, shape: Any, dtype: Any = "uint32", name: Any = None) -> jax.Array:
        """Integers over the whole range of the dtype."""
        return samplers.full_int(_advance(self._state), shape, dtype)

    def binomial(self, shape: Any, counts: Any, probs: Any, dtype: Any = "int32", name: Any = None) -> jax.Array:
        """Binomial numbers."""
        return samplers.binomial(_advance(self._state), shape, counts, probs, dtype)


class _Global:
    """The stream behind the functions without a generator: one outside `run`, and one per strategy inside it.

    Inside `run` the stream belongs to the strategy, so that its replicas advance it together.
    """

    def __init__(self) -> None:
        self.seed: int | None = None
        self._entropy = secrets.randbits(64)
        self._outside: Variable | None = None
        self._inside: weakref.WeakKeyDictionary[Any, Variable] = weakref.WeakKeyDictionary()

    def state(self) -> Variable:
        """The stream of the present context."""
        replica = ambient().replica
        if replica is None:
            if self._outside is None:
                self._outside = self._made(None)
            return self._outside
        if replica.strategy not in self._inside:
            self._inside[replica.strategy] = self._made(replica.strategy)
        return self._inside[replica.strategy]

    def set_seed(self, seed: int) -> None:
        """Starts all streams again."""
        self.seed = int(seed)
        streams = [(None, self._outside), *self._inside.items()]
        for strategy, state in streams:
            if state is not None:
                with eager(), entered(_outside_of_everything(strategy)):
                    state.assign(self._start(strategy), read_value=False)

    def base(self) -> int:
        """The seed of operations with a seed of their own."""
        return _DEFAULT_GRAPH_SEED if self.seed is None else self.seed

    def _made(self, strategy: Any) -> Variable:
        with eager(), entered(_outside_of_everything(strategy)):
            made = Variable(self._start(strategy), trainable=False, name="global_random_state")
            made.internal = True
            return made

    def _start(self, strategy: Any) -> jax.Array:
        seed = self._entropy if self.seed is None else self.seed
        # another stream inside run than outside, so that one replica does not repeat what was drawn before
        return jnp.asarray(_initial_state(seed if strategy is None else seed ^ (1 << 63)))


def _outside_of_everything(strategy: Any) -> Ambient:
    return Ambient(strategies=() if strategy is None else (strategy,))


_global = _Global()
_replaced: list[Generator] = []


def set_seed(seed: int) -> None:
    """Starts the global stream of random numbers from a number.

    TensorFlow: `tf.random.set_seed`: the same calls give the same numbers again, other ones than in TensorFlow.
    """
    _global.set_seed(seed)


def next_key(seed: Any = None) -> jax.Array:
    """A key for one operation without a generator.

    Args:
        seed: The operation's own seed: its numbers then depend on it and the global seed, not on the operating system.
    """
    if _replaced:
        return _advance(_replaced[-1].state)
    key = _advance(_global.state())
    if seed is None:
        return key
    state = _global.state().read_value()
    own = jax.random.fold_in(
        jax.random.fold_in(key_of(jnp.asarray(_initial_state(_global.base())[:2])), state[2]), seed
    )
    replica = ambient().replica
    if replica is None or replica.num_replicas_in_sync == 1:
        return own
    return jax.random.fold_in(own, jnp.asarray(replica.replica_id_in_sync_group, jnp.uint32))


def get_global_generator() -> Generator:
    """The generator that the functions without one use: the one that was set, or a new one from now on."""
    if not _replaced:
        _replaced.append(
            Generator.from_non_deterministic_state() if _global.seed is None else Generator.from_seed(_global.seed)
        )
    return _replaced[-1]


def set_global_generator(generator: Generator) -> None:
    """Lets the functions without a generator draw from this one."""
    _replaced[:] = [generator]
