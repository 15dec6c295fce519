"""`function`: one trace per signature, state captured and donated, errors that leave everything as it was."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mirrored as mr
from mirrored.errors import LostStateError, VariableError
from mirrored.testing import assert_same_bits


@pytest.fixture
def eagerly():
    mr.run_functions_eagerly(True)
    yield
    mr.run_functions_eagerly(False)


# Traces


def test_state_is_captured_in_one_trace():
    v, w = mr.Variable(1.0), mr.Variable([1.0, 2.0])
    traces = []

    @mr.function
    def step(x):
        traces.append(1)
        v.assign_add(x)
        w.assign(w * v)
        return v + 0.0

    assert [float(step(jnp.float32(x))) for x in (2.0, 1.0, 3.0)] == [3.0, 4.0, 7.0]
    assert float(v) == 7.0
    assert w.tolist() == [84.0, 168.0]
    assert len(traces) == step.trace_count == 1
    assert step.retrace_reason is None


@pytest.mark.parametrize("devices", [None, 1, 4])
def test_it_is_compiled_once_also_for_variables_made_of_python_numbers(devices):
    compiled = []
    strategy = mr.get_strategy() if devices is None else mr.MirroredStrategy(jax.devices()[:devices])
    with strategy.scope():
        count, scale = mr.Variable(0), mr.Variable(lambda: 0.5)

    @mr.function
    def only_here():
        count.assign_add(1)
        scale.assign(scale * 0.5)

    def listen(event, *_, **__):
        compiled.append(event)

    only_here()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        only_here()
        only_here()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [event for event in compiled if "compile" in event or "trace" in event]
    assert (int(count), float(scale)) == (3, 0.0625)
    assert not count.read_value().weak_type
    assert not scale.read_value().weak_type


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ((jnp.ones(2),), (jnp.ones(3),), r"argument \[0\] changed from float32\[2\] to float32\[3\]"),
        ((jnp.ones(2),), (jnp.ones(2, int),), r"argument \[0\] changed from float32\[2\] to int32\[2\]"),
        ((2.0,), (3.0,), r"argument \[0\] changed from 2\.0 to 3\.0; a Python number .* jnp\.asarray\(3\.0\)"),
        (("a",), ("b",), r"argument \[0\] changed from 'a' to 'b'"),
        ((1,), (True,), r"argument \[0\] changed from 1 to True"),
        (((1, 2),), ([1, 2],), "the structure of the arguments changed"),
        (({"a": jnp.ones(1)},), ({"b": jnp.ones(1)},), "the structure of the arguments changed"),
        ((jnp.ones(2),), (jnp.full(2, 1.0),), r"argument \[0\] changed from float32\[2\] to weakly"),
        ((jnp.ones(2),), (None,), r"argument \[0\] changed|structure of the arguments"),
        (({"a": [jnp.ones(2)]},), ({"a": [jnp.ones(4)]},), r"argument \[0\]\['a'\]\[0\] changed"),
    ],
    ids=["shape", "dtype", "number", "string", "bool", "tuple", "keys", "weak type", "None", "deep"],
)
def test_a_retrace_says_why(first, second, reason, caplog):
    step = mr.function(lambda *args: jax.tree.map(lambda x: x, args), name="step")
    step(*first)
    step(*first)
    assert step.trace_count == 1
    with caplog.at_level(logging.INFO, logger="mirrored"):
        step(*second)
    assert step.trace_count == 2
    assert re.search(f"step is traced again: .*(?:{reason})", step.retrace_reason)
    assert "\n" not in step.retrace_reason
    assert step.retrace_reason in caplog.messages
    step(*first)
    step(*second)
    assert step.trace_count == 2


def test_equal_signatures_are_traced_once():
    step = mr.function(lambda x, scale: x * scale)
    for x in (np.ones(3, np.float32), jnp.ones(3), np.zeros(3, np.float32)):
        for scale in (2, 2):
            step(x, scale)
    assert step.trace_count == 1


def called_with_other_settings(step):
    with jax.default_matmul_precision("highest"):
        step()
        step()


def called_in_scope(step):
    with mr.MirroredStrategy().scope():
        step()


def called_in_replica(step):
    strategy = mr.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        step()
    strategy.run(lambda: step())


def called_after_assigning_another_shape(step):
    step.variable.assign(jnp.zeros(3))
    step()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (called_with_other_settings, "a JAX setting changed"),
        (called_in_scope, "the surrounding strategy changed"),
        (called_in_replica, "the call moved into a replica"),
        (called_after_assigning_another_shape, "the shape of a variable changed from (2,) to (3,)"),
    ],
)
def test_changed_surroundings_trace_again_and_a_retrace_says_which(call, reason):
    x, variable = jnp.ones((2, 2)), mr.Variable(jnp.zeros(2), shape=(None,))
    step = mr.function(lambda: (x @ x, variable.read_value()))
    step.variable = variable
    step()
    call(step)
    assert step.trace_count == 2 + (call is called_in_replica)
    assert step.retrace_reason.startswith(f"<lambda> is traced again: {reason}")


def test_calls_under_a_tape_and_in_other_threads_share_the_program():
    v, scale = mr.Variable(3.0), {"value": 2.0}
    step = mr.function(lambda x: v * x * scale["value"])
    x = jnp.float32(2)
    assert float(step(x)) == 12.0
    scale["value"] = 5.0
    taped = []

    def under_tape():
        with mr.GradientTape() as tape:
            y = step(x)
        taped.append((float(y), float(tape.gradient(y, v))))
        together.wait(60)  # all threads live at once, so each has a token of its own

    together = threading.Barrier(3)
    threads = [threading.Thread(target=under_tape) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taped == [(12.0, 4.0)] * 3
    assert float(step(x)) == 12.0
    assert step.trace_count == 1


def test_a_program_that_is_traced_under_a_tape_serves_later_calls():
    v = mr.Variable(3.0)
    with mr.GradientTape() as tape:
        y = v * 2.0
        step = mr.function(lambda x: x * y)
        z = step(jnp.float32(2))
    assert float(tape.gradient(z, v)) == 4.0
    assert float(step(jnp.float32(2))) == 12.0
    assert step.trace_count == 1


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize(
    "use", [lambda v: v.assign_add(1), lambda v: v + 1, lambda v: v.assign(2)], ids=["assign_add", "read", "assign"]
)
def test_a_variable_of_64_bits_is_refused_outside_of_64_bit_mode(dtype, use):
    with jax.enable_x64(True):
        v = mr.Variable(dtype(1), name="v")
        step = mr.function(lambda: use(v))
        first = step()
    value = v.numpy()
    with pytest.raises(VariableError, match=rf"uses variable 'v' of dtype {v.dtype}[\s\S]*jax\.enable_x64\(True\)"):
        step()
    assert v.numpy() == value
    with jax.enable_x64(True):
        assert first.dtype == step().dtype == dtype


def test_static_arguments_stay_python_objects():
    seen = []

    @mr.function
    def step(x, mode, flag, scale=2):
        seen.append((mode, flag, scale))
        return x * scale if flag else -x

    assert float(step(jnp.float32(3.0), "train", True)) == 6.0
    assert float(step(jnp.float32(3.0), "train", False)) == -3.0
    assert float(step(jnp.float32(3.0), "train", True, scale=5)) == 15.0
    assert seen == [("train", True, 2), ("train", False, 2), ("train", True, 5)]


@dataclasses.dataclass
class Pair:
    left: jax.Array
    right: str = dataclasses.field(metadata={"static": True})


jax.tree_util.register_dataclass(Pair, data_fields=["left"], meta_fields=["right"])


def test_deep_structures_and_dataclasses_pass_through():
    @mr.function
    def step(tree):
        pair = tree["pairs"][0]
        return {
            "pair": Pair(pair.left * 2, pair.right),
            "none": None,
            "text": "done",
            "numbers": (1, 2.5),
            "x": tree["x"],
        }

    result = step({"pairs": [Pair(jnp.ones(2), "tag")], "x": np.arange(2)})
    assert result["pair"].left.tolist() == [2.0, 2.0]
    assert (result["pair"].right, result["none"], result["text"], result["numbers"]) == ("tag", None, "done", (1, 2.5))
    assert result["x"].tolist() == [0, 1]


def test_variables_are_arguments_and_results_by_identity():
    v = mr.Variable(2.0)
    step = mr.function(lambda w, x: (w, w * x))
    same, product = step(v, jnp.float32(3.0))
    assert same is v
    assert float(product) == 6.0
    v.assign(4.0)
    assert float(step(v, jnp.float32(3.0))[1]) == 12.0
    assert step.trace_count == 1
    other = mr.Variable(5.0)
    assert float(step(other, jnp.float32(3.0))[1]) == 15.0
    assert step.trace_count == 2


def test_python_side_effects_happen_while_tracing_only():
    count = []
    step = mr.function(lambda x: count.append(1) or x + 1)
    for _ in range(3):
        step(jnp.float32(1.0))
    assert count == [1]


def test_functions_that_return_no_array():
    v = mr.Variable(0.0)

    @mr.function
    def step():
        v.assign_add(1.0)

    assert [step() for _ in range(3)] == [None] * 3
    assert float(v) == 3.0


@pytest.mark.long
def test_closed_over_arrays_and_keys():
    x, key = jnp.arange(3.0), jax.random.key(0)
    step = mr.function(lambda k: x + jax.random.normal(jax.random.fold_in(key, 1), (3,)) + jax.random.normal(k, (3,)))
    expected = x + jax.random.normal(jax.random.fold_in(key, 1), (3,)) + jax.random.normal(key, (3,))
    np.testing.assert_allclose(step(key), expected, rtol=1e-6)


# Captured state


def test_captured_variables_are_read_at_every_call():
    v = mr.Variable(1.0)
    step = mr.function(lambda x: v * x)
    assert float(step(jnp.float32(2.0))) == 2.0
    v.assign(5.0)
    assert float(step(jnp.float32(2.0))) == 10.0
    assert step.trace_count == 1


def test_reads_after_a_write_see_it_also_in_helpers_that_are_jitted():
    v = mr.Variable(1.0)
    helper = jax.jit(lambda x: x * v)

    @mr.function
    def step(x):
        first = helper(x)
        v.assign_add(10.0)
        return first, helper(x), lax.scan(lambda c, _: (c + v, None), 0.0, None, length=2)[0]

    assert [float(x) for x in step(jnp.float32(2.0))] == [2.0, 22.0, 22.0]
    assert [float(x) for x in step(jnp.float32(2.0))] == [22.0, 42.0, 42.0]
    assert step.trace_count == 1


def test_nested_functions():
    v = mr.Variable(1.25)

    @mr.function
    def inner(x):
        v.assign_add(1.0)
        return v * x

    middle = mr.function(lambda x: inner(x) + 1.0)
    outer = mr.function(lambda x: middle(x) + inner(x))
    assert float(outer(jnp.float32(2.0))) == (2.25 * 2 + 1) + 3.25 * 2
    assert float(v) == 3.25
    assert outer.trace_count == 1
    assert inner.trace_count == middle.trace_count == 0


def test_methods_have_a_program_per_instance():
    class Counter:
        def __init__(self, start):
            self.count = mr.Variable(start)

        @mr.function
        def step(self, x):
            return self.count.assign_add(x)

    one, two = Counter(0.0), Counter(10.0)
    for _ in range(2):
        one.step(jnp.float32(1.0))
        two.step(jnp.float32(2.0))
    assert (float(one.count), float(two.count)) == (2.0, 14.0)
    assert one.step.trace_count == two.step.trace_count == 1
    assert one.step is one.step


def test_methods_do_not_keep_their_instance_alive():
    import gc
    import weakref

    class Model:
        @mr.function
        def step(self, x):
            return x * 2

    model = Model()
    model.step(jnp.float32(1.0))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


@dataclasses.dataclass
class Plain:
    start: float

    @mr.function
    def step(self, x):
        return x + self.start


@dataclasses.dataclass(frozen=True)
class Equal:
    start: float
    by: float = dataclasses.field(compare=False)

    @mr.function
    def step(self, x):
        return x * self.by


class Slots:
    __slots__ = ("by",)

    @mr.function
    def step(self, x):
        return x * self.by


def test_methods_of_objects_that_are_unhashable_equal_or_without_weak_references():
    plain = Plain(1.0)
    assert [float(plain.step(jnp.float32(x))) for x in (1.0, 2.0)] == [2.0, 3.0]
    assert plain.step.trace_count == 1
    one, two = Equal(1.0, 2.0), Equal(1.0, 3.0)
    assert one == two
    assert (float(one.step(jnp.float32(1.0))), float(two.step(jnp.float32(1.0)))) == (2.0, 3.0)
    slots = Slots()
    slots.by = 4.0
    assert float(slots.step(jnp.float32(1.0))) == 4.0


def test_the_method_of_an_object_that_has_gone_says_so():
    step = Plain(1.0).step
    with pytest.raises(mr.errors.ContextError, match="the instance of this method was deleted"):
        step(jnp.float32(1.0))


# Creation on the first call


def test_variables_may_be_created_on_the_first_call():
    class Model:
        w = None

        @mr.function
        def __call__(self, x):
            if self.w is None:
                self.w = mr.Variable(lambda: jax.random.normal(jax.random.key(0), (2,)))
                self.n = mr.Variable(0)
            self.n.assign_add(1)
            return self.w * x

    model = Model()
    first, second = model(jnp.float32(1.0)), model(jnp.float32(2.0))
    assert_same_bits(np.asarray(second), 2 * np.asarray(first))
    assert int(model.n) == 2
    assert Model.__call__.__get__(model, Model).trace_count == 2


class Lazy:
    """Creates its state when it is first called, and counts from then on."""

    def __init__(self):
        self.count = None

    def __call__(self):
        if self.count is None:
            self.count = mr.Variable(0.0)
        else:
            self.count.assign_add(1.0)
        return self.count.read_value()


@pytest.mark.parametrize("form", ["function", "run in function", "function in run", "several steps", "concrete"])
def test_the_branch_that_creates_state_is_taken_while_tracing_only(form):
    """As in `tf.function` (2.21: 1, 2, 3, 4): the second trace is the program, from the first call on."""
    strategy, lazy = mr.OneDeviceStrategy("CPU:0"), Lazy()
    if form == "several steps":
        several = mr.function(lambda _: lazy(), steps_per_call=2)
        assert [*several([(jnp.zeros(()),)] * 2), *several([(jnp.zeros(()),)] * 2)] == [1, 2, 3, 4]
        return
    step = {
        "function": lambda: mr.function(lambda: lazy()),
        "run in function": lambda: mr.function(lambda: strategy.run(lazy)),
        "function in run": lambda: functools.partial(strategy.run, mr.function(lambda: lazy())),
        "concrete": lambda: mr.function(lambda: lazy()).get_concrete_function(),
    }[form]()
    assert [float(step()) for _ in range(4)] == [1, 2, 3, 4]


def test_a_variable_that_every_call_would_create_and_keep_is_refused():
    kept = []

    @mr.function
    def step():
        kept.append(mr.Variable(1.0, name="kept"))
        return kept[-1] * 2

    with pytest.raises(VariableError, match="creates variable 'kept' again when it is called again"):
        step()


def test_slots_of_an_optimizer_do_not_make_a_second_trace():
    v, optimizer = mr.Variable(1.0), mr.optimizers.Adam(0.1)

    @mr.function
    def step():
        with mr.GradientTape() as tape:
            loss = v * v
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    step()
    assert step.trace_count == 1


def test_slots_of_variables_that_an_earlier_trace_has_created():
    made, optimizer = [], mr.optimizers.SGD(0.5, momentum=0.5)

    @mr.function
    def step(x):
        if not made:
            made.append(mr.Variable(1.0, name="late"))
            return x
        with mr.GradientTape() as tape:
            loss = made[0] * x
        optimizer.apply_gradients([(tape.gradient(loss, made[0]), made[0])])
        return made[0] * 1.0

    assert [float(step(jnp.float32(1.0))) for _ in range(3)] == [0.5, -0.25, -1.125]
    assert (int(optimizer.iterations), step.trace_count) == (3, 3)


def test_an_optimizer_that_every_call_would_create_is_refused():
    made, optimizers = [], []

    @mr.function
    def step(x):
        if not made:
            made.append(mr.Variable(1.0, name="late"))
            return x
        optimizers.append(mr.optimizers.SGD(0.5, momentum=0.5))
        optimizers[-1].apply_gradients([(x, made[0])])
        return x

    with pytest.raises(VariableError, match=r"creates its slots, such as 'sgd.*/iterations', again[\s\S]*\.build\("):
        step(jnp.float32(1.0))


@pytest.mark.parametrize("use", ["read", "assign", "return"])
def test_creating_a_variable_on_every_call_is_refused(use):
    @mr.function
    def step(x):
        v = mr.Variable(1.0, name="fresh")
        return {"read": lambda: v * x, "assign": lambda: v.assign(x), "return": lambda: v}[use]()

    with pytest.raises(VariableError, match=r"step: the function creates variable 'fresh' and does not keep it"):
        step(jnp.float32(1.0))
    assert step.trace_count == 0


# Eager running


@pytest.mark.usefixtures("eagerly")
def test_functions_can_run_eagerly():
    v = mr.Variable(1.0)
    seen = []

    @mr.function
    def step(x):
        seen.append(float(x))
        return v.assign_add(x) if x > 0 else None

    assert float(step(jnp.float32(2.0))) == 3.0
    assert step(jnp.float32(-2.0)) is None
    assert seen == [2.0, -2.0]
    assert step.trace_count == 0
    assert mr.functions_run_eagerly()


def test_two_strategies_on_different_devices_are_refused():
    first, second = (mr.MirroredStrategy(jax.devices()[a : a + 2]) for a in (0, 2))
    with first.scope():
        v = mr.Variable(1.0, name="v")
    with second.scope():
        w = mr.Variable(1.0, name="w")
    for use in (lambda: v + w, lambda: (first.run(lambda: v.assign(2.0)), second.run(lambda: w.assign(2.0)))):
        with pytest.raises(mr.errors.ContextError, match=r"variable 'v' of .* and variable 'w' of .*different devices"):
            mr.function(use)()
    elsewhere = jax.device_put(jnp.ones(3), jax.devices()[3])
    with pytest.raises(mr.errors.DeviceError, match="an argument is on other devices than the variables"):
        mr.function(lambda x: first.run(lambda y: v.assign(y.sum()), args=(x,)))(elsewhere)
    assert (float(v), float(w)) == (1.0, 1.0)


def test_many_retraces_are_warned_of(caplog):
    @mr.function
    def step(x, rate):
        return x * rate

    with caplog.at_level(logging.INFO, logger="mirrored"):
        for number in range(8):
            step(jnp.ones(2), number)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO] * 4 + [logging.WARNING] * 3
    for part in ("argument [1] changed from 4 to 5", "jnp.asarray(5)", "retrace 5", "last_batch='pad'"):
        assert part in caplog.records[4].message


@pytest.mark.long
def test_strategies_that_are_made_again_get_programs_of_their_own():
    """A later strategy may lie where one lay that is gone."""

    @mr.function
    def count(x):
        strategy = mr.get_strategy()
        return strategy.reduce("SUM", strategy.run(lambda: x.sum()), axis=None)

    for round_ in range(12):
        replicas = 1 + round_ % 4
        strategy = mr.MirroredStrategy(jax.devices()[:replicas])
        with strategy.scope():
            assert float(count(np.ones(2))) == 2.0 * replicas
            inside = mr.function(lambda x: mr.get_replica_context().all_reduce("SUM", x.sum()))
            assert float(strategy.local_results(strategy.run(inside, args=(np.ones(2),)))[0]) == 2.0 * replicas
        del strategy
        gc.collect()


# Donation


def test_assigned_variables_are_donated():
    v, w = mr.Variable(jnp.zeros(1000)), mr.Variable(jnp.ones(1000))

    @mr.function
    def step():
        v.assign_add(w)

    step()
    before = v._array.unsafe_buffer_pointer()
    step()
    assert v._array.unsafe_buffer_pointer() == before
    assert "tf.aliasing_output" in step.lower().as_text()
    assert v.numpy()[0] == 2.0


def test_every_variable_keeps_the_buffer_that_it_donates():
    variables = [mr.Variable(jnp.full(3, float(k)), name=f"v{k}") for k in range(5)]
    fresh = mr.Variable(jnp.zeros(3))

    @mr.function
    def step():
        values = [v.read_value() for v in variables]
        fresh.assign(values[0])
        for k in (3, 1, 4, 0, 2):  # in another order than that of reading
            variables[k].assign(values[k] + sum(values))

    text = step.lower().compile().as_text()
    aliases = re.findall(r"\{(\d+)\}: \((\d+),", text.splitlines()[0])
    assert [(int(result), int(operand)) for result, operand in aliases] == [(k, k) for k in range(5)]
    step()
    assert [v.numpy()[0] for v in (*variables, fresh)] == [10.0, 11.0, 12.0, 13.0, 14.0, 0.0]


@pytest.mark.parametrize("donate", [True, False])
def test_values_handed_out_stay_valid(donate):
    v = mr.Variable(jnp.arange(3.0))
    step = mr.function(lambda: v.assign_add(jnp.ones(3)), donate=donate)
    kept = [v.read_value()]
    for _ in range(4):
        kept.append(step())
        kept.append(v.read_value())
    expected = [0.0] + [float(i) for i in range(1, 5) for _ in range(2)]
    assert [float(value[0]) for value in kept] == expected


def test_kept_components_stay_valid():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(jnp.arange(3.0))
        c = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    def replica():
        v.assign_add(jnp.ones(3))
        c.assign_add(1.0)

    step = mr.function(lambda: strategy.run(replica))
    kept, kept_c, view = [x.read_value() for x in v.values], [x.read_value() for x in c.values], np.asarray(v.values[0])
    step()
    step()
    assert [x.tolist() for x in kept] == [[0.0, 1.0, 2.0]] * 2
    assert [float(x) for x in kept_c] == [0.0, 0.0]
    assert view.tolist() == [0.0, 1.0, 2.0]
    assert [x.tolist() for x in v.values] == [[2.0, 3.0, 4.0]] * 2


def test_views_by_numpy_and_dlpack_stay_valid():
    v = mr.Variable(jnp.arange(1000.0))
    step = mr.function(lambda: v.assign_add(jnp.ones(1000)))
    view, shared = np.asarray(v.read_value()), np.from_dlpack(v.read_value())
    for _ in range(3):
        step()
    assert (view[0], shared[0], float(v[0])) == (0.0, 0.0, 3.0)


def test_initial_value_of_one_variable_survives_steps_of_the_other():
    x = jnp.zeros(3)
    v, w = mr.Variable(x), mr.Variable(x)
    step = mr.function(lambda: v.assign_add(jnp.ones(3)))
    step()
    step()
    assert x.tolist() == w.tolist() == [0.0, 0.0, 0.0]
    w.assign(v)
    step()
    assert w.tolist() == [2.0, 2.0, 2.0]


def test_an_assigned_argument_survives_later_steps():
    x = jnp.ones(3)
    v = mr.Variable(jnp.zeros(3))
    step = mr.function(lambda y: v.assign(y))
    step(x)
    mr.function(lambda: v.assign_add(jnp.ones(3)))()
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert v.tolist() == [2.0, 2.0, 2.0]


def test_two_variables_assigned_the_same_value_do_not_share_it():
    v, w = mr.Variable(jnp.zeros(3)), mr.Variable(jnp.zeros(3))

    @mr.function
    def both(x):
        v.assign(x * 2)
        w.assign(v)

    both(jnp.ones(3))
    both(jnp.ones(3))
    step = mr.function(lambda: v.assign_add(jnp.ones(3), read_value=False))
    step()
    step()
    assert w.tolist() == [2.0, 2.0, 2.0]
    assert v._array.unsafe_buffer_pointer() != w._array.unsafe_buffer_pointer()


# Errors


def test_an_error_while_tracing_leaves_all_as_it_was():
    v = mr.Variable(1.0)

    @mr.function
    def step(x):
        v.assign(x)
        if step.trace_count == 0 and not allowed:
            raise KeyError("in the function")
        return v + 1

    allowed = []
    with pytest.raises(KeyError, match="in the function"):
        step(jnp.float32(2.0))
    assert float(v) == 1.0
    assert step.trace_count == 0
    allowed.append(True)
    assert float(step(jnp.float32(2.0))) == 3.0
    assert step.trace_count == 1


def test_an_argument_that_does_not_fit_leaves_all_as_it_was():
    v, w = mr.Variable(jnp.zeros(2)), mr.Variable(jnp.zeros(2), name="w")

    @mr.function
    def step(x):
        v.assign_add(jnp.ones(2))
        w.assign(x)

    step(jnp.ones(2))
    with pytest.raises(VariableError, match=r"w\.assign: the value has shape \(3,\)"):
        step(jnp.ones(3))
    assert v.tolist() == w.tolist() == [1.0, 1.0]
    step(jnp.ones(2))
    assert v.tolist() == [2.0, 2.0]


def test_branching_on_a_traced_value_names_the_alternatives():
    @mr.function
    def step(x):
        return x if x > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        step(jnp.float32(1.0))
    note = "".join(caught.value.__notes__)
    assert "jnp.where" in note
    assert "lax.cond" in note
    assert "run_functions_eagerly" in note


def _failing(v, **options):
    def explode(x):
        raise RuntimeError("boom in the program")

    @mr.function(**options)
    def step(x):
        shape = jax.ShapeDtypeStruct(v.shape, v.dtype)
        v.assign(v + jax.pure_callback(explode, shape, x))

    return step


@pytest.mark.parametrize("donate", [True, False])
def test_an_error_in_a_callback_leaves_the_variables_as_they_were(donate):
    v, other = mr.Variable(jnp.ones(3), name="v"), mr.Variable(1.0)
    step = _failing(v, donate=donate)
    for _ in range(2):
        with pytest.raises(Exception, match="boom in the program"):
            step(jnp.ones(3))
        assert v.tolist() == [1.0, 1.0, 1.0]
    assert float(other) == 1.0


def test_lost_variables_say_so_and_can_be_assigned_again():
    v, w = mr.Variable(jnp.ones(3), name="v"), mr.Variable(jnp.ones(3))
    v.lose("RuntimeError: out of memory")
    donating = mr.function(lambda: v.assign_add(w))
    for use in (lambda: v + 1, v.numpy, lambda: mr.function(lambda: v * 2)(), donating, lambda: v.assign_add(w)):
        with pytest.raises(LostStateError, match=r"reading v: [\s\S]*restore a checkpoint"):
            use()
    assert "lost" in repr(v)
    v.assign(jnp.ones(3))
    assert v.tolist() == [1.0, 1.0, 1.0]
    donating()
    assert v.tolist() == [2.0, 2.0, 2.0]


def test_lost_variables_of_a_strategy_can_be_assigned_again():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(jnp.ones(3), name="v")
        c = mr.Variable(1.0, synchronization="ON_READ", aggregation="SUM", name="c")
    v.lose("the step failed")
    c.lose("the step failed")
    for use in (lambda: strategy.run(lambda: v + 1), lambda: strategy.run(lambda: c + 1), lambda: c.values[0].numpy()):
        with pytest.raises(LostStateError, match=r"computed by a step that failed: the step failed"):
            use()
    v.assign(jnp.zeros(3))
    c.assign(4.0)
    assert v.tolist() == [0.0, 0.0, 0.0]
    assert float(c) == 4.0


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'donat'"):
        mr.function(lambda: 1, donat=True)
    for options in ({"jit_compile": True}, {"reduce_retracing": True}, {"autograph": False}, {"experimental_x": 1}):
        assert float(mr.function(**options)(lambda x: x * 2)(jnp.float32(1.5))) == 3.0


def test_it_looks_like_the_function_that_it_compiles():
    @mr.function
    def step(x):
        """Doubles."""
        return 2 * x

    assert (step.__name__, step.__doc__) == ("step", "Doubles.")
    assert repr(step) == "<function step, traced 0 times>"


def test_lowering_runs_nothing():
    v = mr.Variable(1.0)
    step = mr.function(lambda: v.assign_add(1.0))
    text = step.lower().compile().as_text()
    assert "HloModule" in text
    assert float(v) == 1.0


# Under bare transforms and tapes


def test_a_function_under_a_bare_transform():
    double = mr.function(lambda x: 2 * x)
    assert float(jax.jit(double)(jnp.float32(3.0))) == 6.0
    assert float(jax.grad(lambda x: double(x) ** 2)(3.0)) == 24.0
    assert jax.vmap(double)(jnp.arange(3.0)).tolist() == [0.0, 2.0, 4.0]


@dataclasses.dataclass
class Scaled:
    scale: float


@pytest.mark.long
def test_a_transform_traces_again_with_the_arguments_of_its_own_call():
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2, deterministic=True)

    @mr.function
    def total(x, config):
        return strategy.reduce("SUM", strategy.run(lambda x: (x * config.scale).sum(), args=(x,)), axis=None)

    x, config = jnp.asarray([1.0, 2.0]), Scaled(2.0)
    assert float(total(x, config)) == 12.0
    config.scale = 5.0
    assert jax.vmap(lambda x: total(x, Scaled(2.0)))(x[None]).tolist() == [12.0]
    assert total.trace_count == 1
    ((_, kept), _), *_ = total.traced_inputs()
    assert kept == Scaled(2.0)
    assert jax.vmap(lambda x: total(x, config))(x[None]).tolist() == [30.0]


TWO = mr.MirroredStrategy(["CPU:0", "CPU:1"])
NUMPY_ARRAYS_IN = {
    "the function": lambda scale: lambda x: x * scale,
    "jit": lambda scale: jax.jit(lambda x: x * scale),
    "a scan's jit": lambda scale: lambda x: lax.scan(lambda c, _: (jax.jit(lambda x: x * scale)(c), 0), x, length=1)[0],
    "a branch's jit": lambda scale: lambda x: lax.cond(x[0] > 0, jax.jit(lambda x: x * scale), jnp.negative, x),
    "checkpoint": lambda scale: jax.checkpoint(jax.jit(lambda x: x * scale)),
    "a linear solve": lambda scale: (
        lambda x: lax.custom_linear_solve(
            jax.jit(lambda v: v / scale), x, lambda mv, b: b / mv(jnp.ones_like(b)), symmetric=True
        )
    ),
    "run": lambda scale: lambda x: TWO.run(jax.jit(lambda x: x * scale), (x,)).values[0],
}


@pytest.mark.first(1)
@pytest.mark.parametrize("shape", [(4,), ()])
@pytest.mark.parametrize("place", NUMPY_ARRAYS_IN)
def test_a_captured_numpy_array_is_a_constant_of_every_lowering(place, shape):
    scale = np.full(shape, 2, np.float32)
    step = mr.function(NUMPY_ARRAYS_IN[place](scale))
    x = jnp.ones(4)
    assert step(x).tolist() == [2] * 4
    scale[...] = 10
    found = [
        jax.jit(lambda x: step(x))(x),
        jax.grad(lambda x: step(x).sum())(x),
        jax.vmap(step)(x[None])[0],
    ]
    if place != "run":
        found.append(step(jax.device_put(x, jax.devices()[1])))
    assert [one.tolist() for one in found] == [[2] * 4] * len(found)
    assert step.trace_count == 1


def test_input_signature():
    traces = []

    @mr.function(input_signature=[jax.ShapeDtypeStruct((2,), jnp.float32), {"k": jax.ShapeDtypeStruct((), jnp.int32)}])
    def step(x, tree):
        traces.append(1)
        return jnp.sum(x) * tree["k"]

    assert float(step([1.0, 2.0], {"k": 3})) == 9.0
    assert float(step(np.ones(2, np.float32), tree={"k": jnp.int32(2)})) == 4.0
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((jnp.ones(3),), r"argument 0 is float32\[3\][\s\S]*float32\[2\]"),
        ((jnp.ones((2, 2)),), r"argument 0 is float32\[2, 2\]"),
        ((jnp.ones(2, int),), r"argument 0 is int32\[2\]"),
        ((), r"0 arguments[\s\S]*1 arguments"),
        ((jnp.ones(2), jnp.ones(2)), r"2 arguments"),
        (([jnp.ones(2), jnp.ones(2)],), r"argument 0 is float32\[2, 2\]"),
        (({"a": jnp.ones(2)},), r"argument 0 has the structure"),
    ],
    ids=["size", "rank", "dtype", "few", "many", "list", "structure"],
)
def test_arguments_that_do_not_fit_the_signature_are_refused(args, message):
    v = mr.Variable(0.0)
    step = mr.function(
        lambda x: v.assign(jnp.sum(x)), input_signature=[jax.ShapeDtypeStruct((2,), jnp.float32)], name="step"
    )
    with pytest.raises(mr.errors.ArgumentError, match=message):
        step(*args)
    assert float(v) == 0.0


@dataclasses.dataclass
class Spec:
    shape: tuple[int | None, ...] | None
    dtype: object


def test_signature_with_open_sizes():
    step = mr.function(lambda x: jnp.sum(x), input_signature=[Spec((None, 2), jnp.float32)])
    assert float(step(np.ones((3, 2), np.float32))) == 6.0
    assert float(step(np.ones((1, 2), np.float32))) == 2.0
    with pytest.raises(mr.errors.ArgumentError, match=r"float32\[any,2\]"):
        step(np.ones((3, 3), np.float32))
    anything = mr.function(lambda x: jnp.sum(x), input_signature=[Spec(None, jnp.float32)])
    assert float(anything(np.ones((2, 2, 2), np.float32))) == 8.0


def test_a_boolean_mask_is_refused_with_the_remedy() -> None:
    with pytest.raises(jax.errors.NonConcreteBooleanIndexError) as caught:
        mr.function(lambda x: x[x > 0])(jnp.ones(3))
    assert "jnp.where(mask, x, 0)" in "".join(caught.value.__notes__)
