"""An interrupt at the entry or exit of a ``with`` block leaves what the block changes as it was before."""

from __future__ import annotations

import gc
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from interrupts import interrupted_in
from mirrored import _blocks

_variable = ContextVar("_variable", default=0)
_state = [0]


@_blocks.contextmanager
def _changed(to: int) -> Iterator[str]:
    before = _state[0]
    try:
        _state[0] = int(to)
        yield "yielded"
    finally:
        _state[0] = before


def check_block(block: Callable[[], AbstractContextManager[Any]], state: Callable[[], object]) -> None:
    """Interrupts a block at each place, and compares the state: while the interrupt is held, and after its release."""

    def run() -> None:
        with block():
            pass

    run()
    before, held = state(), []
    for place in itertools.count():
        held.append(interrupted_in(place, run))  # as a notebook does: with the frames, also unfinished generators
        assert state() == before, held[-1]
        if held[-1] is None:
            break
    held.clear()
    gc.collect()
    assert state() == before
    assert place > 0


def test_a_generator_function_as_a_block() -> None:
    check_block(lambda: _changed(1), lambda: list(_state))
    with _changed(3) as value:
        assert (_state, value) == ([3], "yielded")
    assert _state == [0]
    with pytest.raises(ValueError, match="from the block"), _changed(3):
        raise ValueError("from the block")
    assert _state == [0]


def test_a_block_as_a_decorator() -> None:
    @_changed(3)
    def number(depth: int) -> int:
        return _state[0] if depth == 0 else number(depth - 1)

    assert [number(2), number(0), _state[0]] == [3, 3, 0]


def test_a_block_is_entered_once() -> None:
    block = _changed(3)
    with pytest.raises(AttributeError), block, block:  # as in `contextlib`; the state stayed changed, silently
        pass
    assert _state == [0]


def test_a_block_does_not_keep_its_arguments() -> None:
    class Large:
        pass

    @_blocks.contextmanager
    def forgetting(one: object) -> Iterator[None]:
        del one
        yield

    large = Large()
    reference = weakref.ref(large)
    block = forgetting(large)
    del large
    with block:
        assert reference() is None


def test_a_generator_function_that_raises_or_does_not_stop() -> None:
    @_blocks.contextmanager
    def refusing() -> Iterator[None]:
        raise ValueError("no entry")
        yield

    @_blocks.contextmanager
    def going_on() -> Iterator[None]:
        yield
        yield

    with pytest.raises(ValueError, match="no entry"), refusing():
        pass
    with pytest.raises(RuntimeError, match="didn't stop"), going_on():
        pass


def test_a_context_variable() -> None:
    check_block(lambda: _blocks.setting(_variable, 1), _variable.get)
    with _blocks.setting(_variable, 1):
        assert _variable.get() == 1


def test_a_lock() -> None:
    lock = threading.Lock()
    check_block(lambda: _blocks.acquiring(lock, 1.0), lock.locked)
    with _blocks.acquiring(lock, 0.0) as is_held, _blocks.acquiring(lock, 0.0) as is_held_twice:
        assert (is_held, is_held_twice, lock.locked()) == (True, False, True)
    assert not lock.locked()


def _of_caches() -> tuple[Any, Any]:
    from mirrored._jax import caches

    return lambda: caches.for_replica("replica"), lambda: caches.replica_holder.value


def test_isolated_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrored._jax import caches

    monkeypatch.setattr(caches, "forget_tokens", lambda tokens: None)  # searches what earlier tests have traced
    check_block(caches.fresh, lambda: (caches.current(), caches._trace_cache.get()))


def _of_durations() -> tuple[Any, Any]:
    from mirrored._jax import durations

    return durations.tracing_measured, lambda: set(durations._measured.open_traces)


def _of_bit_identical() -> tuple[Any, Any]:
    from mirrored._jax import bit_identical, fused_attention

    return bit_identical.bit_identical_compilation, lambda: (
        jax.config.jax_use_shardy_partitioner,
        fused_attention._deterministic.get(),
    )


def _of_reads() -> tuple[Any, Any]:
    from mirrored.runtime.ambient import ambient, listening
    from mirrored.tape.custom_gradient import _Collector

    return lambda: listening(_Collector()), ambient


def _of_touching() -> tuple[Any, Any]:
    from mirrored._jax.traces import current_trace
    from mirrored.tape.custom_gradient import _touching

    with mr.GradientTape() as tape, mr.GradientTape() as other:
        traces = [one._trace for one in (tape, other)]
    return lambda: _touching(traces), lambda: ([one.touched for one in traces], current_trace())


def _of_an_overlay() -> tuple[Any, Any]:
    from mirrored.runtime.ambient import ambient
    from mirrored.runtime.overlay_store import OverlayStore

    return lambda: OverlayStore(None, None).current(), ambient


def _of_creators() -> tuple[Any, Any]:
    from mirrored.runtime.ambient import ambient

    return lambda: mr.variable_creator_scope(lambda next_creator, **kwargs: next_creator(**kwargs)), ambient


