"""Per-replica and mirrored values: their components, their outline, and what they refuse."""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored import tf
from mirrored.errors import ArgumentError, StructureError, ValuesError
from mirrored.topology.device_assignment import make_device_assignment
from mirrored.values import structures
from mirrored.values.stacking import stack_components

LAYOUTS = {
    "one device": (["CPU:0"], 4),
    "two devices": (["CPU:0", "CPU:1"], 4),
    "four devices": (["CPU:0", "CPU:1", "CPU:2", "CPU:3"], 4),
}


@pytest.fixture(params=LAYOUTS, ids=list(LAYOUTS))
def layout(request):
    return make_device_assignment(*LAYOUTS[request.param])


def components():
    return [np.full((2, 3), float(i), np.float32) for i in range(4)]


def test_components_and_stacked_form_are_the_same_value(layout):
    value = mr.PerReplica(components(), layout)
    assert not value.is_stacked
    stacked = value.stacked(layout)
    assert not value.is_stacked, "tapes know the components"
    assert value.stacked(layout) is value.kept_stack() is stacked
    assert (stacked.shape, stacked.sharding) == ((4, 2, 3), layout.sharded)
    again = mr.PerReplica.from_stacked(stacked, layout)
    assert (len(again), again.component_shape) == (4, (2, 3))
    for replica, component in enumerate(again.values):
        assert component.tolist() == components()[replica].tolist()
        assert component.devices() == {layout.device_of(replica)}


def test_stacking_moves_components_to_their_devices(layout):
    on_last = [jax.device_put(one, jax.devices()[-1]) for one in components()]
    stacked = stack_components(on_last, layout)
    np.testing.assert_array_equal(stacked, np.stack(components()))


def test_arrays_in_the_hosts_memory_are_stacked_without_compiling(layout, caplog):
    arrays = [
        jax.device_put(np.full((3, 5, 7), replica, np.int16), layout.device_of(replica))
        for replica in range(layout.num_replicas)
    ]
    with jax.log_compiles():
        stacked = stack_components(arrays, layout)
    assert [record.getMessage() for record in caplog.records if "ompil" in record.getMessage()] == []
    assert (stacked.dtype, stacked.sharding) == (np.dtype(np.int16), layout.sharded)
    assert stacked[:, 0, 0, 0].tolist() == list(range(layout.num_replicas))


def test_stacking_keys_of_random_numbers_and_plain_numbers(layout):
    each = jax.random.split(jax.random.key(0), 4)
    keys = stack_components(list(each), layout)
    assert jax.dtypes.issubdtype(keys.dtype, jax.dtypes.prng_key)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(each))
    numbers = stack_components([jnp.asarray(float(i)) for i in range(4)], layout)
    assert (numbers.tolist(), numbers.dtype) == ([0.0, 1.0, 2.0, 3.0], np.float32)


def test_stacking_refuses_different_shapes(layout):
    value = mr.PerReplica([np.zeros(i) for i in range(4)])
    assert value.component_shape is None
    with pytest.raises(ValuesError, match=r"components of shapes \(0,\), \(1,\), \(2,\), \(3,\)"):
        value.stacked(layout)


def test_outline():
    assert repr(mr.PerReplica((1.0, "a"))) == "PerReplica:{\n  0: 1.0,\n  1: 'a'\n}"
    assert repr(mr.Mirrored(2, num_replicas=2)) == "Mirrored:{\n  0: 2,\n  1: 2\n}"


