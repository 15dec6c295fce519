"""Variables made outside every scope, in compiled runs of strategies on different devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.compilation import plain_variables
from mirrored.errors import DeviceError

pytestmark = pytest.mark.filterwarnings("ignore::mirrored.errors.OutOfScopeWarning")


def made(devices: list[int], replicas: int | None = None, deterministic: bool = False) -> mr.MirroredStrategy:
    return mr.MirroredStrategy([f"CPU:{one}" for one in devices], num_replicas=replicas, deterministic=deterministic)


FIRST = made([0, 1])
OTHERS = {
    "overlapping": made([1, 2, 3]),
    "all": made([0, 1, 2, 3]),
    "disjoint": made([2, 3]),
    "another order": made([1, 0]),
    "one device": made([1], 3),
    "one replica": made([3]),
    "uneven": made([1, 2], 3),
    "deterministic": made([1, 2], deterministic=True),
}


@pytest.fixture(params=OTHERS.values(), ids=OTHERS)
def other(request: pytest.FixtureRequest) -> mr.MirroredStrategy:
    return request.param  # type: ignore[no-any-return]


def variable(value: Any = (1.0, 2.0), name: str | None = None) -> mr.Variable:
    """A plain variable that a compiled run has left on the devices of `FIRST`."""
    plain = mr.Variable(jnp.asarray(value), name=name)
    mr.function(lambda: FIRST.run(lambda: plain.assign(plain * 1.0)))()
    assert len(plain._array.sharding.device_set) == 2
    return plain


def compiled(strategy: mr.MirroredStrategy, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A compiled function that returns what the first replica returns."""

    def step(*args: Any) -> Any:
        return strategy.run(function, args=args)

    step_of_all = mr.function(step, **options)
    return lambda *args: strategy.experimental_local_results(step_of_all(*args))[0]


USES: dict[str, Callable[[mr.MirroredStrategy, mr.Variable], Any]] = {
    "read": lambda strategy, p: compiled(strategy, lambda: p * 2.0)(),
    "sum": lambda strategy, p: compiled(strategy, lambda: mr.get_replica_context().all_reduce("MEAN", p * 2.0))(),
    "assign": lambda strategy, p: (compiled(strategy, lambda: p.assign(p * 2.0))(), p.numpy())[1],
    "assign without donation": lambda strategy, p: (
        compiled(strategy, lambda: p.assign(p * 2.0), donate=False)(),
        p.numpy(),
    )[1],
    "several steps": lambda strategy, p: (
        compiled(strategy, lambda x: p.assign_add(x), steps_per_call=2)([p.numpy() * 0.25, p.numpy() * 0.75]),
        p.numpy(),
    )[1],
    "in the replica function": lambda strategy, p: strategy.experimental_local_results(
        strategy.run(mr.function(lambda: p * 2.0))
    )[0],
    "an argument": lambda strategy, p: compiled(strategy, lambda value: value * 2.0)(p),
    "a read value": lambda strategy, p: compiled(strategy, lambda value: value * 2.0)(p.read_value()),
    "a captured value": lambda strategy, p: (lambda value: compiled(strategy, lambda: value * 2.0)())(p.read_value()),
    "lowered": lambda strategy, p: (
        mr.function(lambda: strategy.run(lambda: p * 2.0)).lower(),
        compiled(strategy, lambda: p * 2.0)(),
    )[1],
    "eager": lambda strategy, p: strategy.experimental_local_results(strategy.run(lambda: p * 2.0))[0],
    "eager assignment": lambda strategy, p: (
        (strategy.run(lambda: p.assign(p + (1.0, 2.0))), p.numpy())[1] * 2 / (strategy.num_replicas_in_sync + 1)
    ),
}
uses = pytest.mark.parametrize("use", USES.values(), ids=USES)


@pytest.mark.first(30)
@uses
def test_every_strategy_can_use_it(other: mr.MirroredStrategy, use: Callable[..., Any]) -> None:
    """The second strategy refused it: "an argument is on other devices than the variables"."""
    plain = variable()
    assert np.asarray(use(other, plain)).tolist() == [2.0, 4.0]
    assert np.asarray(use(FIRST, variable())).tolist() == [2.0, 4.0]


@pytest.mark.first(3)
def test_strategies_alternate(other: mr.MirroredStrategy) -> None:
    plain, more = variable(), mr.Variable(jnp.zeros(2, int))

    def step() -> Any:
        plain.assign(plain * 2.0)
        more.assign_add(jnp.ones(2, int))
        return plain.read_value()

    steps = [compiled(strategy, step) for strategy in (FIRST, other)]
    results = [steps[number % 2]() for number in range(6)]
    assert [one.tolist() for one in results] == [[2.0**n, 2.0 ** (n + 1)] for n in range(1, 7)]
    assert more.numpy().tolist() == [6, 6]


