# ruff: noqa
"""Distributed datasets and input contexts."""

from oracle import case

BOTH = ("eager", "function")


def rng(t, n):
    return t.tf.data.Dataset.range(n)


def dist(t, ds, *a):
    return t.strategy.experimental_distribute_dataset(ds, *a)


@case("input", replicas=(2, 4), params=[2, 5, 7, 9])
def rebatching_eleven_elements(t):
    return t.show(dist(t, rng(t, 11).batch(t.p)))


@case("input", replicas=1)
def one_replica_gets_plain_tensors(t):
    return [t.out(x) for x in dist(t, rng(t, 5).batch(2))]


@case("input", replicas=(2, 4))
def structured_elements(t):
    ds = t.tf.data.Dataset.from_tensor_slices(({"a": [1, 2, 3, 4]}, [[5.0], [6.0], [7.0], [8.0]])).batch(4)
    return [t.out(x) for x in dist(t, ds)]


@case("input")
def zipped_and_enumerated(t):
    D = t.tf.data.Dataset
    a = D.zip((D.range(4), D.range(10, 14))).batch(4)
    b = D.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).enumerate().batch(2)
    return [[t.out(x) for x in dist(t, a)], [t.out(x) for x in dist(t, b)]]


@case("input", replicas=(2, 4))
def repeated_iteration(t):
    d = dist(t, rng(t, 8).batch(4))
    return [t.show(d), t.show(d)]


@case("input")
def end_of_iteration(t):
    it = iter(dist(t, rng(t, 4).batch(2)))
    out = [t.local(next(it)), t.local(next(it))]
    try:
        next(it)
        out.append("more")
    except StopIteration:
        out.append("stopped")
    return out


@case("input")
def get_next_and_its_end(t):
    it = iter(dist(t, rng(t, 4).batch(2)))
    return [t.local(it.get_next()), t.local(it.get_next()), t.raises(lambda: it.get_next())]


@case("input", replicas=(1, 2))
def optional_next(t):
    it = iter(dist(t, rng(t, 4).batch(4)))
    a, b = it.get_next_as_optional(), it.get_next_as_optional()
    return [t.out(a.has_value()), t.local(a.get_value()), t.out(b.has_value())]


@case("input", isolate=True)
def unbatched_dataset(t):
    return t.raises(lambda: t.show(dist(t, rng(t, 4))))


@case("input", replicas=(2, 4), mode=BOTH)
def squares_of_batches(t):
    ds = t.tf.data.Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).batch(4)
    step = t.fn(lambda x: t.strategy.run(lambda a: a * a, args=(x,)))
    return [t.local(step(x)) for x in dist(t, ds)]


@case("input", replicas=(1, 2, 4))
def loop_in_a_compiled_function(t):
    tf, s = t.tf, t.strategy
    d = dist(t, tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).batch(4))

    @tf.function
    def epoch(d):
        total = 0.0
        for x in d:
            total += s.reduce("SUM", s.run(lambda a: a * a, args=(x,)), axis=0)
        return total

    return t.out(epoch(d))


@case("input", replicas=(2, 4))
def loop_outside_with_compiled_step(t):
    tf, s = t.tf, t.strategy
    d = dist(t, rng(t, 9).batch(4))
    step = tf.function(lambda x: s.reduce("SUM", s.run(lambda a: tf.cast(a, tf.float32) * 2.0, args=(x,)), axis=0))
    return [t.out(step(x)) for x in d]


@case("input")
def mean_over_partial_batches(t):
    ds = t.tf.data.Dataset.from_tensor_slices([5.0, 6.0, 7.0]).batch(4)
    out = []
    for x in dist(t, ds):
        m = t.strategy.run(t.tf.reduce_mean, args=(x,))
        out.append([t.local(x), t.out(t.strategy.reduce("MEAN", x, axis=0)), t.local(m)])
    return out


@case("input")
def empty_batch_on_one_replica(t):
    ds = t.tf.data.Dataset.from_tensor_slices([[10.0, 1.0]]).batch(2)
    out = []
    for x in dist(t, ds):
        r = t.strategy.run(lambda a: (t.tf.shape(a)[0], t.tf.reduce_sum(a), a * 2.0), args=(x,))
        out.append(t.local(r))
    return out


@case("input", params=["OFF", "AUTO", "DATA", "FILE"])
def auto_shard_policies(t):
    o = t.tf.data.Options()
    o.experimental_distribute.auto_shard_policy = getattr(t.tf.data.experimental.AutoShardPolicy, t.p)
    if t.p == "FILE":  # accepted; there are no files to shard on one worker
        return o.experimental_distribute.auto_shard_policy == t.tf.data.experimental.AutoShardPolicy.FILE
    return t.show(dist(t, rng(t, 8).batch(4).with_options(o)))


