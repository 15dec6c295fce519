"""What a plain variable is: an array with a name that changes."""

from __future__ import annotations

import contextlib
import copy
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mirrored as mr
from mirrored import tf
from mirrored.errors import ArgumentError, NotSupportedError, TransformError, ValuesError, VariableError
from mirrored.testing import assert_same_bits


@pytest.fixture
def v() -> mr.Variable:
    return mr.Variable([1.0, 2.0, 3.0], name="v")


# Initial values


@pytest.mark.parametrize(
    ("initial", "dtype", "shape"),
    [
        (1.0, "float32", ()),
        (3, "int32", ()),
        (True, "bool", ()),
        (1j, "complex64", ()),
        ([1.0, 2.0], "float32", (2,)),
        (np.zeros((2, 3), np.int16), "int16", (2, 3)),
        (np.float32(2.0), "float32", ()),
        (jnp.ones((2, 1), jnp.bfloat16), "bfloat16", (2, 1)),
        (lambda: jnp.zeros((4,)), "float32", (4,)),
        (lambda: 5, "int32", ()),
        (jnp.zeros((0, 3)), "float32", (0, 3)),
    ],
)
def test_initial_value_gives_shape_and_dtype(initial, dtype, shape):
    variable = mr.Variable(initial)
    assert (str(variable.dtype), variable.shape, variable.ndim) == (dtype, shape, len(shape))
    assert variable.size == int(np.prod(shape))
    assert variable.read_value().dtype == variable.dtype


def test_dtype_argument_casts_the_initial_value():
    assert mr.Variable([1, 2], dtype=jnp.float32).dtype == jnp.float32
    assert mr.Variable(lambda: 1.5, dtype="bfloat16").dtype == jnp.bfloat16


def test_initial_value_may_be_another_variable(v):
    other = mr.Variable(v)
    v.assign([0.0, 0.0, 0.0])
    assert_same_bits(other.numpy(), np.array([1.0, 2.0, 3.0], np.float32))


def test_random_callable_is_drawn_once():
    draws = []

    def draw():
        draws.append(1)
        return jax.random.normal(jax.random.key(0), (3,))

    variable = mr.Variable(draw)
    assert len(draws) == 1
    assert_same_bits(variable.numpy(), np.asarray(jax.random.normal(jax.random.key(0), (3,))))


@pytest.mark.parametrize(
    "initial",
    [
        lambda: jnp.arange(3.0) * 2,
        lambda: jax.random.normal(jax.random.key(1), (3,)),
        lambda: jax.jit(lambda: jnp.ones(3))(),
        lambda: np.arange(3.0, dtype=np.float32),
        lambda: [1.0, 2.0, 3.0],
        lambda: [jnp.float32(1) + 1, 2.0, jnp.ones(())],
    ],
    ids=["jnp", "random", "jit", "numpy", "list", "list of arrays"],
)
@pytest.mark.parametrize("as_callable", [True, False], ids=["callable", "value"])
@pytest.mark.first(7)
def test_initial_value_inside_a_trace_is_computed_at_once(initial, as_callable):
    made = []

    @mr.function
    def step(x):
        if not made:
            made.append(mr.Variable(initial if as_callable else initial()))
        return made[0] * x

    result = step(jnp.float32(2.0))
    assert_same_bits(made[0].numpy(), np.asarray(initial(), np.float32))
    assert_same_bits(np.asarray(result), 2 * made[0].numpy())


def test_initial_value_that_depends_on_an_argument_is_refused():
    @mr.function
    def step(x):
        return mr.Variable(x * 2, name="late").read_value()

    @mr.function
    def step_with_list(x):
        return mr.Variable([x, 1.0], name="late").read_value()

    with pytest.raises(ArgumentError, match=r"'late' depends on a value that is being traced[\s\S]*callable"):
        step(jnp.ones(2))
    with pytest.raises(ArgumentError, match="'late' depends on a value that is being traced"):
        step_with_list(jnp.float32(2))


def test_no_initial_value_is_refused():
    with pytest.raises(ArgumentError, match="no initial value for variable 'w'"):
        mr.Variable(name="w")


