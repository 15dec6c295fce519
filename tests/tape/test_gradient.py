"""`GradientTape.gradient`: watched values, sources and targets, the lifecycle of a tape."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored import Variable
from mirrored._jax.traces import is_eager
from mirrored.compilation import function
from mirrored.errors import ArgumentError, ArgumentTypeError, StructureError, TapeError
from mirrored.runtime.ambient import ambient
from mirrored.tape import GradientTape, UnconnectedGradients, custom_gradient, stop_gradient
from mirrored.tape.forward_accumulator import ForwardAccumulator


@pytest.fixture
def x():
    return jnp.array(3.0)


@pytest.fixture
def v():
    return jnp.array([1.0, 2.0])


# Watched values


def test_only_what_is_computed_after_watch_counts(x):
    with GradientTape(persistent=True) as tape:
        before = x * x
        tape.watch(x)
        after = x * 5.0
    assert tape.gradient(before, x) is None
    assert float(tape.gradient(after, x)) == 5.0


def test_watch_is_local_to_its_tape(x):
    with GradientTape() as outer:
        outer.watch(x)
        with GradientTape() as inner:
            y = x * x
    assert inner.gradient(y, x) is None
    assert float(outer.gradient(y, x)) == 6.0


def test_watch_returns_nothing_and_tracks_the_users_own_object(x):
    with GradientTape() as tape:
        assert tape.watch(x) is None
        y = jax.jit(lambda c: c * x + jnp.sin(x))(2.0)
        y += jax.lax.cond(y > 0, lambda: x * x, lambda: x)
        y += jax.lax.scan(lambda c, _: (c * x, None), 1.0, None, length=3)[0]
        y += jax.checkpoint(lambda c: c * x)(2.0)
        y += jax.lax.while_loop(lambda c: c < 100.0, lambda c: c * x, 5.0)
    assert float(tape.gradient(y, x)) == pytest.approx(2 + np.cos(3) + 6 + 27 + 2 + 5 * 27)


@pytest.mark.long
def test_watched_arrays_of_any_rank_are_found_inside_nested_functions(v):
    scale = jnp.array(2.0)
    inner = jax.jit(lambda c: c * v * scale)
    outer = jax.jit(lambda c: inner(c) + jax.lax.scan(lambda s, _: (s * scale + v, None), c, None, length=2)[0])
    with GradientTape() as tape:
        tape.watch([v, scale])
        y = jnp.sum(outer(jnp.ones(2)))
    by_tape = tape.gradient(y, [v, scale])

    def plain(v, scale):
        return jnp.sum(v * scale + (scale + v) * scale + v)

    for ours, expected in zip(by_tape, jax.grad(plain, (0, 1))(v, scale), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize(("bad", "kind"), [(np.array(1.0), "ndarray"), ("a", "str"), (1.0, "float")])
def test_watch_refuses_other_objects(bad, kind):
    with pytest.raises(ArgumentError, match=f"of type '{kind}'"):
        GradientTape().watch(bad)
    with pytest.raises(ValueError, match="convert it with jnp.asarray first"):
        GradientTape().watch([bad])


def test_integers_have_no_gradient_and_watching_them_warns_once(x, caplog):
    i = jnp.array(2)
    with caplog.at_level(logging.WARNING, "mirrored.tape"), GradientTape(persistent=True) as tape:
        tape.watch([i, x])
        y = i * i
        z = (x * 3.0).astype(jnp.int32)
    assert [record.message for record in caplog.records] == [
        "The dtype of the watched tensor must be floating (e.g. float32), got int32"
    ]
    assert tape.gradient(y, i) is None
    assert tape.gradient(z, x) is None
    zero = tape.gradient(y, i, unconnected_gradients="zero")
    assert zero.dtype == jnp.int32
    assert int(zero) == 0


def test_equal_constants_are_different_sources():
    a, b = jnp.array(1.0), jnp.array(1.0)
    with GradientTape() as tape:
        tape.watch([a, b])
        y = a * 2.0 + b * 3.0
    assert [float(g) for g in tape.gradient(y, [a, b])] == [2.0, 3.0]


# Sources and targets


@dataclasses.dataclass
class Pair:
    left: object
    right: object
    name: object = None


jax.tree_util.register_dataclass(Pair, ["left", "right", "name"], [])


def test_result_has_the_structure_of_the_sources(x, v):
    with GradientTape(persistent=True) as tape:
        tape.watch([x, v])
        y = x * jnp.sum(v)
    assert float(tape.gradient(y, x)) == 3.0
    assert [float(g) for g in tape.gradient(y, [x])] == [3.0]
    first, second = tape.gradient(y, (x, v))
    assert (float(first), second.tolist()) == (3.0, [3.0, 3.0])
    nested = tape.gradient(y, {"p": x, "r": [v, (x,)]})
    assert float(nested["p"]) == float(nested["r"][1][0]) == 3.0
    assert tape.gradient(y, []) == []
    pair = tape.gradient(y, Pair(x, [v]))
    assert isinstance(pair, Pair)
    assert float(pair.left) == 3.0
    assert pair.name is None
    assert [float(g) for g in tape.gradient(y, [x, x])] == [3.0, 3.0]


class Layers(NamedTuple):
    last: object
    first: object


def test_dicts_of_gradients_have_the_order_of_the_dicts_of_sources(x, v):
    """`zip(gradients.values(), variables.values())` must pair each gradient with its variable."""
    sources = {"w": x, "b": [{"z": v, "a": (x, {"d": x, "c": v})}], "layers": Layers({"k": x, "j": x}, v)}
    with GradientTape(persistent=True) as tape:
        tape.watch([x, v])
        y = x * jnp.sum(v)
    for found in (tape.gradient(y, sources), tape.jacobian(y, sources)):
        assert str(jax.tree.map(jnp.shape, found)) == str(jax.tree.map(jnp.shape, sources))
        assert list(found) == list(sources)
        assert list(found["b"][0]) == ["z", "a"]
        assert list(found["b"][0]["a"][1]) == ["d", "c"]
        assert list(found["layers"].last) == ["k", "j"]


def test_intermediate_values_are_sources(x):
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        z = y * y
        w = z + y
    assert float(tape.gradient(z, x)) == 108.0
    assert float(tape.gradient(z, y)) == 18.0
    assert [float(g) for g in tape.gradient(w, [x, y, z])] == [114.0, 19.0, 1.0]


def test_operations_that_change_nothing_are_values_of_their_own():
    x = jnp.array(2.0)
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        values = [x, jnp.copy(x), x + 0, x - 0, x * 1]
        y = sum(k * value for k, value in enumerate(values, 1))
    assert [float(tape.gradient(y, value)) for value in values] == [15.0, 2.0, 3.0, 4.0, 5.0]


def test_a_shifted_value_is_a_source_of_its_own(x):
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        shifted = x + 1.0
        twice = shifted + 1.0
        y = x * shifted * twice
    assert [float(g) for g in tape.gradient(y, [x, shifted, twice])] == [47.0, 27.0, 12.0]
    assert [float(g) for g in tape.gradient(y, [x, twice])] == [47.0, 12.0]
    assert float(tape.gradient(y, x)) == 47.0
    assert float(tape.gradient([y, twice], x)) == 48.0


def test_targets_are_added_up(x, v):
    with GradientTape(persistent=True) as tape:
        tape.watch([x, v])
        y, z, q = x * x, 5.0 * x, v * v
    assert float(tape.gradient([y, z], x)) == 11.0
    assert float(tape.gradient({"a": y, "b": z}, x)) == 11.0
    assert tape.gradient(q, v).tolist() == [2.0, 4.0]
    assert float(tape.gradient([y, x], x)) == 7.0
    assert float(tape.gradient([y, y], y)) == 2.0
    assert float(tape.gradient(x, x)) == 1.0


def test_output_gradients_weight_the_targets(x, v):
    with GradientTape(persistent=True) as tape:
        tape.watch([x, v])
        y, z, q = x * x, 5.0 * x, v * v
    assert tape.gradient(q, v, output_gradients=jnp.array([10.0, 100.0])).tolist() == [20.0, 400.0]
    assert float(tape.gradient([y, z], x, output_gradients=[jnp.array(2.0), 0.5])) == 14.5
    of_v, of_x = tape.gradient([q, y], [v, x], output_gradients=[jnp.array([1.0, 0.0]), None])
    assert (of_v.tolist(), float(of_x)) == ([2.0, 0.0], 6.0)


@pytest.mark.parametrize("wrap", [lambda f: f, function], ids=["eager", "compiled"])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 1)], ids=str)
@pytest.mark.parametrize("given", [lambda one: (one,), lambda one: [one], lambda one: one], ids=["()", "[]", "bare"])
def test_one_target_takes_its_output_gradient_alone_or_in_a_sequence(wrap, shape, given):
    def slope(x, upstream):
        with GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x, output_gradients=given(upstream))

    assert wrap(slope)(jnp.full(shape, 2.0), jnp.full(shape, 5.0)).tolist() == jnp.full(shape, 20.0).tolist()


def test_an_output_gradient_can_be_a_nested_list_of_numbers_or_none_in_a_tuple():
    with GradientTape(persistent=True) as tape:
        x = jnp.ones((1, 1))
        tape.watch(x)
        y = x * x
    assert tape.gradient(y, x, output_gradients=[[3.0]]).tolist() == [[6.0]]
    assert tape.gradient(y, x, output_gradients=(None,)).tolist() == [[2.0]]


def test_output_gradients_must_fit(v):
    with GradientTape(persistent=True) as tape:
        tape.watch(v)
        y = v * v
    with pytest.raises(StructureError, match=r"an output gradient has shape \(3,\), its target \(2,\)"):
        tape.gradient(y, v, output_gradients=jnp.ones(3))
    with pytest.raises(StructureError, match="1 output_gradients were passed for 2 targets"):
        tape.gradient([y, y], v, output_gradients=[jnp.ones(2)])
    for weight in (jnp.array([1.0, 1j]), np.array([1.0, 1j]), [1.0, 1j]):
        with pytest.raises(StructureError, match="an output gradient has dtype complex.*, its target float32"):
            tape.gradient(y, v, output_gradients=weight)


def weighted(names, output_gradients):
    """Returns the gradient of x² and x³, named in this order, with respect to x = 2."""
    x = jnp.asarray(2.0)
    with GradientTape() as tape:
        tape.watch(x)
        targets = (x * x, x * x * x)
        targets = dict(zip(names, targets, strict=True)) if isinstance(names, str) else list(targets)
    return float(tape.gradient(targets, x, output_gradients=output_gradients))


@pytest.mark.parametrize(
    ("names", "given"),
    [
        ("ab", {"a": 1.0, "b": 0.0}),
        ("ab", {"b": 0.0, "a": 1.0}),
        ("za", {"z": 1.0, "a": 0.0}),
        ("az", collections.OrderedDict(a=1.0, z=0.0)),
        ("ab", [1.0, 0.0]),
        ("ab", [[1.0], (0.0,)]),
        (None, (1.0, 0.0)),
        (None, [[1.0, 0.0]]),
        (None, {"a": 1.0, "b": 0.0}),
    ],
)
def test_output_gradients_are_paired_by_the_keys_of_dicts(names, given):
    assert weighted(names, given) == 4.0


@pytest.mark.parametrize(
    ("names", "given"),
    [
        ("ab", {"b": 1.0, "c": 0.0}),
        ("za", collections.OrderedDict(z=1.0, a=0.0)),
        ("za", [1.0, 0.0]),
        (None, {"z": 1.0, "a": 0.0}),
        ("ab", {"a": [1.0, 0.0]}),
    ],
    ids=["other keys", "JAX sorts only dicts", "list for unsorted keys", "unsorted keys for a list", "one key"],
)
def test_output_gradients_with_other_keys_are_refused(names, given):
    with pytest.raises(StructureError, match="would be paired with the target"):
        weighted(names, given)


def test_output_gradients_may_omit_a_dict_with_one_key(x):
    with GradientTape() as tape:
        tape.watch(x)
        targets = {"out": {"b": x * x, "a": 5.0 * x}}
    assert float(tape.gradient(targets, x, output_gradients={"b": 0.0, "a": 1.0})) == 5.0


def test_unconnected_sources_give_none_or_zeros(x, v):
    y = jnp.ones([2, 2])
    with GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        z = x * 2.0
    assert tape.gradient(z, y) is None
    assert tape.gradient(z, y, unconnected_gradients="none") is None
    assert tape.gradient(z, v, unconnected_gradients=UnconnectedGradients.ZERO).tolist() == [0.0, 0.0]
    structure = tape.gradient(z, {"a": y, "b": [x, v]}, unconnected_gradients="zero")
    assert structure["a"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert [float(structure["b"][0]), structure["b"][1].tolist()] == [2.0, [0.0, 0.0]]
    with pytest.raises(ValueError, match="Unknown value for unconnected_gradients: 'nonsense'"):
        tape.gradient(z, x, unconnected_gradients="nonsense")


@pytest.mark.parametrize(
    "cut", [stop_gradient, jnp.round, jnp.sign, jnp.floor, lambda x: jnp.argmax(x) * 1.0, lambda x: (x > 1) * 2.0]
)
def test_what_has_no_derivative_is_not_connected(cut, v):
    with GradientTape() as tape:
        tape.watch(v)
        y = jnp.sum(cut(v))
    assert tape.gradient(y, v) is None


def test_wrong_targets_and_sources_are_refused(x):
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
    with pytest.raises(TypeError, match="the target is None"):
        tape.gradient(None, x)
    with pytest.raises(ArgumentTypeError, match="a target is 3.0 of type 'float'"):
        tape.gradient(3.0, x)
    with pytest.raises(ArgumentTypeError, match="the source is None"):
        tape.gradient(y, None)
    with pytest.raises(ArgumentTypeError, match=r"the source at \[1\] is None"):
        tape.gradient(y, [x, None])
    with pytest.raises(ArgumentTypeError, match=r"the source at \['a'\] is 2.0 of type 'float'"):
        tape.gradient(y, {"a": 2.0})


def test_zero_size_arrays():
    x = jnp.zeros([0, 2])
    with GradientTape() as tape:
        tape.watch(x)
        y = jnp.sum(x * 2.0)
    assert tape.gradient(y, x).shape == (0, 2)


def test_bfloat16_and_complex_follow_jax():
    low, z = jnp.array([1.5, 2.0], jnp.bfloat16), jnp.array([1 + 2j])
    with GradientTape(persistent=True) as tape:
        tape.watch([low, z])
        y, q = jnp.sum(low * low), jnp.sum(jnp.abs(z * z) ** 2)
    gradient = tape.gradient(y, low)
    assert gradient.dtype == jnp.bfloat16
    assert gradient.tolist() == [3.0, 4.0]
    np.testing.assert_allclose(tape.gradient(q, z), jax.grad(lambda z: jnp.sum(jnp.abs(z * z) ** 2))(z))


# The lifecycle of a tape


def test_second_gradient_of_a_plain_tape_is_refused(x):
    with GradientTape() as tape:
        tape.watch(x)
        y = x * x
    assert float(tape.gradient(y, x)) == 6.0
    with pytest.raises(RuntimeError, match="A non-persistent GradientTape can only be used to compute one set"):
        tape.gradient(y, x)
    with pytest.raises(TapeError, match=r"GradientTape.jacobian(.|\n)*persistent=True"):
        tape.jacobian(y, x)


def test_gradient_inside_the_block_ends_a_plain_tape(x):
    with GradientTape() as tape:
        tape.watch(x)
        y = x * x
        gradient = tape.gradient(y, x)
        assert type(x * 2.0) is type(x)
    assert float(gradient) == 6.0


def test_entering_again_goes_on(x):
    tape = GradientTape()
    with tape:
        tape.watch(x)
        y = 2.0 * x
    lost = y + 100.0
    with tape:
        z = 2.0 * y
    assert float(lost) == 106.0
    assert float(tape.gradient(z, x)) == 4.0


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_tape_entered_again_after_its_gradient_records_anew(x, is_inside):
    tape, slopes = GradientTape(), []
    for power in (2, 3):
        with tape:
            tape.watch(x)
            y = x**power
            if is_inside:
                slopes.append(float(tape.gradient(y, x)))
        if not is_inside:
            slopes.append(float(tape.gradient(y, x)))
    assert slopes == [6.0, 27.0]
    with pytest.raises(RuntimeError, match="only be used to compute one set of gradients"):
        tape.gradient(y, x)

    with tape:
        z = y * x
    assert tape.gradient(z, x) is None


def test_entering_twice_is_refused():
    with GradientTape() as tape, pytest.raises(ValueError, match="Tape is still recording"):
        tape.__enter__()


def test_stop_recording(x):
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        x2 = x * 2.0
        with tape.stop_recording():
            y = x2 * x2
            inner = tape.gradient(x2, x)
        z = x2 * x2
    assert float(inner) == 2.0
    assert tape.gradient(y, x2) is None
    assert tape.gradient(y, x) is None
    assert float(tape.gradient(z, x2)) == 12.0
    assert float(tape.gradient(z, x)) == 24.0
    with pytest.raises(RuntimeError, match="Trying to stop recording a tape which is not recording"):
        tape.stop_recording().__enter__()


def test_stop_recording_checks_the_tape_where_its_block_begins(x):
    tape = GradientTape(persistent=True)
    paused = tape.stop_recording()
    with tape:
        tape.watch(x)
        with paused:
            y = x * x
        z = x * x
        paused = tape.stop_recording()
    assert (tape.gradient(y, x), float(tape.gradient(z, x))) == (None, 6.0)
    with pytest.raises(RuntimeError, match="Trying to stop recording a tape which is not recording"):
        paused.__enter__()


def test_stop_recording_decorates_a_function(x):
    with GradientTape() as tape:
        tape.watch(x)

        @tape.stop_recording()
        def squared():
            return x * x

        y = squared() * squared() * x
    assert float(tape.gradient(y, x)) == 81.0


@pytest.mark.parametrize("how", ["stop_recording", "entering again"])
def test_recording_goes_on_while_an_inner_tape_is_open(x, how):
    v = Variable(3.0)

    @contextlib.contextmanager
    def left_and_entered_again(tape):
        tape.__exit__(None, None, None)
        yield
        tape.__enter__()

    with GradientTape() as outer:
        outer.watch(x)
        with GradientTape(persistent=True) as inner:
            inner.watch(x)
            with outer.stop_recording() if how == "stop_recording" else left_and_entered_again(outer):
                y = x * x
            z = x * x * x * v.read_value()
        slope = inner.gradient(z, [x, v])
    assert type(jnp.sin(x)) is type(x)
    assert not ambient().listeners
    assert float(inner.gradient(y, x)) == 6.0
    assert [float(one) for one in slope] == [81.0, 27.0]
    assert [float(one) for one in outer.gradient([z, *slope], [x, v])] == [81.0 + 54.0 + 27.0, 27.0 + 27.0]


def test_reset_forgets_what_was_recorded(x):
    with GradientTape() as tape:
        tape.watch(x)
        loss = x * x
        tape.reset()
        tape.watch(x)
        loss = loss + x * x
    assert float(tape.gradient(loss, x)) == 6.0
    with pytest.raises(ValueError, match=r"Tape is not recording\."):
        tape.reset()


@pytest.mark.first(8)
@pytest.mark.parametrize("wrap", [lambda f: f, function], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "use",
    [lambda y: y * 3.0, lambda y: -y, lambda y: 3.0 * y + y * y, jnp.sin],
    ids=["product", "negative", "sum", "sin"],
)
@pytest.mark.parametrize("under_another", [False, True])
def test_values_from_before_a_reset_are_tracked_only_if_they_are_watched_again(wrap, use, under_another, x):
    def slopes(x, watched):
        with GradientTape() if under_another else contextlib.nullcontext(), GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            tape.reset()
            if watched:
                tape.watch(y)
            z = use(y)
        of_y = tape.gradient(z, y)
        assert tape.gradient(z, x) is None
        return jnp.float32(-99.0) if of_y is None else of_y

    assert float(wrap(lambda x: slopes(x, False))(x)) == -99.0
    assert float(wrap(lambda x: slopes(x, True))(x)) == pytest.approx(float(jax.grad(use)(9.0)))


def test_an_exception_leaves_a_usable_tape_and_nothing_behind(x):
    tape, values = GradientTape(), []

    def interrupted():
        with tape:
            tape.watch(x)
            values.append(x * x)
            raise KeyError("k")

    with pytest.raises(KeyError, match="k"):
        interrupted()
    (y,) = values
    assert type(jnp.sin(x)) is type(x)
    with GradientTape() as other:
        other.watch(x)
        z = x * 2.0
    assert float(tape.gradient(y, x)) == 6.0
    assert float(other.gradient(z, x)) == 2.0


@pytest.mark.parametrize("method", ["gradient", "jacobian"])
def test_a_gradient_that_raises_in_the_block_leaves_nothing_behind(x, method):
    wrong = custom_gradient(lambda x: (x * 2.0, lambda upstream: [upstream, upstream]))

    def differentiated_in_the_block():
        with GradientTape() as tape:
            tape.watch(x)
            getattr(tape, method)(wrong(x), x)

    with pytest.raises(ArgumentError, match="returned 2"):
        differentiated_in_the_block()
    assert is_eager()
    assert not ambient().listeners


def test_stack_of_tapes(x):
    with contextlib.ExitStack() as stack:
        tapes = [stack.enter_context(GradientTape()) for _ in range(3)]
        for tape in tapes:
            tape.watch(x)
        y = x**3.0
    assert [float(tape.gradient(y, x)) for tape in tapes] == [27.0] * 3


def test_tapes_left_in_another_order(x):
    first, second = GradientTape(), GradientTape()
    first.__enter__()
    first.watch(x)
    second.__enter__()
    second.watch(x)
    y = x * x
    first.__exit__(None, None, None)
    z = y * x
    second.__exit__(None, None, None)
    assert type(jnp.sin(x)) is type(x)
    assert float(first.gradient(y, x)) == 6.0
    assert float(second.gradient(z, x)) == 27.0


def test_a_loop_without_a_known_length(x):
    with GradientTape() as tape:
        tape.watch(x)
        _, y = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x), (0, x))
    assert float(tape.gradient(y, x)) == 4 * 27.0


@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_of_any_order_of_a_loop_without_a_known_length(x, order):
    """``y = (3 x)^(2^k)`` for the first k with y >= 50, which depends on the watched value."""

    def derivative(order, x):
        if order == 0:
            return jax.lax.while_loop(lambda y: y < 50.0, lambda y: y * y, x / 1.5)
        with GradientTape() as tape:
            tape.watch(x)
            y = derivative(order - 1, x)
        return tape.gradient(y, x)

    expected = functools.reduce(lambda f, _: jax.grad(f), range(order), lambda x: (x / 1.5) ** 8)
    np.testing.assert_allclose(derivative(order, x), expected(x), rtol=1e-5)


def test_a_persistent_tape_differentiates_the_gradient_of_such_a_loop(x):
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        _, y = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x), (0, x))
        gradient = tape.gradient(y, x)
    assert float(tape.gradient(gradient, x)) == 12 * 9.0


def test_such_a_loop_under_vmap_runs_and_has_no_gradient(x):
    def loop(x):
        with GradientTape() as tape:
            tape.watch(x)
            y = jax.lax.while_loop(lambda y: y < 50.0, lambda y: y * y, x)
        return y, tape

    np.testing.assert_array_equal(jax.vmap(lambda x: loop(x)[0])(jnp.array([3.0, 60.0])), [81.0, 60.0])
    with pytest.raises(TapeError, match="lax.fori_loop with a fixed number of steps(.|\n)*only in eager code"):
        jax.vmap(lambda x: (lambda y, tape: tape.gradient(y, x))(*loop(x)))(jnp.array([3.0, 60.0]))


def test_what_jax_cannot_differentiate_is_said_when_a_gradient_gets_there(x):
    @jax.jit
    def step(x):
        with GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = jax.lax.while_loop(lambda s: s < 100.0, lambda s: s * x, x)
            z = x * x
        return tape.gradient(z, x), lambda: tape.gradient(y, x)

    def wrong(x):
        return step.__wrapped__(x)[1]()

    assert float(jax.jit(lambda x: step.__wrapped__(x)[0])(x)) == 6.0
    with pytest.raises(TapeError, match="JAX cannot differentiate(.|\n)*use lax.scan"):
        jax.jit(wrong)(x)


def test_tape_inside_vmap_and_scan_bodies(v):
    def slope(x):
        with GradientTape() as tape:
            tape.watch(x)
            y = jnp.sin(x) * x
        return tape.gradient(y, x)

    expected = jax.vmap(jax.grad(lambda x: jnp.sin(x) * x))(v)
    np.testing.assert_allclose(jax.vmap(slope)(v), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.lax.map(slope, v), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(slope))(v), expected, rtol=1e-6)


def test_a_function_transformed_inside_a_tape(v):
    with GradientTape() as tape:
        tape.watch(v)
        w = v * 2.0
        y = jnp.sum(jax.vmap(lambda a: jax.grad(lambda b: b * jnp.sum(w) * a)(a))(v))
    np.testing.assert_allclose(tape.gradient(y, v), jax.grad(lambda v: jnp.sum(v * jnp.sum(v * 2.0)))(v))


def test_numpy_arrays_become_device_arrays_under_a_tape(v):
    with GradientTape() as tape:
        tape.watch(v)
        constant = jnp.asarray(np.ones(2, np.float32))
        y = v * constant
    assert type(constant) is type(jnp.ones(2))
    assert tape.gradient(y, v).tolist() == [1.0, 1.0]


def test_refilled_output_gradients_tangents_and_arguments_change_nothing():
    memory = np.zeros(1024 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64  # JAX aliases aligned memory
    filled = memory[start : start + 1024 * 4].view(np.float32)
    product = custom_gradient(lambda a, w: (a * w, lambda upstream: (None, jnp.sum(upstream * a))))
    w, x = jnp.float32(2.0), jnp.full(1024, 2.0)
    filled[:] = 3.0
    with GradientTape(persistent=True) as tape, ForwardAccumulator(x, filled) as accumulator:
        tape.watch((w, x))
        y = product(filled, w)
        z = x + 1.0
    gradient = tape.gradient(z, x, output_gradients=filled)
    filled[:] = 7.0
    assert float(gradient[0]) == 3.0
    assert float(tape.gradient(y, w)) == 3.0 * 1024
    assert float(accumulator.jvp(z)[0]) == 3.0


@pytest.mark.parametrize("size", [3, 1024])  # JAX aliases aligned memory, which only the larger one has
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.first(2)
def test_a_numpy_operand_refilled_after_the_forward_pass_does_not_change_the_gradient(size, persistent):
    w, batch = jnp.float32(2.0), np.ones(size, np.float32)
    with GradientTape() as outer:
        outer.watch(w)
        with GradientTape(persistent=persistent) as tape:
            tape.watch(w)
            y = jnp.sum(w**3 * batch) + jnp.dot(jnp.broadcast_to(w, size), batch) + jnp.sum(jnp.sin(w * batch))
        batch[:] = 5.0
        slope = tape.gradient(y, w)

    expected = lambda w: jnp.sum(w**3 + w + jnp.sin(w)) * size  # noqa: E731
    np.testing.assert_allclose(slope, jax.grad(expected)(2.0), rtol=1e-6)
    np.testing.assert_allclose(outer.gradient(slope, w), jax.grad(jax.grad(expected))(2.0), rtol=1e-6)


def test_shard_map_is_recorded():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    summed = jax.shard_map(
        lambda a: a * jax.lax.psum(jnp.sum(a), "i"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    x = jnp.arange(4.0)
    with GradientTape() as tape:
        tape.watch(x)
        y = jnp.sum(jax.jit(summed)(x) * x)
    expected = jax.grad(lambda x: jnp.sum(jax.jit(summed)(x) * x))(x)
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-6)


@pytest.mark.parametrize("size", [3, 1024])
def test_a_numpy_array_that_a_jitted_function_has_captured_may_be_refilled(size):
    x, batch = jnp.ones(size), np.full(size, 2.0, np.float32)
    with GradientTape() as tape:
        tape.watch(x)
        y = jax.jit(lambda x: jnp.sum(jnp.sin(x * batch)))(x)
    batch[:] = 5.0
    np.testing.assert_allclose(tape.gradient(y, x), np.full(size, 2 * np.cos(2.0)), rtol=1e-6)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda value: copy.deepcopy({"value": [value]})["value"][0]]
)
def test_a_copy_is_the_copied_value(x, copied):
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        z = copied(y) * x
    assert float(tape.gradient(z, x)) == 27.0
    after = copied(y)
    assert type(after) is type(jnp.ones(1))
    assert float(after) == 9.0