@case("input", isolate=True)
def per_replica_mode(t):
    D = t.tf.distribute
    seen = []

    def fn(c):
        seen.append([c.num_input_pipelines, c.input_pipeline_id, c.num_replicas_in_sync])
        return rng(t, 4).map(lambda x: x * (c.input_pipeline_id + 1))

    o = D.InputOptions(
        experimental_fetch_to_device=True, experimental_replication_mode=D.InputReplicationMode.PER_REPLICA
    )
    d = t.strategy.distribute_datasets_from_function(fn, o)
    return [t.show(d), seen]


@case("input", replicas=(2, 4))
def from_function_per_replica_batch_size(t):
    def fn(c):
        d = t.tf.data.Dataset.from_tensors([[1.0, 2.0]]).repeat(8).batch(c.get_per_replica_batch_size(8))
        return d.shard(c.num_input_pipelines, c.input_pipeline_id)

    return t.show(t.strategy.distribute_datasets_from_function(fn))


@case("input")
def from_function_structured(t):
    fn = lambda c: t.tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0, 3.0, 4.0], "y": [1, 2, 3, 4]}).batch(2)
    return [t.out(x) for x in t.strategy.distribute_datasets_from_function(fn)]


@case("input")
def from_function_restarts(t):
    d = t.strategy.distribute_datasets_from_function(lambda c: rng(t, 4))
    return [t.show(d), t.show(d)]


@case("input", replicas=(2, 4))
def epochs_of_weighted_sums(t):
    tf, s = t.tf, t.strategy
    d = dist(t, tf.data.Dataset.from_tensor_slices(t.np.arange(10, dtype="float32")).batch(4))
    out = []
    for _ in range(2):
        total = count = 0.0
        for x in d:
            a, b = s.run(lambda v: (tf.reduce_sum(v), tf.cast(tf.size(v), tf.float32)), args=(x,))
            total += s.reduce("SUM", a, axis=None)
            count += s.reduce("SUM", b, axis=None)
        out.append(t.out(total / count))
    return out


@case("input", replicas=(2, 4))
def dictionary_batches_as_run_arguments(t):
    tf, s = t.tf, t.strategy
    x = t.np.arange(8, dtype="float32").reshape(8, 1)
    d = dist(t, tf.data.Dataset.from_tensor_slices({"x": x, "y": 2.0 * x + 1.0}).batch(8))
    f = lambda b: tf.reduce_mean(tf.square(b["y"] - 3.0 * b["x"]))
    return [t.local(s.run(f, args=(b,))) for b in d]


@case("input", replicas=(2, 4))
def gathered_again(t):
    d = dist(t, rng(t, 10).batch(5))
    return [t.out(t.strategy.gather(x, axis=0)) for x in d]


@case("input")
def distributed_in_scope(t):
    with t.strategy.scope():
        d = dist(t, rng(t, 4).batch(4))
        return t.show(d)


# --- tf.data itself -------------------------------------------------------------


@case("data", replicas=0)
def basic_pipeline(t):
    D = t.tf.data.Dataset
    lists = lambda d: [t.out(x) for x in d]
    return [
        lists(D.range(3)),
        lists(D.range(2, 8, 3)),
        lists(D.from_tensor_slices([[1, 2], [3, 4]])),
        lists(D.from_tensors([1.0, 2.0]).repeat(2)),
        lists(D.range(5).batch(2)),
        lists(D.range(5).batch(2, drop_remainder=True)),
    ]


@case("data", replicas=0)
def element_transformations(t):
    D = t.tf.data.Dataset
    lists = lambda d: [t.out(x) for x in d]
    return [
        lists(D.range(4).map(lambda x: x * x)),
        lists(D.range(6).filter(lambda x: x > 3)),
        lists(D.range(6).take(2)),
        lists(D.range(6).skip(4)),
        lists(D.range(2).concatenate(D.range(5, 7))),
        lists(D.range(7).shard(3, 1)),
        lists(D.zip((D.range(2), D.range(3, 5)))),
        lists(D.range(5, 7).enumerate()),
        lists(D.range(4).batch(2).unbatch()),
    ]


@case("data", replicas=0)
def numpy_iterator_and_cardinality(t):
    d = t.tf.data.Dataset.range(5).batch(2)
    return [[x.tolist() for x in d.as_numpy_iterator()], int(d.cardinality().numpy()), len(d)]


@case("data", replicas=0)
def reduce_over_a_dataset(t):
    tf = t.tf
    d = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0])
    return t.out(d.reduce(tf.constant(0.0), lambda a, x: a * 2.0 + x))