MISUSES = {
    "+": lambda v: v + 1,
    "reflected +": lambda v: 1 + v,
    "-": lambda v: v - v,
    "*": lambda v: 2.0 * v,
    "/": lambda v: v / 2,
    "//": lambda v: v // 2,
    "**": lambda v: v**2,
    "@": lambda v: v @ v,
    "neg": operator.neg,
    "abs": abs,
    "<": lambda v: v < 1,
    "float": float,
    "int": int,
    "bool": bool,
    "index": operator.index,
    "iter": list,
    "getitem": lambda v: v[0],
    "in": lambda v: 1 in v,
    "round": round,
    "np.asarray": np.asarray,
    "np.add": lambda v: np.add(v, 1),
    "np.add reversed": lambda v: np.add(np.ones(2), v),
    "np.sum": np.sum,
    "np.concatenate": lambda v: np.concatenate([v, v]),
    "jnp.add": lambda v: jnp.add(v, 1),
    "jnp.exp": jnp.exp,
    "jnp.stack": lambda v: jnp.stack([v, v]),
    "jnp.arange": jnp.arange,
    "jnp.power": lambda v: jnp.power(2.0, v),
    "jnp.repeat": lambda v: jnp.repeat(jnp.ones(2), v),
    "jnp.take": lambda v: jnp.take(jnp.arange(3), v),
    "jnp.asarray": jnp.asarray,
    "array +": lambda v: jnp.ones(2) + v,
    "array index": lambda v: jnp.arange(3)[v],
    "random.permutation": lambda v: jax.random.permutation(jax.random.key(0), v),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_use_as_an_array_is_refused_with_the_alternatives(misuse):
    value = mr.PerReplica((jnp.float32(1.0), jnp.float32(2.0)))
    with pytest.raises(ValuesError, match=r"a value with 2 components[\s\S]*strategy\.reduce[\s\S]*value\.values"):
        misuse(value)


def test_primitives_and_shapes_of_jax_refuse_it_with_its_name():
    value = mr.PerReplica((jnp.int32(1), jnp.int32(2)))
    with pytest.raises(TypeError, match="PerReplica") as caught:
        jax.lax.add(value, value)
    assert isinstance(caught.value.__cause__, ValuesError)
    for use in (jnp.eye, lambda v: jnp.ones((v, 2)), lambda v: jnp.ones(2).reshape(v)):
        with pytest.raises(TypeError, match="PerReplica"):
            use(value)


def test_its_class_is_none_of_arrays():
    value = mr.PerReplica((1.0, 2.0))
    assert not hasattr(mr.PerReplica, "__jax_array__")
    assert not hasattr(value, "dtype")
    with pytest.raises(
        AttributeError, match="'PerReplica' object has no attribute 'astype': a per-rep.*strategy.reduce"
    ):
        value.astype("float32")


def test_values_are_pytrees(layout):
    for value in (mr.PerReplica(components()), mr.PerReplica.from_stacked(jnp.ones((4, 2)), layout)):
        doubled = jax.tree.map(lambda x: x * 2, {"v": value})["v"]
        assert isinstance(doubled, mr.PerReplica)
        assert len(doubled) == 4
        for one, two in zip(value.values, doubled.values, strict=True):
            np.testing.assert_array_equal(2 * np.asarray(one), two)
    mirrored = jax.tree.map(lambda x: x * 2, mr.Mirrored(jnp.float32(2.0), 3))
    assert (float(mirrored.value), mirrored.num_replicas) == (4.0, 3)


def test_the_origin_survives_flatten_and_does_not_distinguish_structures(layout):
    stacked, of_components = mr.PerReplica.from_stacked(jnp.ones((4, 2)), layout), mr.PerReplica(components())
    for value in (stacked, of_components):
        even = jax.tree.structure(value)
        assert not jax.tree.map(jnp.negative, value).of_uneven_batch
        value.of_uneven_batch = True
        assert jax.tree.map(jnp.negative, value).of_uneven_batch
        assert jax.tree.unflatten(jax.tree.structure(value), jax.tree.leaves(value)).of_uneven_batch
        assert (jax.tree.structure(value), hash(jax.tree.structure(value))) == (even, hash(even))


def test_they_pass_through_jit(layout):
    value = mr.PerReplica.from_stacked(jax.device_put(jnp.ones((4, 2)), layout.sharded), layout)
    result = jax.jit(lambda v: v)(value)
    assert isinstance(result, mr.PerReplica)
    assert result.component_shape == (2,)


# Structures


@pytest.mark.parametrize("split", [("a", "b"), ("b",), ("b", "a"), (None, "a")])
def test_components_of_an_array_of_any_sharding(split):
    """JAX's functions on pytrees may move the stacked array; rows were repeated or lost."""
    layout = make_device_assignment(["CPU:0", "CPU:1", "CPU:2", "CPU:3"], 4)
    value = mr.PerReplica.from_stacked(jax.device_put(jnp.arange(16.0).reshape(4, 4), layout.sharded), layout)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    spec = jax.sharding.PartitionSpec(*split if None in split else [split])
    moved = jax.device_put(value, jax.sharding.NamedSharding(mesh, spec))
    found = np.stack([np.asarray(one) for one in moved.values])
    np.testing.assert_array_equal(found, np.arange(16.0).reshape(4, 4))


def test_select_and_regroup_are_inverse():
    structure = {"a": mr.PerReplica((1, 2)), "b": [mr.Mirrored(5, 2), None], "c": "same"}
    seen = [structures.select(structure, replica, lambda value, k: value.values[k]) for replica in range(2)]
    assert seen == [{"a": 1, "b": [5, None], "c": "same"}, {"a": 2, "b": [5, None], "c": "same"}]
    grouped = structures.regroup(seen, "test", mr.PerReplica)
    assert grouped["a"].values == (1, 2)
    assert grouped["b"][1] is None
    assert grouped["c"] == "same"


def test_variables_are_leaves():
    v = mr.Variable([1.0, 2.0])
    leaves, treedef = structures.flatten({"v": v, "n": None})
    assert len(leaves) == 2
    assert treedef.unflatten(leaves)["v"] is v
    assert structures.regroup([v, v], "test", mr.PerReplica) is v


@pytest.mark.parametrize("other", [{"b": 1}, [1], None, {"a": (1,)}, {"a": 1, "b": 2}], ids=str)
def test_structures_that_differ_are_refused(other):
    with pytest.raises(StructureError, match="replica 0 returned [\\s\\S]* and replica 1 returned"):
        structures.regroup([{"a": 1}, other], "test", mr.PerReplica)


def test_a_mirrored_value_has_a_numpy_array():
    two = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    total = two.extended.reduce_to("SUM", two.run(lambda: jnp.ones(2)), destinations=two.extended.worker_devices)
    assert isinstance(total.numpy(), np.ndarray)
    assert total.numpy().tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "kind", ["constructor", "on devices", "mirrored", "broadcast_to", "broadcast_to of a list", "broadcast"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "<U4"])