@pytest.mark.first(3)
def test_values_that_are_held_stay_valid(other: mr.MirroredStrategy) -> None:
    """On devices of both strategies the new array may have the buffers of the old one, which a step donates."""
    plain = variable()
    steps = [compiled(strategy, lambda: plain.assign(plain + 1.0)) for strategy in (FIRST, other)]
    held: list[tuple[Any, list[float]]] = []
    for number in range(8):
        stored = plain._array
        plain.mark_shared()
        held += [(one, plain.numpy().tolist()) for one in (stored, plain.read_value(), plain + 0.0)]
        steps[(number // 2) % 2]()
    assert [np.asarray(value).tolist() for value, _ in held] == [expected for _, expected in held]
    assert plain.numpy().tolist() == [9.0, 10.0]


@pytest.mark.first(4)
@pytest.mark.parametrize("jitted", [True, False])
def test_two_variables_of_two_strategies_without_a_strategy(other: mr.MirroredStrategy, jitted: bool) -> None:
    first, second = variable(), mr.Variable(jnp.asarray([10.0, 20.0]))
    compiled(other, lambda: second.assign(second * 1.0))()
    compile_: Callable[..., Any] = mr.function if jitted else lambda one: one
    assert compile_(lambda: first + second)().tolist() == [11.0, 22.0]
    assert compile_(lambda x: first + x)(jax.device_put(jnp.ones(2), jax.devices()[3])).tolist() == [2.0, 3.0]
    compile_(lambda: first.assign_add(second.read_value()))()
    assert first.numpy().tolist() == [11.0, 22.0]
    assert compiled(other, lambda: first - second)().tolist() == [1.0, 2.0]


@pytest.mark.first(4)
@pytest.mark.parametrize("jitted", [True, False])
def test_with_variables_of_the_strategy(other: mr.MirroredStrategy, jitted: bool) -> None:
    plain = variable()
    with other.scope():
        own = mr.Variable(jnp.asarray([3.0, 4.0]))
    compile_: Callable[..., Any] = mr.function if jitted else lambda one: one
    assert compile_(lambda: plain * own)().tolist() == [3.0, 8.0]
    compile_(lambda: own.assign_add(plain.read_value()))()
    compile_(lambda: plain.assign_add(own.read_value()))()
    assert (own.numpy().tolist(), plain.numpy().tolist()) == ([4.0, 6.0], [5.0, 8.0])


@pytest.mark.first(4)
@pytest.mark.parametrize("place", ["around", "inside", "eager"])
def test_gradients(other: mr.MirroredStrategy, place: str) -> None:
    plain = variable()

    def gradient() -> Any:
        with mr.GradientTape() as tape:
            value = jnp.sum(plain**2)
        return tape.gradient(value, plain)

    if place == "inside":
        result = compiled(other, gradient)()
    elif place == "around":
        step = mr.function(lambda: other.reduce("MEAN", other.run(lambda: jnp.sum(plain**2)), axis=None))
        with mr.GradientTape() as tape:
            value = step()
        result = tape.gradient(value, plain)
    else:
        result = gradient()
    assert np.allclose(result, [2.0, 4.0])


@pytest.mark.first(3)
def test_an_optimizer_built_outside_of_scopes(other: mr.MirroredStrategy) -> None:
    def trained(strategies: list[mr.MirroredStrategy]) -> list[float]:
        plain = mr.Variable(jnp.asarray([1.0, 2.0]))
        optimizer = mr.optimizers.Adam(0.1)
        optimizer.build([plain])

        def step() -> None:
            with mr.GradientTape() as tape:
                loss = jnp.sum(plain**2) / mr.get_replica_context().num_replicas_in_sync
            optimizer.apply_gradients([(tape.gradient(loss, plain), plain)])

        steps = {id(one): mr.function(lambda one=one: one.run(step)) for one in strategies}
        for one in strategies:
            steps[id(one)]()
        return plain.numpy().tolist()  # type: ignore[no-any-return]

    assert np.allclose(trained([FIRST, other, other, FIRST]), trained([FIRST] * 4), rtol=1e-6)


@pytest.mark.first(6)
def test_random_keys_and_steps_whose_variables_are_in_place(
    other: mr.MirroredStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = mr.Variable(jax.random.key(3))
    draw = lambda: jax.random.key_data(key.assign(jax.random.split(key.read_value(), 2)[0]))  # noqa: E731
    steps = [compiled(strategy, draw) for strategy in (FIRST, other)]
    found = [np.asarray(one()).tolist() for one in (*steps, *steps)]
    expected = jax.random.key(3)
    for data in found:
        expected = jax.random.split(expected, 2)[0]
        assert data == jax.random.key_data(expected).tolist()
    monkeypatch.setattr(plain_variables, "_moved", lambda *_: pytest.fail("nothing has to be moved"))
    steps[1]()
    steps[1]()


def test_arguments_on_other_devices_are_refused_still(other: mr.MirroredStrategy) -> None:
    plain = variable()
    step = mr.function(lambda x: FIRST.run(lambda: plain + x))
    with pytest.raises(DeviceError, match="an argument is on other devices than the variables"):
        step(jax.device_put(jnp.ones(2), jax.devices()[3]))
    assert plain.numpy().tolist() == [1.0, 2.0]
    assert compiled(FIRST, lambda: plain.assign(plain + 1.0))().tolist() == [2.0, 3.0]
