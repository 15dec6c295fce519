# ruff: noqa
"""Scopes, contexts, construction and their errors."""

import threading

from oracle import case


def state(t):
    D = t.tf.distribute
    c = D.get_replica_context()
    return [c is None, D.in_cross_replica_context(), D.has_strategy(), D.get_strategy() is t.strategy]


@case("contexts")
def scope_gives_the_strategy_and_nests(t):
    with t.strategy.scope() as a:
        with t.strategy.scope() as b:
            inside = t.tf.Variable(1.0)
    return [a is t.strategy, b is t.strategy, t.out(inside), t.tf.distribute.has_strategy()]


@case("contexts", isolate=True)
def mixing_two_strategies(t):
    other = t.mkstrategy(2)

    def in_run():
        with other.scope():
            return 1

    def reduce_with_other():
        return other.reduce("MEAN", t.tf.constant(1.0), axis=None)

    with t.strategy.scope():
        out = [
            t.raises(lambda: other.scope().__enter__()),
            t.raises(lambda: other.run(lambda: 1)),
            t.raises(reduce_with_other),
        ]
    return out + [t.raises(lambda: t.strategy.run(in_run)), t.tf.distribute.has_strategy()]


@case("contexts", isolate=True)
def assigning_a_variable_of_another_strategy(t):
    other = t.mkstrategy(2)
    v = t.var(1.0)

    def cross():
        with other.scope():
            v.assign(9.0)

    return [t.raises(cross), t.raises(lambda: other.run(lambda: v.assign(t.tf.constant(1.0)))), t.out(v)]


@case("contexts")
def exception_leaves_the_scope(t):
    try:
        with t.strategy.scope():
            raise KeyError("k")
    except KeyError:
        pass
    return state(t)


@case("contexts")
def scope_belongs_to_its_thread(t):
    seen = []
    with t.strategy.scope():
        th = threading.Thread(target=lambda: seen.append(t.tf.distribute.has_strategy()))
        th.start()
        th.join()
        here = t.tf.distribute.has_strategy()
    return [seen, here]


@case("contexts", isolate=True)
def global_strategy(t):
    D = t.tf.distribute
    with t.strategy.scope():
        err = t.raises(lambda: D.experimental_set_strategy(t.strategy))
    D.experimental_set_strategy(t.strategy)
    a = [D.get_strategy() is t.strategy, t.ctx() is None, D.in_cross_replica_context(), t.out(t.tf.Variable(1.0))]
    D.experimental_set_strategy(None)
    return [err, a, D.has_strategy(), t.out(t.tf.Variable(1.0))]


@case("contexts")
def variable_creator_scope_inside_the_scope(t):
    log = []

    def creator(nxt, **kw):
        log.append(kw["name"])
        return nxt(**kw)

    with t.strategy.scope(), t.tf.variable_creator_scope(creator):
        v = t.tf.Variable(1.0, name="inner")
    return [log, t.out(v)]


@case("contexts", replicas=0, isolate=True)
def construction_without_devices(t):
    s = t.tf.distribute.MirroredStrategy()
    return [s.num_replicas_in_sync, t.local(s.run(t.fid), s), isinstance(s, t.tf.distribute.Strategy)]


@case("contexts", replicas=(1, 2, 4))
def strategy_properties(t):
    s = t.strategy
    return [
        s.num_replicas_in_sync,
        s.cluster_resolver is None,
        isinstance(s, t.tf.distribute.Strategy),
        isinstance(s, t.tf.distribute.MirroredStrategy),
        isinstance(s.extended, t.tf.distribute.StrategyExtended),
    ]


@case("contexts", replicas=0)
def input_enumerations(t):
    D = t.tf.distribute
    o = D.InputOptions()
    return [
        [m.name for m in D.InputReplicationMode],
        o.experimental_fetch_to_device,
        o.experimental_replication_mode.name,
        o.experimental_place_dataset_on_device,
        o.experimental_per_replica_buffer_size,
    ]


@case("contexts")
def variables_made_in_and_out_of_scope(t):
    tf = t.tf
    a = tf.Variable(1.0)
    with t.strategy.scope():
        b = tf.Variable(1.0)
    c = tf.Variable(1.0)
    return [isinstance(v, tf.distribute.DistributedValues) for v in (a, b, c)]


@case("contexts", replicas=0, isolate=True)
def multi_worker_strategy_alone(t):
    s = t.tf.distribute.MultiWorkerMirroredStrategy()
    with s.scope():
        v = t.tf.Variable(1.0, aggregation=t.tf.VariableAggregation.SUM)
    r = s.run(lambda: v + 1.0)
    s.run(lambda: v.assign_add(t.tf.constant(2.0)))
    e = s.extended
    return [
        s.num_replicas_in_sync,
        t.out(r),
        t.out(s.reduce("SUM", r, axis=None)),
        t.out(v.read_value()),
        t.out(s.run(lambda: t.ctx().all_reduce("MEAN", t.tf.constant(3.0)))),
        e.should_checkpoint,
        e.should_save_summary,
        e.experimental_between_graph,
    ]


@case("contexts", replicas=0, params=[1, 2, 4])
def number_of_devices(t):
    return t.mkstrategy(t.p).num_replicas_in_sync


@case("loss_helpers", replicas=0)
def average_loss_without_strategy(t):
    tf = t.tf
    return t.out(
        [
            tf.nn.compute_average_loss(tf.constant([1.0, 2.0])),
            tf.nn.scale_regularization_loss(tf.constant([3.0])),
            tf.nn.compute_average_loss(tf.constant([1.0, 2.0]), global_batch_size=4),
        ]
    )


@case("loss_helpers")
def average_loss_of_a_scalar(t):
    return t.raises(lambda: t.strategy.run(lambda: t.tf.nn.compute_average_loss(t.tf.constant(1.0))))
