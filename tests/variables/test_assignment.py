"""Variables of 64 bits, which are created in 64-bit mode, keep their dtype in assignments outside of it."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import VariableError

DTYPES = ["float64", "int64", "uint64", "complex128"]
REFUSED = r"it uses variable 'v' of dtype {}, which was created in 64-bit mode[\s\S]*jax\.enable_x64\(True\)"


def wide(dtype, strategy=None, **options):
    with jax.enable_x64(True), mr.get_strategy().scope() if strategy is None else strategy.scope():
        return mr.Variable(np.ones(3, dtype), name="v", **options)


def array_of(dtype, value):
    with jax.enable_x64(True):
        return jnp.asarray(np.full(3, value, dtype))


@pytest.fixture
def strategy():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4)


ASSIGNMENTS = {
    "NumPy": lambda v: v.assign(np.full(3, 2, v.dtype)),
    "numbers": lambda v: v.assign([1, 2, 3]),
    "32 bits": lambda v: v.assign(jnp.ones(3, jnp.uint32 if v.dtype == "uint64" else jnp.int32)),
    "variable": lambda v: v.assign(wide(v.dtype)),
    "add": lambda v: v.assign_add(array_of(v.dtype, 1)),
    "subtract": lambda v: v.assign_sub([1, 1, 1]),
    "slice": lambda v: v[1:].assign(array_of(v.dtype, 1)[1:]),
    "scatter": lambda v: v.scatter_add(tf.IndexedSlices([1], [0])),
    "scatter_nd": lambda v: v.scatter_nd_update([[0]], [1]),
}


@pytest.mark.first(36)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_scope", [False, True], ids=["plain", "mirrored"])
@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_an_assignment_that_computes_in_32_bits_is_refused(assign, in_scope, dtype, strategy):
    v = wide(dtype, strategy if in_scope else None)
    with pytest.raises(VariableError, match=REFUSED.format(dtype)):
        assign(v)
    assert (v.stored_value().dtype, v.numpy().tolist()) == (dtype, [1, 1, 1])
    with jax.enable_x64(True):
        mr.function(lambda: v.assign_add(np.ones(3, dtype)))()  # it named the type that XLA had not expected
        assert v.numpy().tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [{}, {"aggregation": "SUM"}, {"synchronization": "ON_READ", "aggregation": "SUM"}],
    ids=["NONE", "SUM", "ON_READ"],
)
@pytest.mark.parametrize("method", ["assign", "assign_add"])
def test_the_assignments_of_replicas_are_refused(method, options, dtype, strategy):
    v = wide(dtype, strategy, **options)
    with pytest.raises(VariableError, match=REFUSED.format(dtype)):
        strategy.run(lambda: getattr(v, method)(np.ones(3, dtype)))
    assert v.stored_value().dtype == dtype


def test_the_assignments_of_components_and_updates_are_refused(strategy):
    v = wide("float64", strategy, synchronization="ON_READ", aggregation="SUM")
    m = wide("float64", strategy)
    one = array_of("float64", 1 / 3)
    for assign in (
        lambda: v.assign(one),
        lambda: v.values[1].assign(one),
        lambda: strategy.extended.update(m, lambda var, value: var.assign_add(value), args=(one,)),
        lambda: m.assign(mr.Mirrored(np.ones(3), 4)),
    ):
        with pytest.raises(VariableError, match=REFUSED.format("float64")):
            assign()
    assert (v.stored_value().dtype, m.stored_value().dtype) == (jnp.float64, jnp.float64)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_the_update_of_an_optimizer_is_refused():
    v = wide("float64")
    optimizer = mr.optimizers.SGD(0.1)
    with pytest.raises(VariableError, match=REFUSED.format("float64")):
        optimizer.apply_gradients([(jnp.ones(3), v)])
    assert v.stored_value().dtype == jnp.float64


@pytest.mark.parametrize(("dtype", "value"), [("float64", 1 / 3), ("int64", 2**40 + 1)])
@pytest.mark.parametrize("is_weak", [False, True])
def test_an_array_of_the_dtype_is_stored_unchanged(is_weak, dtype, value, strategy):
    plain, mirrored, array = wide(dtype), wide(dtype, strategy), array_of(dtype, value)
    if is_weak:
        with jax.enable_x64(True):
            array = jnp.full(3, value)
    plain.assign(array)
    mirrored.assign(array)
    assert plain.numpy().tolist() == mirrored.numpy().tolist() == [value] * 3
    plain, mirrored = wide(dtype), wide(dtype, strategy)
    strategy.run(lambda: (plain.assign(array), mirrored.assign(array)) and None)
    assert plain.numpy().tolist() == mirrored.numpy().tolist() == [value] * 3


def test_copies_keep_the_dtype():
    v = wide("float64")
    v.assign(array_of("float64", 1 / 3))
    for copied in (copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
        assert copied.stored_value().dtype == copied.dtype == jnp.float64
        assert copied.numpy().tolist() == [1 / 3] * 3
