# ruff: noqa
"""The examples of the public tf.distribute.MirroredStrategy page (r2.4).

"GPU:0", "GPU:1" are replaced by `t.devices`.  The result printed on the page is
given in each docstring.
"""

from oracle import case


def strategy(t):
    return t.tf.distribute.MirroredStrategy(t.devices)


def pieces(t, text):
    """The parts of a container's text that do not depend on how tensors print."""
    lines = text.split("\n")
    return [lines[0], [l[:5] for l in lines[1:-1]], lines[-1]]


@case("seed_docs")
def class_variable_in_scope(t):
    """MirroredVariable:{ 0: <tf.Variable ... numpy=1.0>, 1: <tf.Variable ... numpy=1.0> }"""
    tf = t.tf
    strategy_ = strategy(t)
    with strategy_.scope():
        x = tf.Variable(1.0)
    return [t.out(x), pieces(t, repr(x))]


@case("seed_docs")
def class_variable_in_function(t):
    """MirroredVariable:{ 0: <tf.Variable ... numpy=1.0>, 1: <tf.Variable ... numpy=1.0> }"""
    tf = t.tf
    x = []

    @tf.function
    def create_variable():
        if not x:
            x.append(tf.Variable(1.0))
        return x[0]

    strategy_ = strategy(t)
    with strategy_.scope():
        _ = create_variable()
    return [t.out(x[0]), pieces(t, repr(x[0]))]


@case("seed_docs")
def class_distributed_epoch(t):
    """The outline of a training loop, with x * 2 as the replica function: 0 + 2 + ... + 14 = 56."""
    tf = t.tf
    my_strategy = t.strategy
    dataset = tf.data.Dataset.range(8).batch(4)
    with my_strategy.scope():

        @tf.function
        def distribute_train_epoch(dataset):
            def replica_fn(input):
                return tf.reduce_sum(input * 2)

            total_result = tf.constant(0, dtype=tf.int64)
            for x in dataset:
                per_replica_result = my_strategy.run(replica_fn, args=(x,))
                total_result += my_strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_result, axis=None)
            return total_result

        dist_dataset = my_strategy.experimental_distribute_dataset(dataset)
        out = []
        for _ in range(2):
            out.append(t.out(distribute_train_epoch(dist_dataset)))
    return out


@case("seed_docs")
def scope_variables(t):
    """MirroredVariable:{0: 1.0, 1: 1.0} in scope, <tf.Variable ... numpy=1.0> outside."""
    tf = t.tf
    strategy_ = strategy(t)
    with strategy_.scope():
        mirrored_variable = tf.Variable(1.0)
    regular_variable = tf.Variable(1.0)
    return [t.out(mirrored_variable), t.out(regular_variable)]


@case("seed_docs")
def experimental_distribute_dataset(t):
    """[PerReplica:{0: [0], 1: [2]}, PerReplica:{0: [4], 1: [6]}]"""
    tf, strategy_ = t.tf, t.strategy
    global_batch_size = 2
    dataset = tf.data.Dataset.range(4).batch(global_batch_size)
    dist_dataset = strategy_.experimental_distribute_dataset(dataset)

    @tf.function
    def replica_fn(input):
        return input * 2

    result = []
    for x in dist_dataset:
        result.append(strategy_.run(replica_fn, args=(x,)))
    return [[t.out(r) for r in result], pieces(t, repr(result[0]))]


@case("seed_docs")
def values_from_function_constant(t):
    """(1.0, 1.0)"""
    tf, strategy_ = t.tf, strategy(t)

    def value_fn(ctx):
        return tf.constant(1.0)

    distributed_values = strategy_.experimental_distribute_values_from_function(value_fn)
    return t.out(strategy_.experimental_local_results(distributed_values))


@case("seed_docs")
def values_from_function_array(t):
    """(3.0, 2.0)"""
    strategy_ = strategy(t)
    array_value = t.np.array([3.0, 2.0, 1.0])

    def value_fn(ctx):
        return array_value[ctx.replica_id_in_sync_group]

    distributed_values = strategy_.experimental_distribute_values_from_function(value_fn)
    return t.out(strategy_.experimental_local_results(distributed_values))


@case("seed_docs")
def values_from_function_num_replicas(t):
    """(2, 2)"""
    strategy_ = strategy(t)

    def value_fn(ctx):
        return ctx.num_replicas_in_sync

    distributed_values = strategy_.experimental_distribute_values_from_function(value_fn)
    return t.out(strategy_.experimental_local_results(distributed_values))


@case("seed_docs")
def values_from_function_placed(t):
    """Values made on each worker device, then distributed: (1.0, 1.0)"""
    tf, strategy_ = t.tf, strategy(t)
    worker_devices = strategy_.extended.worker_devices
    multiple_values = []
    for i in range(strategy_.num_replicas_in_sync):
        with tf.device(worker_devices[i]):
            multiple_values.append(tf.constant(1.0))

    def value_fn(ctx):
        return multiple_values[ctx.replica_id_in_sync_group]

    distributed_values = strategy_.experimental_distribute_values_from_function(value_fn)
    return t.out(strategy_.experimental_local_results(distributed_values))


