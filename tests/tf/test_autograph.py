"""Python's control flow over tensors in `tf.function`: the values are those of eager Python."""

from __future__ import annotations

import itertools
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.tf._autograph import loops
from mirrored.tf._errors import InvalidArgumentError


@pytest.fixture
def strategy_of_two():
    return tf.distribute.MirroredStrategy(jax.devices()[:2])


def same(function, *calls):
    """The compiled function gives what the Python function gives, in one trace for all calls of one signature."""
    compiled = tf.function(function)
    for args in calls:
        tensors = [tf.constant(one) for one in args]
        np.testing.assert_allclose(compiled(*tensors), function(*tensors), rtol=1e-6)
    assert compiled.trace_count == 1
    return compiled


def test_an_if_with_returns_in_both_branches():
    def f(x):
        if x > 0:
            return x * 2
        return -x

    same(f, (3.0,), (-3.0,))


def broken_loop(n):
    i, x = 0, 0
    while i < n:
        i += 1
        x += i
        if x > 5:
            break
    else:
        x = x - 100
    return x


def unbroken_loop(n):
    x = 0
    while x < n:
        x += 2
    else:
        x = x - 100
    return x


def returning_loop(n):
    for i in tf.range(5):
        if i * i > n:
            return i
    else:
        return -n


def nested_loops(n):
    total = 0
    for _step in tf.range(5):
        for _ in range(2):
            if total > 20:
                break
            total += 1
        else:
            total += 10
            if total > n:
                break
    else:
        return total + 1000
    return total


@pytest.mark.parametrize("function", [broken_loop, unbroken_loop, returning_loop, nested_loops])
def test_the_else_of_a_loop(function):
    same(function, (0,), (2,), (9,), (30,))


def test_an_error_in_the_else_of_a_loop_names_its_line():
    @tf.function
    def f(x):
        while x > 0:
            x -= 1
            if x == 5:
                break
        else:
            raise ValueError("ended")
        return x

    first = f.python_function.__code__.co_firstlineno
    with pytest.raises(ValueError, match="ended") as raised:
        f(tf.constant(3))
    lines = [frame.lineno for frame in traceback.extract_tb(raised.tb) if frame.filename == __file__]
    assert first + 7 in lines


def test_elif_and_names_of_one_branch_that_nobody_uses_later():
    def f(x):
        if x > 10:
            label = 10
            y = x * label
        elif x > 0 and not x > 5:
            y = x + 1
        else:
            y = -x
        return y

    same(f, (20.0,), (3.0,), (7.0,), (-1.0,))


def test_conditional_expressions_and_boolean_operators():
    def f(x, y):
        small = x if x < y else y
        return small + (1.0 if x > 0 or y > 0 else 2.0)

    same(f, (1.0, 2.0), (-1.0, -2.0), (3.0, -2.0))


def test_python_conditions_stay_python():
    @tf.function
    def f(x, flag):
        if flag:
            return tf.zeros(3)
        return x

    assert f(tf.constant(1.0), True).shape == (3,)
    assert f(tf.constant(1.0), False).shape == ()


def test_while_with_break_and_continue():
    def f(n):
        total = 0
        while n > 0:
            n -= 1
            if n % 2 == 0:
                continue
            if total > 20:
                break
            total += n
        return total + n

    same(f, (5,), (30,), (0,))


def test_a_while_loop_ends_after_its_maximum_number_of_iterations():
    @tf.function
    def f(x, limit):
        while x < 100.0:
            tf.autograph.experimental.set_loop_options(parallel_iterations=1, maximum_iterations=limit)
            x = x * 2.0
        return x

    assert [float(f(tf.constant(1.0), n)) for n in (0, 3, 50, None)] == [1.0, 8.0, 128.0, 128.0]
    assert float(f.python_function(tf.constant(1.0), 3)) == 128.0  # as in TensorFlow, not in Python
    with pytest.raises(InvalidArgumentError, match="`maximum_iterations` depends on a traced value"):
        f(tf.constant(1.0), tf.constant(3))