def _of_colocation() -> tuple[Any, Any]:
    from mirrored.runtime.ambient import ambient

    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(jnp.ones(3))
    return lambda: strategy.extended.colocate_vars_with(v), ambient


def _of_storing() -> tuple[Any, Any]:
    from mirrored.variables import state_lock

    state_lock.thread.kept_back = None
    return state_lock.stored_immediately, lambda: (state_lock.thread.before, state_lock.thread.kept_back)


def _of_comparisons() -> tuple[Any, Any]:
    from mirrored.collectives import host_allgather

    return host_allgather.skipping_comparisons, lambda: host_allgather._Allgathers.trusted


def _of_the_collective_log() -> tuple[Any, Any]:
    from mirrored.watchdog.collective_log import CollectiveLog

    log = CollectiveLog()
    return lambda: log.at("gather"), lambda: log.inside


def _of_checkpoints() -> tuple[Any, Any]:
    from mirrored.checkpoint import restoring
    from mirrored.runtime.ambient import ambient

    return lambda: restoring.outside_of_steps("Checkpoint.save"), ambient


def _of_counting() -> tuple[Any, Any]:
    from mirrored.testing import counting

    return counting.count_work, lambda: list(counting._counters._open)


def _of_a_replica_context() -> tuple[Any, Any]:
    from mirrored.runtime.ambient import ambient
    from mirrored.strategies import context

    strategy = mr.OneDeviceStrategy("CPU:0")
    found = []
    strategy.run(lambda: found.append(mr.get_replica_context()))
    return lambda: found[0], lambda: (ambient(), list(context._opened.blocks))


def _of_a_position() -> tuple[Any, Any]:
    from mirrored.data.calling import taking_turn

    lock = threading.RLock()
    return lambda: taking_turn(lock, "next"), lambda: lock._is_owned()


def _of_a_name() -> tuple[Any, Any]:
    import mirrored.tf as tf
    from mirrored.runtime.ambient import ambient
    from mirrored.tf import _module

    scope = tf.name_scope("a")
    return lambda: scope, lambda: (ambient(), _module._scopes.names, dict(scope._open))


def _of_a_default_device() -> tuple[Any, Any]:
    import mirrored.tf as tf

    return lambda: tf.device("CPU:1"), lambda: jax.config.jax_default_device


def _of_summaries() -> tuple[Any, Any]:
    import mirrored.tf as tf
    from mirrored.tf._io import summary

    return lambda: tf.summary.record_if(False), lambda: summary._defaults.record


def _of_no_writer() -> tuple[Any, Any]:
    from mirrored.tf._io import summary

    return summary._no_writer, lambda: summary._defaults.writers


def _of_inference() -> tuple[Any, Any]:
    from mirrored.tf._autograph import state

    return state.inferring, lambda: state._inferring.depth


def _of_effects() -> tuple[Any, Any]:
    from mirrored.tf._autograph import effects

    return lambda: effects.tracing(lambda: None), lambda: list(effects._threads.bodies)


def _of_changes() -> tuple[Any, Any]:
    from mirrored.tf._autograph import changes

    return lambda: changes.recording(lambda: None), lambda: list(changes._threads.changes)


def _of_a_converted_function() -> tuple[Any, Any]:
    from mirrored.tf._autograph import effects, scope

    return lambda: scope.FunctionScope("f", "f_scope", None), effects.depth


def _of_host_calls() -> tuple[Any, Any]:
    from mirrored.tf import _host_calls

    return lambda: _host_calls.without_host_calls(set()), _host_calls._omitted.get


def _of_runs() -> tuple[Any, Any]:
    from mirrored.perf_model import step_cost

    return step_cost._runs_noted, lambda: mr.Strategy._run


def _of_moved_strategies() -> tuple[Any, Any]:
    from mirrored.perf_model import step_cost

    strategies = [mr.MirroredStrategy(jax.devices()[:2]), mr.MirroredStrategy(jax.devices()[:1])]
    with strategies[0].scope():
        variables = [mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM", trainable=False)]
    elsewhere = mr.MirroredStrategy(jax.devices()[:4]).device_assignment

    def places() -> list[Any]:
        moved = [(one.device_assignment, one.num_replicas) for one in variables]
        return [[one._device_assignment for one in strategies], moved]

    return lambda: step_cost._moved(strategies, variables, elsewhere), places


def _of_results_of_metrics() -> tuple[Any, Any]:
    from mirrored.integrations.keras import logs

    class Metric:
        def result(self) -> float:
            return 0.0

    model: Any = types.SimpleNamespace(metrics=[Metric(), Metric()])
    return lambda: logs.noted_results(model), lambda: ["result" in vars(metric) for metric in model.metrics]


@pytest.mark.parametrize(
    "of", [one for name, one in list(globals().items()) if name.startswith("_of_")], ids=lambda of: of.__name__[4:]
)
def test_an_interrupt_of_a_block_of_mirrored(of: Callable[[], tuple[Any, Any]]) -> None:
    check_block(*of())