def test_shape_argument_must_agree(v):
    assert mr.Variable(jnp.zeros((2, 3)), shape=(2, 3)).shape == (2, 3)
    with pytest.raises(ArgumentError, match=r"shape=\(3,\) was passed for an initial value of shape \(2,\)"):
        mr.Variable(jnp.zeros(2), shape=(3,))


def test_per_replica_initial_value_is_refused():
    with pytest.raises(ValuesError, match="a per-replica initial value for variable 'w'"):
        mr.Variable(mr.PerReplica((1.0, 2.0)), name="w")


@pytest.mark.parametrize("source", ["array", "numpy"])
def test_variables_never_share_a_buffer(source):
    array = jnp.arange(3.0) if source == "array" else np.arange(3.0, dtype=np.float32)
    first, second = mr.Variable(array), mr.Variable(array)
    third = mr.Variable(first)
    fourth = mr.Variable(jnp.zeros(3))
    fourth.assign(first)
    pointers = {w.read_value().unsafe_buffer_pointer() for w in (first, second, third, fourth)}
    assert len(pointers) == 4
    if source == "numpy":
        array[:] = 7.0
        assert_same_bits(first.numpy(), np.arange(3.0, dtype=np.float32))
    else:
        assert array.unsafe_buffer_pointer() not in pointers


def test_names():
    assert mr.Variable(1.0, name="w").name == "w"
    assert mr.Variable(1.0).name.startswith("Variable")


def test_trainable_defaults():
    assert mr.Variable(1.0).trainable
    assert not mr.Variable(1.0, trainable=False).trainable


def test_plain_variable_is_no_distributed_value(v):
    assert not isinstance(v, mr.DistributedValues)
    assert not hasattr(v, "values")
    assert v.strategy is None
    assert v.device.endswith("CPU:0")


# Reading


def test_reads_are_arrays_of_their_own(v):
    assert isinstance(v.read_value(), jax.Array)
    assert isinstance(v.value(), jax.Array)
    host = v.numpy()
    host[:] = 0
    assert_same_bits(v.numpy(), np.array([1.0, 2.0, 3.0], np.float32))


def test_repr(v):
    assert repr(v) == "<Variable 'v' shape=(3,) dtype=float32 value=[1. 2. 3.]>"


def test_repr_while_traced_does_not_read(v):
    seen = []

    @mr.function
    def step():
        seen.append(repr(v))

    step()
    assert seen == ["<Variable 'v' shape=(3,) dtype=float32 (being traced)>"]


def test_equality_is_elementwise_and_references_hash(v):
    assert (v == jnp.array([1.0, 0.0, 3.0])).tolist() == [True, False, True]
    with pytest.raises(TypeError, match="unhashable"):
        hash(v)
    other = mr.Variable([1.0, 2.0, 3.0])
    assert v.ref() == v.ref()
    assert v.ref() != other.ref()
    assert {v.ref(): "v", other.ref(): "other"}[other.ref()] == "other"
    assert v.ref().deref() is v


# Arithmetic

BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
OTHERS = [2.0, 2, np.float32(2.0), np.array([2.0, 3.0, 4.0], np.float32), jnp.array([2.0, 3.0, 4.0])]


@pytest.mark.parametrize("operation", BINARY, ids=lambda op: op.__name__)
@pytest.mark.parametrize("other", OTHERS, ids=["float", "int", "np.float32", "numpy", "jnp"])
def test_arithmetic_from_both_sides(v, operation, other):
    value = v.read_value()
    for result, expected in (
        (operation(v, other), operation(value, other)),
        (operation(other, v), operation(jnp.asarray(other), value)),
    ):
        assert isinstance(result, jax.Array)
        assert_same_bits(np.asarray(result), np.asarray(expected))