def test_the_options_belong_to_the_innermost_loop():
    options = tf.autograph.experimental

    @tf.function
    def f(x):
        total = tf.constant(0.0)
        while total < 10.0:
            y = x
            while y < 100.0:
                options.set_loop_options(maximum_iterations=2)
                y = y * 2.0
            total = total + y
        return total

    assert float(f(tf.constant(1.0))) == 12.0


def test_the_maximum_number_of_iterations_of_a_for_loop_is_refused():
    def over_a_range(x):
        for _ in tf.range(x):
            tf.autograph.experimental.set_loop_options(maximum_iterations=2)
            x += 1
        return x

    def over_rows(x):
        for row in tf.ones([3], tf.int32) * x:
            tf.autograph.experimental.set_loop_options(maximum_iterations=2)
            x += row
        return x

    for function in (over_a_range, over_rows):
        with pytest.raises(tf.errors.UnimplementedError, match="maximum_iterations ends while loops"):
            tf.function(function)(tf.constant(3))


def test_while_true_is_left_by_a_break():
    def f(x):
        steps = 0
        while True:
            x = x / 2
            steps += 1
            if x < 1:
                break
        return steps

    same(f, (100.0,), (0.5,))


def test_a_for_loop_over_a_range_of_a_traced_number():
    def f(n):
        total = 0
        for i in tf.range(n):
            if i % 3 == 0:
                continue
            total += i
            if total > 20:
                break
        return total

    same(f, (4,), (50,), (0,))


def test_a_python_range_of_a_traced_number():
    @tf.function
    def f(n):
        total = 0
        for i in range(1, n):
            total += i
        return total

    assert int(f(tf.constant(5))) == 10
    assert int(f(tf.constant(7))) == 21
    assert f.trace_count == 1


def test_a_return_inside_a_loop():
    def f(x, threshold):
        for row in x:
            if row > threshold:
                return row
        return tf.constant(-1.0)

    same(f, ([1.0, 3.0, 5.0], 2.0), ([1.0, 3.0, 5.0], 9.0))


def test_a_break_out_of_a_python_loop_on_a_tensor():
    def f(x):
        seen = 0
        for step in range(5):
            x = x + step
            seen += 1
            if x > 4:
                break
        return x, seen

    compiled = tf.function(f)
    for start in (0.0, 3.0, -20.0):
        x, seen = compiled(tf.constant(start))
        expected, count = f(tf.constant(start))
        assert (float(x), int(seen)) == (float(expected), int(count))


@pytest.mark.parametrize("values", [lambda: range(5), itertools.count, lambda: (i for i in itertools.count())])
def test_a_break_on_a_tensor_out_of_a_long_python_loop(values, monkeypatch):
    monkeypatch.setattr(loops, "_MOST_UNKNOWN", 3)

    def f(x):
        for step in values():
            x = x + step
            if x > 4:
                break
        return x

    with pytest.raises(tf.errors.UnimplementedError, match=r"unrolled(.|\n)*tf.range"):
        tf.function(f)(tf.constant(0.0))


def test_nested_loops_and_names_without_a_value_before_them():
    def f(x):
        total = 0.0
        for row in x:
            best = row[0]
            for value in row:
                if value > best:
                    best = value
            last = best * 2
            total += last
        return total + last

    same(f, ([[1.0, 5.0, 2.0], [7.0, 1.0, 3.0]],))


def test_a_python_number_becomes_what_the_loop_makes_of_it():
    def f(x):
        total = 0
        for value in x:
            total += value
        return total

    same(f, ([0.5, 1.0],))


def test_lists_appended_in_a_python_loop():
    def f(x):
        rows = []
        for i in range(3):
            if x[i] > 0:
                y = x[i]
            else:
                y = tf.zeros(())
            rows.append(y)
        return tf.stack(rows)

    same(f, ([1.0, -1.0, 2.0],))


def test_shapes_that_grow_are_written_out():
    def f(x):
        rows = tf.zeros([0])
        for value in x:
            rows = tf.concat([rows, [value * 2]], 0)
        return rows

    same(f, ([1.0, 2.0, 3.0],))


