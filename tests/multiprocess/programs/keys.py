"""PRNG keys as arguments, captured arrays and variables, and in checkpoints: ``keys.py FOLDER``."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import mirrored as mr
from mirrored.checkpoint import Checkpoint

strategy = mr.MultiWorkerMirroredStrategy()
key = jax.random.key(3)
found = {}


def draw(key: jax.Array) -> jax.Array:
    replica = mr.get_replica_context().replica_id_in_sync_group
    return jax.random.normal(jax.random.fold_in(key, replica), (1,))


def gathered(key: jax.Array) -> jax.Array:
    return strategy.gather(strategy.run(draw, args=(key,)), axis=0)


found["expected"] = [float(jax.random.normal(jax.random.fold_in(key, i), (1,))[0]) for i in range(4)]
found["argument"] = np.asarray(mr.function(gathered)(key)).tolist()
found["eager argument"] = np.asarray(gathered(key)).tolist()
found["captured"] = np.asarray(mr.function(lambda: gathered(key))()).tolist()
with strategy.scope():
    variable = mr.Variable(key, name="key")


def draw_from_variable() -> jax.Array:
    return draw(jnp.asarray(variable))


found["variable"] = np.asarray(
    mr.function(lambda: strategy.gather(strategy.run(draw_from_variable), axis=0))()
).tolist()
variable.assign(jax.random.key(4))
variable.assign(key)
found["aggregate"] = np.asarray(strategy.gather(strategy.run(draw_from_variable), axis=0)).tolist()

with strategy.scope():
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    components = mr.Variable(
        key, synchronization=mr.VariableSynchronization.ON_READ, aggregation=mr.VariableAggregation.NONE
    )


@mr.function
def rotate() -> None:
    def rotate_one() -> None:
        replica = mr.get_replica_context().replica_id_in_sync_group
        components.assign(jax.random.fold_in(components.read_value(), replica + 1))

    strategy.run(rotate_one)


def data() -> list[object]:
    parts = [dropout.rngs.key[...], variable.read_value(), *(one.read_value() for one in components.values)]
    return [jax.random.key_data(one).tolist() for one in parts]


rotate()
checkpoint = Checkpoint(dropout=dropout, variable=variable, components=components)
path, saved = checkpoint.write(f"{sys.argv[1]}/keys"), data()
variable.assign(jax.random.key(5))
dropout.rngs.key[...] = jax.random.key(6)
rotate()
changed = data()
checkpoint.restore(path).assert_consumed()
found["restored"] = [data() == saved, changed != saved]
print("RESULT", json.dumps(found), flush=True)
