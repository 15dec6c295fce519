"""Tracebacks show the user's frames, unless JAX is told to show all; interrupts stay interrupts."""

from __future__ import annotations

import os
import traceback

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr

_PACKAGE = os.path.dirname(mr.__file__) + os.sep


def _wrong(x):
    return x + jnp.ones(3)


def _files(use, *args):
    with pytest.raises(TypeError, match="incompatible shapes") as caught:
        use(*args)
    return [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_internal_frames_are_hidden(compiled, replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=replicas)

    def step(x):
        return strategy.run(_wrong, args=(x,))

    use = mr.function(step) if compiled else step
    hidden = [name for name in _files(use, jnp.ones(2)) if name.startswith(_PACKAGE)]
    assert hidden == []
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        assert any(name.startswith(_PACKAGE) for name in _files(use, jnp.ones(2)))
    finally:
        jax.config.update("jax_traceback_filtering", before)


class Key:
    """A key of one of JAX's caches; Ctrl-C comes while it is compared."""

    comes: type[BaseException] | None = None

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        if Key.comes is not None:
            raise Key.comes
        return True


@pytest.mark.parametrize("comes", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_interrupt_in_jaxs_caches_stays_an_interrupt(monkeypatch, comes, compiled, replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=replicas)
    jitted = jax.jit(lambda key, x: x, static_argnums=0)

    def step(x):
        return strategy.run(lambda x: jitted(Key(), x) + jitted(Key(), x), args=(x,))

    use = mr.function(step) if compiled else step
    monkeypatch.setattr(Key, "comes", comes)
    with pytest.raises(KeyboardInterrupt if comes is KeyboardInterrupt else ValueError):
        use(jnp.ones(2))


@pytest.mark.parametrize("where", ["cache", "C", "C under a transformation"])
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_an_interrupt_in_an_assignment_outside_of_a_run_stays_an_interrupt(monkeypatch, method, where):
    """It was the ValueError of JAX's cache, or the SystemError of code in C that Ctrl-C interrupts."""
    v = mr.Variable(jnp.ones(2))
    jitted = jax.jit(lambda key, x: x, static_argnums=0)

    def interrupted(*_):
        if where == "C":
            raise SystemError("a function returned a result with an exception set") from KeyboardInterrupt()
        if where == "C under a transformation":  # JAX inserts an exception that shows where an equation comes from
            inserted = RuntimeError("the stack trace of the source")
            inserted.__cause__ = KeyboardInterrupt()
            raise SystemError("a function returned a result with an exception set") from inserted
        return jitted(Key(), 1.0) + jitted(Key(), 1.0)

    monkeypatch.setattr(Key, "comes", KeyboardInterrupt)
    monkeypatch.setattr("mirrored.variables.access._write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(v, method)(jnp.ones(2))