def test_functions_and_methods_that_are_called_are_converted_too():
    class Model(tf.Module):
        def __init__(self):
            self.limit = 1.0

        def __call__(self, x):
            return self.clip(x)

        def clip(self, x):
            while tf.reduce_sum(x) > self.limit:
                x = x / 2
            return x

    model = Model()
    inner = tf.function(lambda x: model(x) if tf.reduce_sum(x) > 0 else x)
    np.testing.assert_allclose(inner(tf.constant([4.0, 4.0])), [0.5, 0.5])
    np.testing.assert_allclose(inner(tf.constant([-4.0, 4.0])), [-4.0, 4.0])


def test_decorated_methods_call_super():
    class Base:
        def call(self, x):
            if x > 0:
                return x
            return -x

    class Derived(Base):
        @tf.function
        def call(self, x):
            return super().call(x) + 1

    assert float(Derived().call(tf.constant(-2.0))) == 3.0


def test_variables_are_assigned_by_the_branch_that_is_taken():
    v = tf.Variable(0.0)

    @tf.function
    def f(x):
        if x > 0:
            v.assign_add(x)
        else:
            v.assign(100.0)
        return v.read_value()

    assert [float(f(tf.constant(one))) for one in (2.0, 3.0, -1.0, 4.0)] == [2.0, 5.0, 100.0, 104.0]
    assert f.trace_count == 1


def test_variables_are_carried_through_a_loop():
    v, calls = tf.Variable(1.0), []

    @tf.function
    def f(n):
        calls.append(None)
        for _ in tf.range(n):
            v.assign(v * 2)
            if v > 10:
                v.assign_sub(1.0)
        return v.read_value()

    assert float(f(tf.constant(4))) == 15.0
    assert float(v) == 15.0
    assert float(f(tf.constant(2))) == 57.0
    assert len(calls) == 1


def test_gradients_through_branches_and_loops():
    w = tf.Variable(3.0)

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            y = x
            for i in tf.range(3):
                if i < 2:
                    y = y * w
                else:
                    y = y + w
        return tape.gradient(y, w)

    assert float(slope(tf.constant(2.0))) == 2 * 2.0 * 3.0 + 1


def test_training_in_a_loop_inside_the_function():
    w = tf.Variable(5.0)
    optimizer = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def train(xs):
        for x in xs:
            with tf.GradientTape() as tape:
                loss = (w * x - x) ** 2
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    expected = 5.0
    for _ in range(4):
        expected -= 0.1 * 2 * (expected - 1)
    train(tf.constant([1.0, 1.0, 1.0, 1.0]))
    assert float(w) == pytest.approx(expected, rel=1e-5)


def test_a_step_over_replicas_in_a_loop(strategy_of_two):
    with strategy_of_two.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)

    def step(x):
        if tf.reduce_sum(x) > 0:
            y = x
        else:
            y = -x
        v.assign_add(y)
        return y

    @tf.function
    def train(x):
        total = 0.0
        for _ in tf.range(3):
            per_replica = strategy_of_two.run(step, args=(x,))
            total += strategy_of_two.reduce("SUM", per_replica, axis=None)
        return total

    assert float(train(tf.constant(-2.0))) == 12.0
    assert float(v) == 13.0


@pytest.mark.parametrize("outside", ["eager", "tf.function"])
def test_a_compiled_step_is_converted_also_in_a_compiled_function(strategy_of_two, outside):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def step(x):
        if tf.reduce_sum(x) > 0:
            return 2.0 * x
        return -x

    def run(x):
        return strategy_of_two.run(step, args=(x,))

    (batch,) = strategy_of_two.experimental_distribute_dataset([tf.constant([1.0, 2.0, -3.0, -4.0])])
    results = (tf.function(run) if outside == "tf.function" else run)(batch)
    found = [one.tolist() for one in strategy_of_two.experimental_local_results(results)]
    assert found == [[2.0, 4.0], [3.0, 4.0]]


def test_loops_with_a_tensor_array():
    @tf.function
    def squares(x):
        rows = tf.TensorArray(tf.float32, size=tf.shape(x)[0])
        for i in tf.range(tf.shape(x)[0]):
            rows = rows.write(i, x[i] ** 2)
        return rows.stack()

    np.testing.assert_allclose(squares(tf.constant([1.0, 2.0, 3.0])), [1.0, 4.0, 9.0])