def test_later_writes_to_numpy_arrays_do_not_change_values(kind, dtype):
    """The components were the caller's arrays, which it refilled for the next step."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    given = np.zeros(64, dtype)
    value = {
        "constructor": lambda: mr.PerReplica([given, given]),
        "on devices": lambda: mr.PerReplica([given, given], strategy.device_assignment),
        "mirrored": lambda: mr.Mirrored(given, 2),
        "broadcast_to": lambda: strategy.extended.broadcast_to(given, None),
        "broadcast_to of a list": lambda: strategy.extended.broadcast_to([given], None),
        "broadcast": lambda: tf.distribute.NcclAllReduce().broadcast(given, mr.PerReplica([1, 2])),
    }[kind]()
    given[:] = 7
    components = [one[0] if kind.endswith("list") else one for one in value.values]
    assert [np.asarray(one).tolist() for one in components] == [np.zeros(64, dtype).tolist()] * 2
    with pytest.raises(ValueError, match="read-only"):
        components[0][:] = 7


# Only a compiled run makes arrays of lists.
FORMS = [("array", False), ("scalar", False), ("array", True), ("scalar", True), ("list", True)]


@pytest.mark.parametrize(("form", "compiled"), FORMS)
@pytest.mark.parametrize("kind", ["per replica", "broadcast_to", "mirrored", "closure"])
def test_integers_of_64_bits_do_not_wrap_around(kind, form, compiled):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    given = {"array": lambda x: x, "scalar": lambda x: x[0], "list": lambda x: [x]}[form](np.asarray([2**40 + 5]))

    def use():
        value = {
            "per replica": lambda: mr.PerReplica([given, given]),
            "broadcast_to": lambda: strategy.extended.broadcast_to(given, None),
            "mirrored": lambda: mr.Mirrored(given, 2),
            "closure": lambda: None,
        }[kind]()
        if not compiled:
            return strategy.reduce("SUM", value if kind != "closure" else given, axis=None)
        run = lambda x: strategy.run(lambda x: given if kind == "closure" else x, args=(x,))  # noqa: E731
        return mr.function(run)(value)

    with pytest.raises(ArgumentError, match="do not fit into int32"):
        use()


@pytest.mark.parametrize("devices", [1, 2])
def test_components_that_a_branch_or_a_replica_reads_first_can_be_read_elsewhere(devices):
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=2)

    @mr.function
    def step(x):
        doubled = strategy.run(lambda: x * 2.0)
        in_branch = jax.lax.cond(x > 0, lambda: doubled.values[0], lambda: doubled.values[1])
        tripled = strategy.run(lambda: x * 3.0)
        in_run = strategy.run(lambda: tripled.values[1] * 1.0)
        return in_branch, doubled.values[1], strategy.experimental_local_results(in_run)[0], tripled.values[0]

    assert [float(one) for one in step(jnp.array(1.0))] == [2.0, 2.0, 3.0, 3.0]


def test_a_plain_jit_reads_the_components_of_a_value_that_was_moved():
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    value = strategy.run(lambda: jnp.float32(mr.get_replica_context().replica_id_in_sync_group))
    where = strategy.device_assignment
    stacked = mr.PerReplica.from_stacked(jax.device_put(jnp.stack([*map(float, value.values)]), where.sharded), where)
    moved = jax.device_put(stacked, jax.devices()[0])
    assert [float(one) for one in jax.jit(lambda v: list(v.values))(moved)] == [0.0, 1.0, 2.0, 3.0]


def test_a_replica_of_a_compiled_run_reads_one_component_of_an_outer_value_twice():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    @mr.function
    def step(x):
        made = strategy.run(lambda: x * 1.0)

        def replica():
            with mr.GradientTape() as tape:
                tape.watch(made.values[1])
                y = made.values[1] ** 2
            return tape.gradient(y, made.values[1])

        return strategy.experimental_local_results(strategy.run(replica))

    assert [float(one) for one in step(jnp.float32(3.0))] == [6.0, 6.0]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("function", [lambda x: x.mean(0), lambda x: x[0], lambda x: x.mean(), lambda x: x[:1]])
@pytest.mark.parametrize("use", ["values", "run", "reduce", "reduce axis", "gather"])
def test_a_tree_map_that_changes_the_rows_of_a_stacked_value_is_refused(use, function, compiled):
    """`jax.tree.map` applies a function to the stacked array, not to each component."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    (batch,) = strategy.experimental_distribute_dataset([np.arange(24, dtype=np.float32).reshape(8, 3)])
    assert batch.is_stacked

    def step(batch):
        changed = jax.tree.map(function, batch)
        if use == "run":
            return strategy.run(lambda x: x, args=(changed,))
        if use == "gather":
            return strategy.gather(changed, axis=0)
        return (
            changed.values if use == "values" else strategy.reduce("SUM", changed, axis=None if use == "reduce" else 0)
        )

    with pytest.raises(ValuesError, match=r"2 replicas[\s\S]*strategy\.run\("):
        (mr.function(step) if compiled else step)(batch)
    assert float(sum(jax.tree.leaves(jax.tree.map(jnp.sum, batch)))) == 276.0
    assert [one.shape for one in jax.tree.map(lambda x: 2 * x, batch).values] == [(4, 3)] * 2


@pytest.mark.parametrize(
    "function", [lambda x: 0.5, lambda x: x.shape, lambda x: x.dtype], ids=["float", "tuple", "dtype"]
)
def test_a_tree_map_that_returns_no_array_is_refused_with_the_remedy(function):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    (batch,) = strategy.experimental_distribute_dataset([np.arange(24, dtype=np.float32).reshape(8, 3)])
    changed = jax.tree.map(function, batch)
    for use in (lambda: changed.values, lambda: strategy.reduce("SUM", changed, axis=None), lambda: str(changed)):
        with pytest.raises(ValuesError, match=r"2 replicas[\s\S]*strategy\.run\("):
            use()
