"""Programs that are lowered once for all epochs of an elastic job: what makes two programs the same one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mirrored._jax import lowerings
from mirrored._jax.private import pxla


def traced(function: Any, *args: Any) -> Any:
    """A new trace, of which JAX keeps nothing."""
    return jax.make_jaxpr(lambda *operands: function(*operands))(*args)


X = np.ones((4, 3), np.float32)


def program(x: Any, *, factor: float = 2.0, length: int = 3, axis: int = 0) -> Any:
    def body(carry: Any, _: None) -> tuple[Any, None]:
        return jax.nn.relu(carry * factor), None

    carried, _ = jax.lax.scan(body, x, None, length=length)
    key = jax.random.fold_in(jax.random.key(0), 1)
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), carried, 0.0).sum(axis)


def test_two_traces_of_a_function_have_one_description():
    assert lowerings.description(traced(program, X)) == lowerings.description(traced(program, X))


@pytest.mark.parametrize(
    "other",
    [
        traced(lambda x: program(x, factor=2.5), X),
        traced(lambda x: program(x, length=4), X),
        traced(lambda x: program(x, axis=1), X),
        traced(program, np.ones((4, 4), np.float32)),
        traced(program, np.ones((4, 3), np.float16)),
        traced(lambda x: program(x) + 0.0, X),
        traced(lambda x: -program(x), X),
    ],
)
def test_another_operation_parameter_constant_or_type_gives_another_description(other: Any):
    assert lowerings.description(other) != lowerings.description(traced(program, X))


def test_constants_count_with_their_bits():
    first, second = np.zeros(3, np.float32), np.zeros(3, np.float32)
    second[0] = -0.0
    describe = lambda value: lowerings.description(traced(lambda x: x + value, X))  # noqa: E731
    assert describe(first) == describe(first.copy())
    assert describe(first) != describe(second)


def test_which_operand_is_used_counts():
    describe = lambda function: lowerings.description(traced(function, X, X))  # noqa: E731
    assert describe(lambda a, b: a - b) != describe(lambda a, b: b - a)
    assert describe(lambda a, b: a - b) == describe(lambda b, a: b - a)


def test_a_function_that_is_called_twice_is_not_two_equal_functions():
    inner = [jax.jit(lambda x: x * 2.0) for _ in range(2)]
    once = traced(lambda x: inner[0](x) + inner[0](x), X)
    twice = traced(lambda x: inner[0](x) + inner[1](x), X)
    assert lowerings.description(once) != lowerings.description(twice)


def test_shardings_count_with_the_ids_of_their_devices():
    meshes = [Mesh(np.array(jax.devices()[:2]), ("r",)), Mesh(np.array(jax.devices()[1:3]), ("r",))]
    spec = PartitionSpec("r")
    texts = [lowerings.description(NamedSharding(mesh, spec)) for mesh in meshes]
    assert texts[0] == lowerings.description(NamedSharding(Mesh(np.array(jax.devices()[:2]), ("r",)), spec))
    assert texts[0] != texts[1]
    assert texts[0] != lowerings.description(NamedSharding(meshes[0], PartitionSpec()))


def test_settings_of_jax_count():
    jaxpr = traced(program, X)
    with jax.default_matmul_precision("float32"):
        inside = lowerings.description(jaxpr)
    assert inside != lowerings.description(jaxpr)


@pytest.mark.parametrize("value", [object(), (lambda held: lambda: held)(1), jnp.zeros(3), np.array([object()])])
def test_what_is_not_known_is_refused(value: Any):
    with pytest.raises(lowerings.Unknown):
        lowerings.description((1, [value]))


def test_a_program_with_an_array_of_a_device_is_not_kept():
    held = jnp.arange(3.0)
    with pytest.raises(lowerings.Unknown):
        lowerings.description(traced(lambda x: x + held, X))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lowerings, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(lowerings, "_MOST", 2)
    original = pxla._cached_lowering_to_hlo
    assert lowerings.keep_lowerings()
    yield
    pxla._cached_lowering_to_hlo = original
    lowerings._Installed.lowered = None


def run(factor: float) -> list[float]:
    result: list[float] = jax.jit(lambda x: program(x, factor=factor))(X).tolist()
    return result


def test_an_equal_program_is_lowered_once_and_computes_the_same(kept: None):
    expected, other = run(2.0), run(3.0)
    before = lowerings.hits()
    jax.clear_caches()
    assert run(2.0) == expected
    assert lowerings.hits() == before + 1
    assert run(3.0) == other != expected
    assert lowerings.hits() == before + 2


def test_the_oldest_lowerings_are_dropped(kept: None):
    for factor in (2.0, 3.0, 4.0):
        run(factor)
    before = lowerings.hits()
    jax.clear_caches()
    run(2.0)
    assert lowerings.hits() == before


def test_a_program_that_calls_python_is_lowered_again(kept: None):
    def calls() -> list[float]:
        seen: list[float] = []
        jax.jit(lambda x: jax.debug.callback(lambda value: seen.append(float(value)), x.sum()))(X)
        jax.effects_barrier()
        return seen

    assert calls() == calls() == [12.0]