def test_prints_of_the_program_come_every_time(capfd):
    @tf.function
    def f(x):
        print("traced")
        for i in tf.range(2):
            tf.print("row", i, x)

    f(tf.constant(1.0))
    f(tf.constant(2.0))
    out = capfd.readouterr()
    assert out.out.count("traced") == 1
    assert (out.out + out.err).count("row") == 4


def test_values_that_fit_no_program_are_named():
    @tf.function
    def f(x):
        if x > 0:
            y = tf.zeros(3)
        else:
            y = tf.zeros(2)
        return y

    with pytest.raises(InvalidArgumentError, match=r"`y` is float32\[3\] in one branch and float32\[2\] in the other"):
        f(tf.constant(1.0))


def test_a_value_in_one_branch_only_is_named():
    @tf.function
    def f(x):
        if x > 0:
            y = x
        return y

    with pytest.raises(InvalidArgumentError, match="`y` gets a value in the first branch only"):
        f(tf.constant(1.0))


def test_a_return_on_some_paths_only_is_refused():
    @tf.function
    def f(x):
        for row in x:
            if row > 0:
                return row

    with pytest.raises(InvalidArgumentError, match="a path that ends without a `return`"):
        f(tf.constant([1.0]))


def test_a_dtype_that_changes_in_a_loop_is_named():
    @tf.function
    def f(n, x):
        while n > 0:
            x = x * 0.5
            x = tf.cast(x, tf.int32)
            n -= 1
        return x

    with pytest.raises(InvalidArgumentError, match="`x` is float32 before the loop and int32 in it"):
        f(tf.constant(3), tf.constant(1.0))


def test_errors_point_to_the_line_that_was_written():
    def inner(x):
        if x > 0:
            raise KeyError("here")  # the line
        return x

    @tf.function
    def outer(x):
        return inner(x)

    with pytest.raises(KeyError, match="here") as caught:
        outer(tf.constant(1.0))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {"outer", "inner"} <= {frame.name for frame in frames}
    assert any(frame.line == 'raise KeyError("here")  # the line' for frame in frames)


def absolute(x):
    if x > 0:
        return x
    return -x


def test_without_autograph_conditions_are_refused():
    with pytest.raises(Exception, match="(?s)boolean conversion") as caught:
        tf.function(absolute, autograph=False)(tf.constant(1.0))
    assert any("jax.lax.cond" in note for note in caught.value.__notes__)


def test_without_the_package_the_error_names_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(Exception, match="(?s)boolean conversion") as caught:
        tf.function(absolute)(tf.constant(1.0))
    assert any("mirrored[autograph]" in note for note in caught.value.__notes__)


def test_do_not_convert_leaves_a_function_as_it_is():
    @tf.autograph.experimental.do_not_convert
    def inner(x):
        return x if x > 0 else -x

    with pytest.raises(Exception, match="(?s)boolean conversion"):
        tf.function(lambda x: inner(x))(tf.constant(1.0))


def test_one_conversion_serves_all_closures():
    def make(k):
        @tf.function
        def f(x):
            if x > k:
                return x
            return x * k

        return f

    assert [float(make(k)(tf.constant(2.0))) for k in (1.0, 3.0)] == [2.0, 6.0]


def test_numpy_arrays_and_tuples_in_the_state():
    def f(x):
        state = (np.zeros(2, np.float32), {"n": 0})
        for value in x:
            state = (state[0] + value, {"n": state[1]["n"] + 1})
        return state[0] * tf.cast(state[1]["n"], tf.float32)

    same(f, ([1.0, 2.0],))


def test_a_traced_index_keeps_dtypes():
    @tf.function
    def f(n):
        total = tf.constant(0, tf.int32)
        for i in tf.range(n, delta=2, dtype=tf.int32):
            total += i
        return total

    result = f(tf.constant(7))
    assert result.dtype == jnp.int32
    assert int(result) == 0 + 2 + 4 + 6


@pytest.mark.parametrize("kind", [range, tf.range])
@pytest.mark.parametrize("bounds", [(3, 5), (5, 5), (5, 3)])
def test_a_range_whose_bounds_are_sizes_may_have_no_iterations(kind, bounds):
    @tf.function
    def f(x, y):
        count = 0
        for _ in kind(tf.shape(x)[0], tf.shape(y)[0]):
            count += 1
        return count

    assert int(f(*map(tf.zeros, bounds))) == max(0, bounds[1] - bounds[0])


