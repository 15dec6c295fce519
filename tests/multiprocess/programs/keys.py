"""PRNG keys as arguments, captured arrays and variables: ``keys.py``."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr

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
print("RESULT", json.dumps(found), flush=True)
