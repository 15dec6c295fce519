"""A box behaves as its array, inside the block of the tape and after it."""

from __future__ import annotations

import contextlib
import copy
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored._jax.boxes import Box
from mirrored.tape import GradientTape

compiled = jax.jit(lambda a: a * 2.0).lower(jnp.arange(6.0).reshape(2, 3)).compile()

# Each operation is applied to the box and to a plain array; the outcomes must be equal.
OF_A_MATRIX = {
    "isinstance": lambda a: isinstance(a, jax.Array),
    "not a tracer": lambda a: isinstance(a, jax.core.Tracer),
    "shape": lambda a: (a.shape, a.ndim, a.size, a.dtype, a.nbytes, a.itemsize, len(a), a.weak_type),
    "aval": lambda a: a.aval,
    "typeof": jax.typeof,
    "sharding": lambda a: a.sharding,
    "format": lambda a: a.format,
    "device": lambda a: a.device,
    "devices": lambda a: a.devices(),
    "committed": lambda a: a.committed,
    "addressable_shards": lambda a: [
        (shard.device, shard.index, shard.data.tolist()) for shard in a.addressable_shards
    ],
    "addressable_data": lambda a: a.addressable_data(0),
    "global_shards": lambda a: len(a.global_shards),
    "fully": lambda a: (a.is_fully_addressable, a.is_fully_replicated, a.is_deleted(), a.is_ready()),
    "unsafe_buffer_pointer": lambda a: isinstance(a.unsafe_buffer_pointer(), int),
    "block_until_ready": lambda a: a.block_until_ready(),
    "jax.block_until_ready": jax.block_until_ready,
    "copy_to_host_async": lambda a: a.copy_to_host_async(),
    "jax.device_get": jax.device_get,
    "jax.device_get of a tree": lambda a: jax.device_get({"a": [a, 1]}),
    "jax.device_put": jax.device_put,
    "jax.device_put to a device": lambda a: jax.device_put(a, jax.devices()[1]),
    "to_device": lambda a: a.to_device(jax.devices()[1]),
    "compiled ahead of time": lambda a: compiled(a),
    "lowered": lambda a: jax.jit(lambda b: b + 1).lower(a).compile()(jnp.ones((2, 3))),
    "jit": lambda a: jax.jit(lambda b: b + 1)(a),
    "eval_shape": lambda a: jax.eval_shape(lambda b: b @ b.T, a),
    "make_jaxpr": lambda a: str(jax.make_jaxpr(lambda b: b * 2)(a)),
    "vmap": lambda a: jax.vmap(jnp.sum)(a),
    "grad": lambda a: jax.grad(lambda b: jnp.sum(b * b))(a),
    "pure_callback": lambda a: jax.pure_callback(np.sin, a, jax.lax.stop_gradient(a)),
    "io_callback": lambda a: jax.debug.callback(lambda b: None, a),
    "asarray": jnp.asarray,
    "array": lambda a: jnp.array(a, dtype=jnp.float16),
    "tolist": lambda a: a.tolist(),
    "tobytes": lambda a: a.tobytes(),
    "item": lambda a: a[1, 2].item(),
    "np.asarray": np.asarray,
    "np.array": lambda a: np.array(a, np.float64),
    "np.sin": np.sin,
    "np.mean": np.mean,
    "np.concatenate": lambda a: np.concatenate([a, a]),
    "np.stack": lambda a: np.stack([a, np.ones((2, 3))]),
    "np.testing": lambda a: np.testing.assert_array_equal(a, np.arange(6.0).reshape(2, 3)),
    "np.shape": lambda a: (np.shape(a), np.ndim(a), np.size(a)),
    "dlpack to NumPy": np.from_dlpack,
    "dlpack to JAX": jax.dlpack.from_dlpack,
    "dlpack device": lambda a: a.__dlpack_device__(),
    "pickle": lambda a: pickle.loads(pickle.dumps(a)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a tree": lambda a: copy.deepcopy({"a": a}),
    "repr": repr,
    "str": str,
    "format string": lambda a: f"{a}",
    "iteration": lambda a: [row.tolist() for row in a],
    "reversed": lambda a: [row.tolist() for row in reversed(a)],
    "unpacking": lambda a: operator.methodcaller("tolist")((lambda first, second: second)(*a)),
    "contains": lambda a: (2.0 in a.ravel(), 9.0 in a[0], _error(lambda: 2.0 in a)),
    "row": lambda a: a[1],
    "slice": lambda a: a[:, 1:],
    "mask": lambda a: a[a > 2],
    "fancy": lambda a: a[jnp.array([0, 1]), jnp.array([2, 0])],
    "at": lambda a: a.at[0, 1].add(5.0),
    "T": lambda a: (a.T, a.mT, a.real, a.imag),
    "methods": lambda a: [a.sum(), a.mean(0), a.max(), a.argmax(), a.reshape(3, 2), a.astype(int), a.ravel(), a.var()],
    "more methods": lambda a: [a.dot(a.T), a.clip(1, 2), a.transpose(), a.cumsum(), a.round(), a.take(1), a.any()],
    "operators": lambda a: [
        a + 1,
        1 - a,
        2 * a,
        a / 2,
        2 / (a + 1),
        a // 2,
        a % 2,
        a**2,
        2**a,
        -a,
        +a,
        abs(a),
        a @ a.T,
    ],
    "comparisons": lambda a: [a == a, a != 1, a < 2, a <= 2, a > 2, a >= 2],
    "NumPy operands": lambda a: [a + np.ones((2, 3)), np.ones((2, 3)) * a, np.float32(2) * a],
    "mixed operands": lambda a: [a * jnp.arange(3), jnp.ones((2, 3)) - a, a * True, a * 2j],
    "divmod": lambda a: divmod(a, 2.0),
    "tree": lambda a: jax.tree.map(lambda b: b * 2, {"a": [a, None]}),
    "leaves": lambda a: len(jax.tree.leaves([a, {"b": a}])),
    "result_type": lambda a: jnp.result_type(a, jnp.bfloat16),
    "isinstance of abc": lambda a: hasattr(a, "__jax_array__"),
    "finfo": lambda a: jnp.finfo(a.dtype).bits,
    "key of dict": lambda a: {id(a): 1}[id(a)],
    "priority": lambda a: a.__array_priority__,
}
OF_A_SCALAR = {
    "bool": bool,
    "float": float,
    "int": int,
    "complex": complex,
    "format spec": lambda a: f"{a:.3f}",
    "round": lambda a: round(a, 1),
    "if": lambda a: "big" if a > 1 else "small",
    "while": lambda a: [n for n in range(3) if n < a],
    "math": lambda a: __import__("math").sqrt(a),
    "print": lambda a: f"{float(a):3.1f} {a}",
    "max of Python": lambda a: max(a, jnp.array(1.0)),
    "sum of Python": lambda a: sum([a, a, 1.0]),
    "np.float32": np.float32,
    "index error": lambda a: _error(lambda: [1, 2, 3][a]),
    "len error": lambda a: _error(lambda: len(a)),
    "iteration error": lambda a: _error(lambda: list(a)),
    "hash error": lambda a: _error(lambda: hash(a)),
    "assignment error": lambda a: _error(lambda: operator.setitem(a, 0, 1.0)),
}


def _error(act) -> str:
    try:
        act()
    except Exception as error:
        return type(error).__name__
    raise AssertionError("no error")


def settled(outcome):
    """Returns an outcome in a form that can be compared."""
    if isinstance(outcome, jax.Array):
        return "array", str(outcome.dtype), outcome.shape, np.asarray(outcome).tolist(), outcome.devices()
    if isinstance(outcome, np.ndarray):
        return "numpy", str(outcome.dtype), outcome.tolist()
    if isinstance(outcome, (list, tuple)):
        return [settled(one) for one in outcome]
    if isinstance(outcome, dict):
        return {key: settled(one) for key, one in outcome.items()}
    return type(outcome), str(outcome)


def boxed(plain):
    with GradientTape() as tape:
        tape.watch(plain)
        box = plain * 1.0
    assert type(box) is Box
    return tape, box


@pytest.mark.parametrize("name", OF_A_MATRIX)
@pytest.mark.first(40)
def test_matrix_after_the_block(name):
    plain = jnp.arange(6.0).reshape(2, 3)
    _, box = boxed(plain)
    assert settled(OF_A_MATRIX[name](box)) == settled(OF_A_MATRIX[name](plain))


@pytest.mark.parametrize("name", OF_A_MATRIX)
@pytest.mark.first(40)
def test_matrix_in_the_block(name):
    plain = jnp.arange(6.0).reshape(2, 3)
    expected = settled(OF_A_MATRIX[name](plain))
    with GradientTape() as tape:
        tape.watch(plain)
        box = plain * 1.0
        warned = name == "compiled ahead of time"
        with pytest.warns(UserWarning, match="compiled ahead of time") if warned else contextlib.nullcontext():
            outcome = OF_A_MATRIX[name](box)
    assert settled(outcome) == expected


@pytest.mark.parametrize("name", OF_A_SCALAR)
def test_scalar_in_the_block_and_after_it(name):
    plain = jnp.array(2.5)
    expected = settled(OF_A_SCALAR[name](plain))
    with GradientTape() as tape:
        tape.watch(plain)
        box = plain * 1.0
        inside = OF_A_SCALAR[name](box)
    assert settled(inside) == expected
    assert settled(OF_A_SCALAR[name](box)) == expected


def test_box_in_functions_compiled_before_and_after():
    plain = jnp.arange(3.0)
    double = jax.jit(lambda a, b: a * b)
    double(plain, plain)
    tape, box = boxed(plain)
    for _ in range(3):
        np.testing.assert_array_equal(double(box, plain), double(plain, plain))
        np.testing.assert_array_equal(double(box, box), double(plain, plain))
    closed_over = jax.jit(lambda a: a * box)
    for k in range(3):
        np.testing.assert_array_equal(closed_over(float(k)), k * plain)
    assert tape.gradient(box, plain).tolist() == [1.0] * 3


def test_box_of_one_tape_is_an_array_to_the_next():
    plain = jnp.arange(3.0)
    _, box = boxed(plain)
    with GradientTape() as tape:
        tape.watch(box)
        y = jnp.sum(box * box + jax.jit(lambda a: a * box)(plain))
    assert tape.gradient(y, box).tolist() == [0.0, 3.0, 6.0]


def test_slow_path_tells_the_type_of_what_it_cannot_take():
    _, box = boxed(jnp.arange(3.0))
    with pytest.raises(TypeError, match="dot_general|incompatible|shapes"):
        jnp.dot(box, jnp.ones(4))


def scaled(x):
    return x * 2.0


ahead = jax.jit(scaled).lower(jnp.float32(1.0)).compile()


def test_an_executable_under_a_tape_is_warned_of_where_its_part_of_the_gradient_is_lost():
    v = mr.Variable(3.0)
    with GradientTape() as tape, pytest.warns(UserWarning, match="the gradient lacks its part") as caught:
        loss = ahead(v.read_value()) + v
    assert caught[0].filename == __file__
    assert float(tape.gradient(loss, v)) == 1.0


@pytest.mark.long
def test_an_executable_without_a_gradient_to_lose_is_not_warned_of():
    v = mr.Variable(3.0)
    with GradientTape() as tape:
        assert float(ahead(jnp.float32(2.0))) == 4.0
        assert float(ahead(jax.lax.stop_gradient(v.read_value()))) == 6.0
        box = v * 1.0
        with tape.stop_recording():
            assert float(ahead(box)) == 6.0
        loss = jax.jit(scaled)(v.read_value())
    assert float(ahead(box)) == 6.0
    assert float(tape.gradient(loss, v)) == 2.0