@pytest.mark.parametrize("operation", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons_from_both_sides(v, operation):
    other = np.array([0.0, 2.0, 4.0], np.float32)
    assert_same_bits(np.asarray(operation(v, other)), operation(v.numpy(), other))
    assert_same_bits(np.asarray(operation(other, v)), operation(other, v.numpy()))


@pytest.mark.parametrize("operation", [operator.and_, operator.or_, operator.xor], ids=lambda op: op.__name__)
def test_bit_operations_from_both_sides(operation):
    v, other = mr.Variable([1, 2, 3]), np.array([3, 1, 2], np.int32)
    assert_same_bits(np.asarray(operation(v, other)), operation(v.numpy(), other))
    assert_same_bits(np.asarray(operation(other, v)), operation(other, v.numpy()))


def test_matmul_from_both_sides():
    m = mr.Variable([[1.0, 2.0], [3.0, 4.0]])
    x = np.array([[1.0, 0.0], [2.0, 1.0]], np.float32)
    assert_same_bits(np.asarray(m @ x), m.numpy() @ x)
    assert_same_bits(np.asarray(x @ m), x @ m.numpy())


def test_two_variables_in_one_expression(v):
    w = mr.Variable([2.0, 2.0, 2.0])
    assert_same_bits(np.asarray(v * w - w), np.array([0.0, 2.0, 4.0], np.float32))


def test_unary_operations_and_conversions(v):
    scalar, integer = mr.Variable(2.5), mr.Variable(3)
    assert_same_bits(np.asarray(-v), -v.numpy())
    assert_same_bits(np.asarray(abs(-v)), v.numpy())
    assert (~mr.Variable([True, False])).tolist() == [False, True]
    assert (float(scalar), int(scalar), complex(scalar), bool(scalar)) == (2.5, 2, 2.5 + 0j, True)
    assert round(scalar) == 2
    assert "abcd"[integer] == "d"
    assert scalar.item() == 2.5
    assert v.tolist() == [1.0, 2.0, 3.0]
    assert f"{scalar:.1f}" == "2.5"


def test_indexing_iteration_and_array_methods(v):
    assert (float(v[0]), v[1:].tolist(), len(v), [float(x) for x in v]) == (1.0, [2.0, 3.0], 3, [1.0, 2.0, 3.0])
    assert v.at[0].set(9.0).tolist() == [9.0, 2.0, 3.0]
    assert (float(v.sum()), float(v.mean()), v.reshape(3, 1).shape, v.T.shape) == (6.0, 2.0, (3, 1), (3,))
    assert v.astype(jnp.int32).dtype == jnp.int32


def test_numpy_functions_accept_it(v):
    assert_same_bits(np.asarray(v), np.array([1.0, 2.0, 3.0], np.float32))
    assert np.asarray(v, dtype=np.float64).dtype == np.float64
    assert np.mean(np.asarray(v)) == 2.0
    np.testing.assert_allclose(v, [1.0, 2.0, 3.0])


ACCEPTING = {
    "jnp.add": lambda v: jnp.add(v, 1.0),
    "jnp.sum": lambda v: jnp.sum(v),
    "jnp.stack": lambda v: jnp.stack([v, v]),
    "jnp.concatenate": lambda v: jnp.concatenate([v, v]),
    "jnp.where": lambda v: jnp.where(v > 1.5, v, 0.0),
    "jnp.asarray": lambda v: jnp.asarray(v),
    "jnp.einsum": lambda v: jnp.einsum("i,i->", v, v),
    "jnp.zeros_like": lambda v: jnp.zeros_like(v),
    "jnp.broadcast_to": lambda v: jnp.broadcast_to(v, (2, 3)),
    "lax.add": lambda v: lax.add(v, v),
    "lax.exp": lambda v: lax.exp(v),
    "lax.dot": lambda v: lax.dot(v, v),
    "lax.scan": lambda v: lax.scan(lambda c, x: (c + x, x), 0.0, v),
    "lax.cond": lambda v: lax.cond(True, lambda x: x * 2, lambda x: x, v),
    "lax.cond that returns it": lambda v: lax.cond(True, lambda x: x, lambda x: x, v),
    "lax.switch that returns it": lambda v: lax.switch(1, [lambda x: x, lambda x: x], v),
    "lax.map": lambda v: lax.map(lambda x: x * 2, v),
    "jax.nn.relu": lambda v: jax.nn.relu(v),
    "jax.nn.softmax": lambda v: jax.nn.softmax(v),
    "jax.jit": lambda v: jax.jit(lambda x, y: x * y)(v, 2.0),
    "jax.jit pytree": lambda v: jax.jit(lambda tree: tree["v"] * 2)({"v": v}),
    "jax.vmap": lambda v: jax.vmap(lambda x: x * 2)(v),
    "jax.grad": lambda v: jax.grad(lambda x: jnp.sum(x * x))(v),
    "jax.value_and_grad": lambda v: jax.value_and_grad(lambda x: jnp.sum(x * x))(v),
    "jax.checkpoint": lambda v: jax.checkpoint(lambda x: x * 2)(v),
    "jax.device_put": lambda v: jax.device_put(jnp.asarray(v)),
    "jax.tree.map": lambda v: jax.tree.map(lambda x: x + 1, {"v": v}),
}


@pytest.mark.parametrize("use", ACCEPTING.values(), ids=ACCEPTING)
def test_jax_accepts_it_as_an_argument(v, use):
    assert_same_bits(use(v), use(v.read_value()))


# Writing


def test_assignments_return_the_new_value(v):
    assert v.assign([3.0, 2.0, 1.0]).tolist() == [3.0, 2.0, 1.0]
    assert v.assign_add([1.0, 1.0, 1.0]).tolist() == [4.0, 3.0, 2.0]
    assert v.assign_sub(jnp.ones(3)).tolist() == [3.0, 2.0, 1.0]
    assert v.assign(jnp.zeros(3), read_value=False) is None
    assert v.tolist() == [0.0, 0.0, 0.0]


def test_assignment_takes_many_kinds_of_values():
    v, w = mr.Variable(0.0), mr.Variable(7.0)
    seen = [float(v.assign(x)) for x in (w, np.float32(2), 3, jnp.float32(4.5), w + 1.0, np.int16(6), True)]
    assert seen == [7.0, 2.0, 3.0, 4.5, 8.0, 6.0, 1.0]
    assert v.dtype == jnp.float32


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("value", [[1.0, 2.0], 1.0, np.zeros((3, 1), np.float32)], ids=["short", "scalar", "column"])
def test_wrong_shape_is_refused_and_changes_nothing(v, method, value):
    with pytest.raises(VariableError, match=rf"v\.{method}: the value has shape [\s\S]*must have the variable's shape"):
        getattr(v, method)(value)
    assert v.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("dtype", "value"), [("int32", 1.5), ("bool", 1), ("float32", 1j)])
