"""The pure part of an update equals plain optax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mirrored.optimizers import Optimizer, rules
from mirrored.optimizers.rules import Clipping, Decay
from mirrored.optimizers.slots import UpdatePlan, UpdateRule, slot_key
from mirrored.testing.parity import assert_close_by_norm
from mirrored.variables import Variable

Arrays = dict[str, jax.Array]


class _Loop:
    """Applies a rule directly, with slots in a dict and given cohorts."""

    def __init__(self, rule: UpdateRule, rate: float = 0.1) -> None:
        self.rule, self.rate = rule, jnp.float32(rate)
        self.slots: dict[Any, jax.Array] = {}
        self.cohorts: dict[str, int] = {}

    def step(self, parameters: Arrays, gradients: Arrays) -> Arrays:
        new = {name: parameters[name] for name in gradients if name not in self.cohorts}
        if new:
            cohort = len(set(self.cohorts.values()))
            state = self.rule.initial_state(new, self.rate)
            for leaf, value in zip(self.rule.layout(new).leaves, state, strict=True):
                self.slots[slot_key(leaf.address, leaf.variable, cohort)] = value
            self.cohorts.update(dict.fromkeys(new, cohort))
        names = tuple(gradients)
        cohorts = tuple(self.cohorts[name] for name in names)
        used = {name: parameters[name] for name in names}
        keys = {slot_key(leaf.address, leaf.variable, c) for leaf in self.rule.layout(used).leaves for c in cohorts}
        plan = UpdatePlan(names, cohorts, tuple(sorted(keys)))
        out, state = self.rule(
            plan, self.rate, list(gradients.values()), list(used.values()), [self.slots[key] for key in plan.slots], {}
        )
        self.slots.update(zip(plan.slots, state, strict=True))
        return {**parameters, **dict(zip(names, out, strict=True))}


def _tree(seed: int, dtype: Any = jnp.float32) -> Arrays:
    generator = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(generator.normal(size=(3, 2)), dtype),
        "b": jnp.asarray(generator.normal(size=(2,)), dtype),
        "s": jnp.asarray(generator.normal(), dtype),
    }


def _optax_steps(transform: optax.GradientTransformation, parameters: Arrays, gradients: list[Arrays]) -> Arrays:
    state = transform.init(parameters)
    for gradient in gradients:
        updates, state = transform.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


RULES = {
    "sgd": (rules.sgd(0.0, False, Decay()), optax.sgd(0.1)),
    "momentum": (rules.sgd(0.9, False, Decay()), optax.sgd(0.1, 0.9)),
    "nesterov": (rules.sgd(0.9, True, Decay()), optax.sgd(0.1, 0.9, nesterov=True)),
    "adam": (rules.adam(0.9, 0.999, 1e-7, False, Decay()), optax.adam(0.1, eps=1e-7)),
    "amsgrad": (rules.adam(0.9, 0.999, 1e-7, True, Decay()), optax.amsgrad(0.1, eps=1e-7)),
    "adamw": (rules.adam(0.9, 0.99, 1e-7, False, Decay(0.01)), optax.adamw(0.1, b2=0.99, eps=1e-7, weight_decay=0.01)),
    "adagrad": (rules.adagrad(0.1, 1e-7, Decay()), optax.adagrad(0.1, 0.1, 1e-7)),
    "rmsprop": (rules.rmsprop(0.9, 0.0, 1e-7, False, Decay()), optax.rmsprop(0.1, eps=1e-7)),
    "rmsprop_momentum": (
        rules.rmsprop(0.9, 0.5, 1e-7, False, Decay()), optax.rmsprop(0.1, eps=1e-7, momentum=0.5)
    ),
    "rmsprop_centered": (
        rules.rmsprop(0.9, 0.0, 1e-7, True, Decay()), optax.rmsprop(0.1, eps=1e-7, centered=True)
    ),
    "lion": (rules.lion(0.9, 0.99, Decay(0.01)), optax.lion(0.1, weight_decay=0.01)),
    "lamb": (rules.lamb(0.9, 0.999, 1e-6, Decay(0.01)), optax.lamb(0.1, weight_decay=0.01)),
    "any": (rules.with_rate(optax.yogi), optax.yogi(0.1)),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
@pytest.mark.first(4)
def test_ten_steps_are_those_of_optax(name):
    factory, transform = RULES[name]
    loop, parameters = _Loop(UpdateRule(factory, Clipping())), _tree(0)
    gradients = [_tree(1 + step) for step in range(10)]
    for gradient in gradients:
        parameters = loop.step(parameters, gradient)
    assert_close_by_norm(parameters, _optax_steps(transform, _tree(0), gradients), 1e-6)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.first(4)
def test_bfloat16_stays_bfloat16_and_close_to_optax(name):
    factory, transform = RULES[name]
    loop, parameters = _Loop(UpdateRule(factory, Clipping())), _tree(0, jnp.bfloat16)
    gradients = [_tree(1 + step, jnp.bfloat16) for step in range(3)]
    for gradient in gradients:
        parameters = loop.step(parameters, gradient)
    assert {array.dtype for array in parameters.values()} == {jnp.dtype(jnp.bfloat16)}
    assert_close_by_norm(parameters, _optax_steps(transform, _tree(0, jnp.bfloat16), gradients), 0.02)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.first(9)
def test_dtypes_may_be_mixed_under_strict_promotion(name):
    factory, _ = RULES[name]
    parameters = {"half": jnp.ones(3, jnp.bfloat16), "single": jnp.ones(2)}
    with jax.numpy_dtype_promotion("strict"):
        loop = _Loop(UpdateRule(factory, Clipping(global_clipnorm=1.0)))
        new = loop.step(parameters, {"half": jnp.ones(3), "single": jnp.ones(2, jnp.bfloat16)})
    assert {name: array.dtype for name, array in new.items()} == {name: a.dtype for name, a in parameters.items()}
    assert all(bool((array < 1).all()) for array in new.values())


def test_variables_that_join_later_start_at_step_0():
    rule = UpdateRule(rules.adam(0.9, 0.999, 1e-7, False, Decay()), Clipping())
    loop, parameters = _Loop(rule), _tree(0)
    gradients = [_tree(1 + step) for step in range(6)]
    for step, gradient in enumerate(gradients):
        parameters = loop.step(parameters, gradient if step >= 3 else {"w": gradient["w"]})
    early = _optax_steps(optax.adam(0.1, eps=1e-7), {"w": _tree(0)["w"]}, [{"w": g["w"]} for g in gradients])
    late = _optax_steps(
        optax.adam(0.1, eps=1e-7), {n: _tree(0)[n] for n in "bs"}, [{n: g[n] for n in "bs"} for g in gradients[3:]]
    )
    assert_close_by_norm(parameters, {**early, **late}, 1e-6)


def test_separate_calls_are_separate_optimizers():
    rule = UpdateRule(rules.adam(0.9, 0.999, 1e-7, False, Decay()), Clipping())
    loop, parameters = _Loop(rule), _tree(0)
    gradients = [_tree(1 + step) for step in range(4)]
    for gradient in gradients:
        for name in gradient:
            parameters = loop.step(parameters, {name: gradient[name]})
    assert_close_by_norm(parameters, _optax_steps(optax.adam(0.1, eps=1e-7), _tree(0), gradients), 1e-6)


def test_a_norm_inside_the_transform_is_over_all_variables_of_the_call():
    transform = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1))
    loop, parameters = _Loop(UpdateRule(lambda _: transform, Clipping())), _tree(0)
    first, second = _tree(1), _tree(2)
    parameters = loop.step(parameters, {"w": first["w"]})
    parameters = loop.step(parameters, second)
    norm = optax.global_norm(second)
    clipped = {name: second[name] / norm * 0.5 for name in "bs"}
    expected = _optax_steps(optax.adam(0.1), {name: _tree(0)[name] for name in "bs"}, [clipped])
    assert_close_by_norm({name: parameters[name] for name in "bs"}, expected, 1e-6)


def test_a_mask_by_name_sees_the_names_of_the_variables():
    decay = Decay(0.5, lambda tree: {name: name != "b" for name in tree})
    loop = _Loop(UpdateRule(rules.sgd(0.0, False, decay), Clipping()))
    zeros = jax.tree.map(jnp.zeros_like, _tree(0))
    new = loop.step(_tree(0), zeros)
    assert_close_by_norm(new, {n: a if n == "b" else a * 0.95 for n, a in _tree(0).items()}, 1e-6)


def test_a_random_key_in_the_state_moves_on():
    transform = optax.add_noise(1.0, 0.0, key=jax.random.key(0))
    loop = _Loop(UpdateRule(lambda _: optax.chain(transform, optax.sgd(0.1)), Clipping()))
    zeros = jax.tree.map(jnp.zeros_like, _tree(0))
    first = loop.step(zeros, zeros)
    second = loop.step(zeros, zeros)
    assert not jnp.array_equal(first["w"], second["w"])
    assert_close_by_norm(
        second,
        jax.tree.map(jnp.subtract, _optax_steps(optax.chain(transform, optax.sgd(0.1)), zeros, [zeros] * 2), first),
        1e-5,
    )


def test_multi_steps_is_taken_as_optax_documents_it():
    v = Variable(jnp.zeros(2))
    optimizer = Optimizer(optax.MultiSteps(optax.sgd(0.5), 2))
    for gradient, expected in ((1.0, 0.0), (3.0, -1.0)):  # the second step applies the mean of both gradients
        optimizer.apply_gradients([(jnp.full(2, gradient), v)])
        np.testing.assert_array_equal(v.numpy(), np.full(2, expected))