def test_a_loop_over_a_range_longer_than_len_can_return():
    @tf.function
    def f(x):
        for i in range(10**20):
            x = x + i
            if i == 3:
                break
        return x

    assert int(f(tf.constant(1))) == 7


@pytest.mark.parametrize("kind", [range, tf.range])
def test_a_loop_that_is_known_to_have_no_iterations_is_not_traced(kind):
    @tf.function
    def f(x):
        out = x[:0]
        for i in kind(3, tf.constant(x.shape[0])):
            out = tf.concat([out, [x[i] + x[i - 3]]], 0)
        return out

    assert f(tf.zeros(0)).shape == f(tf.zeros(2)).shape == f(tf.zeros(3)).shape == (0,)
    assert f(tf.range(4.0)).tolist() == [3.0]


def test_a_python_range_of_known_tensors_may_be_empty():
    n, less = tf.constant([2, -2], tf.int8)

    @tf.function
    def f():
        return range(5, n), range(less), range(n, 5, -1), tf.reduce_sum(tf.cast(range(5, n), tf.float32))

    *ranges, total = f()
    assert [(one.shape, one.dtype) for one in ranges] == [((0,), "int8")] * 3
    assert float(total) == 0.0


@pytest.mark.parametrize("limit", [0.5, 2.5])
def test_a_range_of_known_tensors_with_fractions_is_refused(limit):
    @tf.function
    def f():
        count = 0
        for _ in tf.range(0, tf.constant(limit), dtype=tf.int32):
            count += 1
        return count

    with pytest.raises(tf.errors.InvalidArgumentError, match="range of integers must begin"):
        f()


@pytest.mark.parametrize("bounds", [lambda n: (0, n, 1), lambda n: (n, None, 1)])
def test_the_dtype_of_a_traced_range_may_be_passed_by_position(bounds):
    @tf.function
    def f(n):
        halves = tf.zeros([], tf.float32)
        for i in tf.range(*bounds(n), tf.float32):
            halves += i / 2
            assert i.dtype == tf.float32
        return halves

    assert float(f(tf.constant(4))) == 3.0


@pytest.mark.parametrize("x", [0, 3])
def test_and_and_or_return_an_operand(x):
    @tf.function
    def f(n):
        k = n and n - 1
        return k * 100, n or 5, 7 or n, n and n + 40

    want = ((x and x - 1) * 100, x or 5, 7, x and x + 40)
    assert tuple(int(one) for one in f(tf.constant(x))) == want


def test_and_evaluates_its_second_operand_only_if_the_first_is_true():
    v = tf.Variable(0)

    @tf.function
    def f(x):
        if x > 0 and v.assign_add(1) > 0:
            return x
        return -x

    assert [int(f(tf.constant(x))) for x in (2, -2, 3)] == [2, 2, 3]
    assert int(v) == 2


def test_operands_of_different_dtypes_are_refused():
    @tf.function
    def f(x):
        return (x > 0) and x

    with pytest.raises(InvalidArgumentError, match="compare the number"):
        f(tf.constant(1))


@pytest.mark.parametrize("shape", [(), None])
@pytest.mark.parametrize("x", [0, 2, 9])
def test_tensor_arrays_written_before_a_conditional_break(shape, x):
    @tf.function
    def decode(x):
        rows = tf.TensorArray(tf.int32, size=4, element_shape=shape)
        for i in tf.range(4):
            if i == x:
                break
            rows = rows.write(i, x + i)
        return rows.stack()

    assert decode(tf.constant(x)).tolist() == [x + i if i < x else 0 for i in range(4)]


def test_tensor_arrays_written_in_one_branch():
    @tf.function
    def f(x):
        first, second = tf.TensorArray(tf.float32, size=2), tf.TensorArray(tf.float32, size=2)
        first = first.write(1, tf.constant([5.0]))
        if x > 0:
            first = first.write(0, tf.constant([1.0]))
            second = second.write(0, x)
        return first.stack(), second.stack()

    assert [one.tolist() for one in f(tf.constant(2.0))] == [[[1.0], [5.0]], [2.0, 0.0]]
    assert [one.tolist() for one in f(tf.constant(-2.0))] == [[[0.0], [5.0]], [0.0, 0.0]]