def test_cast_that_changes_the_kind_is_refused(dtype, value):
    v = mr.Variable(jnp.zeros((), dtype), name="v")
    with pytest.raises(VariableError, match=r"v\.assign: a value of dtype [\s\S]*astype"):
        v.assign(jnp.asarray(value))
    assert not bool(v)


def test_kept_reads_are_not_changed_by_assignments(v):
    before = v.read_value()
    v.assign_add(jnp.ones(3))
    assert before.tolist() == [1.0, 2.0, 3.0]


def test_integer_and_small_float_arithmetic_keeps_the_dtype():
    for dtype in (jnp.int8, jnp.bfloat16, jnp.float16):
        v = mr.Variable(jnp.ones(2, dtype))
        assert v.assign_add(jnp.ones(2, dtype)).dtype == dtype
        assert v.assign_sub(np.ones(2, dtype)).dtype == dtype


def test_deepcopy_is_independent(v):
    twin = copy.deepcopy(v)
    v.assign_add(jnp.ones(3))
    assert twin.tolist() == [1.0, 2.0, 3.0]
    assert twin.name == "v"
    assert twin.ref() != v.ref()


# Under bare transforms

READING = {
    "jit": lambda f: jax.jit(f)(1.0),
    "grad": lambda f: jax.grad(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "jvp": lambda f: jax.jvp(f, (1.0,), (1.0,)),
    "linearize": lambda f: jax.linearize(f, 1.0),
    "eval_shape": lambda f: jax.eval_shape(f, 1.0),
    "make_jaxpr": lambda f: jax.make_jaxpr(f)(1.0),
    "scan": lambda f: lax.scan(lambda c, _: (f(c), None), 1.0, None, length=2),
    "cond": lambda f: lax.cond(True, f, lambda x: x, 1.0),
    "while": lambda f: lax.while_loop(lambda c: c < 10.0, f, 1.0),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f))(1.0),
}


