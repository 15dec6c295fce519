"""TensorFlow: `tf.distribute.MirroredStrategy` over logical devices, GradientTape, `tf.function`, ResourceApplyAdam."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from spec import BETA_1, BETA_2, CHAIN, EPSILON, LEARNING_RATE, Workload, chain

from contenders.job import Job


class ops:
    relu = staticmethod(tf.nn.relu)
    look_up = staticmethod(tf.gather)
    cast = staticmethod(tf.cast)

    @staticmethod
    def dense(x: Any, w: Any, b: Any) -> Any:
        return (tf.tensordot(x, w, 1) if x.shape.rank > 2 else x @ w) + b

    @staticmethod
    def gelu(x: Any) -> Any:
        return tf.nn.gelu(x, approximate=True)

    @staticmethod
    def images(x: Any) -> Any:
        return x

    @staticmethod
    def conv(x: Any, w: Any, b: Any, stride: int) -> Any:
        return tf.nn.conv2d(x, w, stride, "SAME") + b

    @staticmethod
    def mean_of_pixels(x: Any) -> Any:
        return tf.reduce_mean(x, (1, 2))

    @staticmethod
    def norm(x: Any, g: Any, b: Any) -> Any:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5) * g + b

    @staticmethod
    def attention(qkv: Any, heads: int) -> Any:
        length, width = qkv.shape[-2], qkv.shape[-1] // 3
        q, k, v = (
            tf.transpose(tf.reshape(part, (-1, length, heads, width // heads)), (0, 2, 1, 3))
            for part in tf.split(qkv, 3, -1)
        )
        mask = (1.0 - tf.linalg.band_part(tf.ones((length, length)), -1, 0)) * -1e9
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / (width // heads) ** 0.5 + tf.cast(mask, qkv.dtype))
        return tf.reshape(tf.transpose(weights @ v, (0, 2, 1, 3)), (-1, length, width))

    @staticmethod
    def loss(logits: Any, y: Any) -> Any:
        logits = tf.cast(logits, tf.float32)
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def _strategy(devices: int) -> Any:
    if gpus := tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(min(devices, len(gpus)))])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])


def train(workload: Workload, devices: int) -> Job:
    """A training step; all gradients are reduced in one batch, each variable is updated on each device."""
    strategy = _strategy(devices)
    first = workload.parameters()
    with strategy.scope():
        params = {k: tf.Variable(p) for k, p in first.items()}
        slots = {k: (tf.Variable(tf.zeros(p.shape)), tf.Variable(tf.zeros(p.shape))) for k, p in first.items()}
        count = tf.Variable(0.0)

    def update(var: Any, g: Any, m: Any, v: Any, t: Any) -> None:
        tf.raw_ops.ResourceApplyAdam(
            var=var.handle, m=m.handle, v=v.handle, beta1_power=BETA_1**t, beta2_power=BETA_2**t,
            lr=LEARNING_RATE, beta1=BETA_1, beta2=BETA_2, epsilon=EPSILON, grad=g,
        )  # fmt: skip

    def merged(strategy: Any, grads: Any) -> None:
        extended, names = strategy.extended, list(params)
        with tf.control_dependencies([extended.update(count, lambda v: v.assign_add(1.0, read_value=False))]):
            t = count.read_value()
        pairs = [(g, params[k]) for k, g in zip(names, grads, strict=True)]
        for k, g in zip(names, extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs), strict=True):
            extended.update(params[k], update, args=(g, *slots[k], t), group=False)

    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = ops.loss(workload.network.logits(ops, params, x), y) / workload.terms
        grads = [tf.convert_to_tensor(g) for g in tape.gradient(loss, list(params.values()))]
        tf.distribute.get_replica_context().merge_call(merged, args=(grads,))
        return loss

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=(x, y)), axis=None)

    def scatter(array: Any) -> Any:
        parts = tf.split(tf.constant(array), devices)
        return strategy.experimental_distribute_values_from_function(lambda c: parts[c.replica_id_in_sync_group])

    x, y = map(scatter, workload.examples())
    return Job(lambda: float(step(x, y).numpy()), lambda: step(x, y), lambda loss: loss.numpy())


def eager_tape(workload: Workload, devices: int) -> Job:
    """The eager chain."""
    x, w, b = tf.Variable(0.05), tf.constant(1.003), tf.constant(1e-4)

    def call() -> float:
        with tf.GradientTape() as tape:
            y = chain(x, w, b, tf.sin, tf.tanh)
        return float(tape.gradient(y, x).numpy())

    return Job(call, steps=CHAIN)


def all_reduce(workload: Workload, devices: int, mib: int) -> Job:
    """`all_reduce` of one buffer in replica context."""
    strategy = _strategy(devices)
    x = strategy.experimental_distribute_values_from_function(lambda c: tf.zeros(mib << 18))

    @tf.function
    def reduce(v: Any) -> Any:
        return strategy.run(
            lambda u: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, u), args=(v,)
        )

    return Job(lambda: [part[:1].numpy() for part in strategy.experimental_local_results(reduce(x))])