def test_a_variable_on_one_side():
    v = tf.Variable(3.0)

    @tf.function
    def f(x):
        with tf.GradientTape() as tape:
            if x > 2.0:
                y = x
            else:
                y = v
            z = (x if x > 2.0 else v) + y * 2.0
        return z, tape.gradient(z, v)

    assert [float(one) for one in f(tf.constant(1.0))] == [9.0, 3.0]
    assert [float(one) for one in f(tf.constant(4.0))] == [12.0, 0.0]


def test_a_variable_that_its_branch_assigns_is_refused_beside_a_tensor():
    v = tf.Variable(3.0)

    @tf.function
    def f(x):
        if x > 2.0:
            y = x
        else:
            v.assign(7.0)
            y = v
        return y + 0.0

    with pytest.raises(InvalidArgumentError, match="Variable"):
        f(tf.constant(1.0))


def test_max_min_and_sorted_of_tensors():
    @tf.function
    def f(x, y):
        return max(x, y, 2), min(x, y), max(tf.stack([x, y])), sorted(tf.stack([x, y, 0]), reverse=True)

    largest, smallest, of_vector, ordered = f(tf.constant(1), tf.constant(5))
    assert (int(largest), int(smallest), int(of_vector), ordered.tolist()) == (5, 1, 5, [5, 1, 0])

    @tf.function
    def wrong(x):
        return max(x)

    with pytest.raises(InvalidArgumentError, match="tf.reduce_max"):
        wrong(tf.ones([2, 2]))


@pytest.mark.parametrize("limit", [None, 50])
def test_a_condition_that_assigns_a_variable_is_evaluated_before_each_iteration(limit):
    seen, turns = tf.Variable(0), tf.Variable(0)

    def loop():
        n = tf.constant(0)
        while seen.assign_add(1) < 5:
            tf.autograph.experimental.set_loop_options(maximum_iterations=limit)
            turns.assign_add(1)
            n += 1
        return n

    def by_function():
        return tf.while_loop(
            lambda n: seen.assign_add(1) < 5, lambda n: [n + 1], [tf.constant(0)], maximum_iterations=limit
        )

    assert (int(tf.function(loop)()), int(seen.numpy()), int(turns.numpy())) == (4, 5, 4)
    assert (int(tf.function(loop)()), int(seen.numpy()), int(turns.numpy())) == (0, 6, 4)
    seen.assign(0)
    assert (int(tf.function(by_function)()[0]), int(seen.numpy())) == (4, 5)


def test_a_condition_that_draws_random_numbers_draws_a_new_one_each_time():
    generator = tf.random.Generator.from_seed(1)

    def draws():
        n = tf.constant(0)
        while generator.uniform([]) < 0.5:
            n += 1
        return n

    compiled = tf.function(draws)
    found = [int(compiled()) for _ in range(4)]
    generator.reset_from_seed(1)
    assert found == [int(draws()) for _ in range(4)]
    assert len(set(found)) > 1


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_iterations_before_the_condition_depends_on_a_tensor_count_for_the_limit(limit):
    @tf.function
    def loop(x):
        n = 0
        while True:
            tf.autograph.experimental.set_loop_options(maximum_iterations=limit)
            n += 1
            if x < 0:
                break
        return n

    assert int(loop(tf.constant(1.0))) == max(limit, 1)  # the first condition, True, is one of Python: no limit holds


@pytest.mark.parametrize("step", [0, 0.0])
def test_a_traced_range_without_a_step_is_refused(step):
    @tf.function
    def count(end):
        total = 0.0
        for _ in tf.range(step, end, step):
            total += 1.0
        return total

    with pytest.raises(InvalidArgumentError, match="delta=0"):
        count(tf.constant(4 + step))


@pytest.mark.parametrize("is_variable", [False, True])
def test_a_loop_over_a_scalar_is_refused(is_variable):
    @tf.function
    def run(x):
        total = tf.constant(0.0)
        for one in x:
            total += one
        return total

    x = tf.Variable(3.0) if is_variable else tf.constant(3.0)
    with pytest.raises(TypeError, match="over a scalar tensor of dtype float32"):
        run(x)