@pytest.mark.parametrize("transform", READING.values(), ids=READING)
def test_reading_under_a_bare_transform_is_refused(transform):
    v = mr.Variable(2.0, name="v")
    with pytest.raises(TransformError, match=r"reading v: [\s\S]*JAX transform[\s\S]*mirrored.function"):
        transform(lambda x: x * v)


def writing():
    v = mr.Variable(2.0, name="v")

    def write(x):
        v.assign(x)
        return x

    return v, write


@pytest.mark.parametrize("transform", READING.values(), ids=READING)
def test_writing_under_a_bare_transform_is_refused(transform):
    v, write = writing()
    with pytest.raises(TransformError, match=r"v\.assign: [\s\S]*assigned under a JAX transform"):
        transform(write)
    assert float(v) == 2.0


@pytest.mark.parametrize("transform", READING.values(), ids=READING)
def test_writing_under_a_nested_transform_is_refused_inside_a_function_too(transform):
    v, write = writing()

    @mr.function
    def step():
        v.assign(5.0)
        return transform(write)

    with pytest.raises(TransformError, match=r"v\.assign: [\s\S]*use mirrored\.function [\s\S]*return the new value"):
        step()
    assert float(v) == 2.0


@pytest.mark.parametrize("name", [n for n in READING if n not in ("eval_shape", "make_jaxpr")])
def test_reading_under_a_nested_transform_inside_a_function_is_captured(name):
    v = mr.Variable(2.0)
    transform = READING[name]
    step = mr.function(lambda: transform(lambda x: x * v))

    for value in (2.0, 3.0):
        v.assign(value)
        expected = transform(lambda x, value=value: x * jnp.float32(value))
        result = step()
        if name == "linearize":
            result, expected = result[0], expected[0]
        np.testing.assert_allclose(np.asarray(jax.tree.leaves(result)[0]), np.asarray(jax.tree.leaves(expected)[0]))
    assert step.trace_count == 1


def test_passing_the_value_works_where_capturing_is_refused(v):
    assert jax.jit(lambda value: value * 2)(v.read_value()).tolist() == [2.0, 4.0, 6.0]
    assert jax.grad(lambda value: jnp.sum(value**2))(v.read_value()).tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("in_scope", [False, True])
@pytest.mark.parametrize(
    ("name", "remedy"), [("iadd", "assign_add"), ("isub", "assign_sub"), ("imul", r"assign\(variable \*")]
)
def test_in_place_operators_are_refused(name, remedy, in_scope):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope() if in_scope else contextlib.nullcontext():
        v = mr.Variable(2.0, name="v", synchronization="ON_READ", aggregation="MEAN")
    for one in (v, v.values[0]) if in_scope else (v,):
        with pytest.raises(RuntimeError, match=rf"v.*__{name}__(.|\n)*remedy: variable\.{remedy}"):
            getattr(operator, name)(one, 1.0)
    total = jnp.zeros(())
    total += v
    assert (float(v), float(total)) == (2.0, 2.0)


def test_every_in_place_operator_of_arrays_is_refused():
    in_place = {name for name in vars(np.ndarray) if name.startswith("__i") and f"__{name[3:]}" in vars(np.ndarray)}
    assert len(in_place) == 13
    v = mr.Variable(2)
    for name in in_place:
        with pytest.raises(NotSupportedError, match=name):
            getattr(v, name)(1)


def test_components_of_an_open_shape_are_operands_as_their_values():
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        variables = [mr.Variable([1.0, 2.0], shape=[None]), mr.Variable([1.0, 2.0], shape=tf.TensorShape(None))]
    for v in variables:
        component = v.values[0]
        v.assign([1.0, 2.0, 3.0])
        assert (float(jnp.sum(component)), jnp.add(component, 1.0).tolist()) == (6.0, [2.0, 3.0, 4.0])
        assert (component.ndim, component.component_shape) == (1, (3,))


def test_a_scalar_variable_of_open_shape_can_be_assigned_to_another_variable():
    source = mr.Variable(2.0, shape=tf.TensorShape(None))
    target = mr.Variable(1.0)
    target.assign(source)
    target.assign_add(source)
    assert float(target) == 4.0
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        target.assign(mr.Variable(3.0, shape=tf.TensorShape(None)).values[0])
    assert float(target) == 3.0