@case("seed_docs")
def run_constant_tensor(t):
    """PerReplica:{0: 6.0, 1: 6.0}"""
    tf, strategy_ = t.tf, strategy(t)
    tensor_input = tf.constant(3.0)

    @tf.function
    def replica_fn(input):
        return input * 2.0

    result = strategy_.run(replica_fn, args=(tensor_input,))
    return [t.out(result), pieces(t, repr(result))]


@case("seed_docs")
def run_distributed_values(t):
    """4 on each replica"""
    tf, strategy_ = t.tf, strategy(t)

    @tf.function
    def run():
        def value_fn(value_context):
            return value_context.num_replicas_in_sync

        distributed_values = strategy_.experimental_distribute_values_from_function(value_fn)

        def replica_fn2(input):
            return tf.identity(input) * 2

        return strategy_.run(replica_fn2, args=(distributed_values,))

    return t.local(run())


@case("seed_docs")
def run_all_reduce(t):
    """PerReplica:{0: 1, 1: 1}"""
    tf, strategy_ = t.tf, t.strategy

    @tf.function
    def run():
        def value_fn(value_context):
            return tf.constant(value_context.replica_id_in_sync_group)

        distributed_values = strategy_.experimental_distribute_values_from_function(value_fn)

        def replica_fn(input):
            return tf.distribute.get_replica_context().all_reduce("sum", input)

        return strategy_.run(replica_fn, args=(distributed_values,))

    return t.out(run())


@case("seed_docs")
def reduce_replica_ids(t):
    """1"""
    tf, strategy_ = t.tf, t.strategy

    def step_fn():
        i = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.identity(i)

    per_replica_result = strategy_.run(step_fn)
    total = strategy_.reduce("SUM", per_replica_result, axis=None)
    return t.out(total)


@case("seed_docs", params=["SUM_None", "MEAN_None", "SUM_0", "MEAN_0"])
def reduce_of_batches(t):
    """The text on `axis`: with axis=0 the elements of all replicas are combined and
    MEAN divides by their number; with axis=None only replicas are combined."""
    tf, strategy_ = t.tf, t.strategy
    op, axis = t.p.split("_")
    values = strategy_.experimental_distribute_values_from_function(
        lambda c: tf.constant([[1.0, 2.0], [3.0, 4.0]][c.replica_id_in_sync_group])
    )
    return t.out(strategy_.reduce(op, values, axis=None if axis == "None" else 0))


@case("seed_docs")
def gather_two_replicas(t):
    """[[1], [2], [1], [2]]"""
    tf, strategy_ = t.tf, t.strategy
    distributed_values = strategy_.experimental_distribute_values_from_function(
        lambda _: tf.identity(tf.constant([[1], [2]]))
    )

    @tf.function
    def run():
        return strategy_.gather(distributed_values, axis=0)

    return t.out(run())


@case("seed_docs", replicas=4, params=[0, 1, 2])
def gather_four_replicas(t):
    """shapes (4, 2, 3), (1, 8, 3) and (1, 2, 12)"""
    tf, strategy_ = t.tf, t.strategy
    single_tensor = tf.reshape(tf.range(6), shape=(1, 2, 3))
    distributed_values = strategy_.experimental_distribute_values_from_function(lambda _: tf.identity(single_tensor))

    @tf.function
    def run(axis):
        return strategy_.gather(distributed_values, axis=axis)

    return t.out(run(t.p))


@case("seed_docs")
def distribute_datasets_from_function(t):
    """Per-replica batches of 2 (global batch 4): [[1.], [1.]] for each replica."""
    tf, strategy_ = t.tf, t.strategy
    global_batch_size = 4

    def dataset_fn(input_context):
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        d = tf.data.Dataset.from_tensors([1.0]).repeat(8).batch(batch_size)
        return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

    inputs = strategy_.distribute_datasets_from_function(dataset_fn)
    return [t.local(strategy_.run(lambda b: b * 1.0, args=(batch,))) for batch in inputs]


@case("seed_docs")
def replica_context_all_reduce(t):
    """(2.0, 2.0) and ([2.0, 4.0], [2.0, 4.0])"""
    tf, strategy_ = t.tf, t.strategy

    def one():
        ctx = tf.distribute.get_replica_context()
        return ctx.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(1.0))

    def two():
        ctx = tf.distribute.get_replica_context()
        return ctx.all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(1.0), tf.identity(2.0)])

    return [t.local(strategy_.run(one)), t.local(strategy_.run(two))]


@case("seed_docs")
def variable_created_in_scope(t):
    """True, False"""
    tf, strategy_ = t.tf, strategy(t)
    with strategy_.scope():
        v = tf.Variable(1.0)
    w = tf.Variable(1.0)
    return [strategy_.extended.variable_created_in_scope(v), strategy_.extended.variable_created_in_scope(w)]


@case("seed_docs", tol=1e-4)
def keras_model_in_scope(t):
    """The outline for compile and fit: a model made in scope trains on a dataset."""
    tf, strategy_ = t.tf, t.strategy
    with strategy_.scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        model.set_weights([t.np.array([[0.5]], "float32"), t.np.array([0.0], "float32")])
        model.compile(loss="mse", optimizer="sgd")
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(10)
    h = model.fit(dataset, epochs=2, verbose=0)
    e = model.evaluate(dataset, verbose=0)
    return [t.out([float(v) for v in h.history["loss"]]), t.out(float(e)), [t.out(w) for w in model.get_weights()]]
