"""Models that come and go leave no memory behind that hand-written JAX would not leave."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

_COMMON = """
import ctypes, gc, json, os, sys
import jax, jax.numpy as jnp, numpy as np, optax

COUNT, SIZES = int(sys.argv[1]), (32, 64, 64, 10)
x, y = np.ones((16, SIZES[0]), np.float32), np.zeros(16, np.int32)

def parameters(seed):
    rng = np.random.default_rng(seed)
    return [(jnp.asarray(rng.normal(size=(i, o)).astype("f") / i**0.5), jnp.zeros(o)) for i, o in zip(SIZES, SIZES[1:])]

def loss(layers, x, y):
    for w, b in layers[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = layers[-1]
    return optax.softmax_cross_entropy_with_integer_labels(x @ w + b, y)

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is freed would stay with glibc: how much differs from run to run
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
"""

_HAND_WRITTEN = """
def train(seed):
    params, optimizer = parameters(seed), optax.adam(1e-3)
    state = optimizer.init(params)
    @jax.jit
    def step(params, state, x, y):
        grads = jax.grad(lambda p: loss(p, x, y).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state
    for _ in range(2):
        params, state = step(params, state, x, y)
    jax.block_until_ready(params)
"""

_MIRRORED = """
import mirrored as mr

def train(seed):
    strategy = mr.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        layers = [(mr.Variable(w), mr.Variable(b)) for w, b in parameters(seed)]
        optimizer = mr.optimizers.Adam(1e-3)  # its slots are created inside the trace
    variables = [v for pair in layers for v in pair]
    def replica_step(x, y):
        with mr.GradientTape() as tape:
            value = mr.losses.average_loss(loss([(w.value(), b.value()) for w, b in layers], x, y))
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))
    step = mr.function(lambda x, y: strategy.run(replica_step, args=(x, y)))
    for _ in range(2):
        step(x, y)
    jax.block_until_ready(variables[0].value())
"""

_RUN = """
for seed in range(10):  # caches that fill once are not what is measured
    train(seed)
before = resident()
for seed in range(COUNT):
    train(seed)
print(json.dumps({"start": before, "end": resident()}))
"""


def memory_mib(program: str, count: int, timeout: float) -> dict[str, float]:
    code = textwrap.dedent(_COMMON) + program + _RUN
    done = subprocess.run(
        [sys.executable, "-c", code, str(count)], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_300_models_take_the_memory_of_hand_written_jax():
    hand_written, mirrored = (memory_mib(program, 300, 400) for program in (_HAND_WRITTEN, _MIRRORED))
    grown = {name: one["end"] - one["start"] for name, one in (("hand-written", hand_written), ("mirrored", mirrored))}
    print(f"after 300 models: {hand_written['end']:.0f} and {mirrored['end']:.0f} MiB; grown by {grown}")
    assert mirrored["end"] <= 1.1 * hand_written["end"], (hand_written, mirrored)
