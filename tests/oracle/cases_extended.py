# ruff: noqa
"""`Strategy.extended`: update, reduce_to, colocation and properties."""

from oracle import case

BOTH = ("eager", "function")


@case("extended", replicas=(2, 4))
def update_ungrouped(t):
    v = t.var(1.0)
    r = t.strategy.extended.update(v, lambda var, x: var * x, args=(3.0,), group=False)
    return [type(r).__name__, len(r), t.out([t.tf.identity(x) for x in r])]


@case("extended", replicas=(2, 4), params=["SUM", "MEAN", "sum"])
def reduce_to_a_variable(t):
    v = t.var(0.0)
    r = t.strategy.extended.reduce_to(t.p, t.strategy.run(lambda: t.fid() + 1.0), destinations=v)
    return t.local(r)


@case("extended", replicas=(1, 2, 4))
def reduce_to_a_device(t):
    x = t.strategy.run(lambda: t.tf.stack([t.fid() + 1.0, 2.0]))
    op = t.tf.distribute.ReduceOp.MEAN
    return t.out(t.strategy.extended.reduce_to(op, x, t.devices[0]))


@case("extended")
def reduce_to_of_a_plain_tensor(t):
    e, v = t.strategy.extended, t.var(0.0)
    return [
        t.raises(lambda: e.reduce_to("SUM", t.tf.constant(1.0), v)),
        t.out(e.reduce_to("MEAN", t.tf.constant(1.5), v)),
    ]


@case("extended")
def reduce_to_errors(t):
    e, x = t.strategy.extended, t.strategy.run(t.fid)
    return [
        t.raises(lambda: e.reduce_to("MAX", x, t.devices[0])),
        t.raises(lambda: t.strategy.run(lambda: e.reduce_to("SUM", x, t.devices[0]))),
    ]


@case("extended", replicas=(2, 4))
def reduced_value_as_argument_and_operand(t):
    v = t.var(0.0)
    r = t.strategy.extended.reduce_to("SUM", t.strategy.run(lambda: t.fid() + 1.0), v)
    return [t.out(r + 1.0), t.local(t.strategy.run(lambda x: x * (t.fid() + 2.0), args=(r,)))]


@case("extended")
def colocate_vars_with(t):
    v = t.var(1.0)
    with t.strategy.scope(), t.strategy.extended.colocate_vars_with(v):
        w = t.tf.Variable(2.0)
    return [t.out(w), isinstance(w, t.tf.distribute.DistributedValues)]


@case("extended")
def colocate_with_a_foreign_variable(t):
    p = t.tf.Variable(1.0)

    def make():
        with t.strategy.scope(), t.strategy.extended.colocate_vars_with(p):
            t.tf.Variable(2.0)

    return t.raises(make)


@case("extended")
def variable_created_in_scope(t):
    e = t.strategy.extended
    inside, outside = t.var(1.0), t.tf.Variable(1.0)
    on_read = t.var(1.0, "SUM", "ON_READ")
    in_run = t.strategy.run(lambda: t.tf.Variable(1.0))
    return [e.variable_created_in_scope(x) for x in (inside, outside, on_read, in_run)]


@case("extended")
def value_container(t):
    e, v, p = t.strategy.extended, t.var(1.0), t.tf.Variable(1.0)
    return [e.value_container(v.values[1]) is v, e.value_container(v.values[0]) is v, e.value_container(p) is p]


@case("extended", replicas=(1, 2, 4))
def device_lists(t):
    e = t.strategy.extended
    return [len(e.worker_devices), len(e.parameter_devices), [d[-5:] for d in e.worker_devices]]


@case("extended")
def properties(t):
    e = t.strategy.extended
    return [
        e.should_checkpoint,
        e.should_save_summary,
        e.experimental_between_graph,
        e.experimental_require_static_shapes,
        e.experimental_should_init,
    ]


@case("extended", replicas=(1, 2, 4))
def call_for_each_replica(t):
    r = t.strategy.extended.call_for_each_replica(lambda a, b: a + b * t.fid(), args=(1.0,), kwargs={"b": 2.0})
    return t.local(r)


@case("extended", replicas=(2, 4), mode=BOTH)
def manual_momentum(t):
    tf, s = t.tf, t.strategy
    v, m = t.var([1.0, 2.0]), t.var([0.0, 0.0])
    data = t.per([[1.0 + i, 2.0 - i] for i in range(t.n)])

    def replica(x):
        with tf.GradientTape() as g:
            loss = tf.reduce_sum(v * v * x)
        return g.gradient(loss, v)

    def step(data):
        total = s.extended.reduce_to("MEAN", s.run(replica, args=(data,)), destinations=v)

        def upd(mom, g):
            mom.assign(0.9 * mom + g)

        s.extended.update(m, upd, args=(total,))
        s.extended.update(v, lambda var, mom: var.assign_sub(0.01 * mom), args=(m,))

    f = t.fn(step)
    for _ in range(3):
        f(data)
    return [t.out(v), t.out(m)]


@case("extended", replicas=1)
def one_replica_reduce_to(t):
    e, v = t.strategy.extended, t.var(0.0)
    return [
        t.local(e.reduce_to("SUM", t.tf.constant(1.0), v)),
        t.local(e.reduce_to("MEAN", t.strategy.run(lambda: t.fid() + 2.0), v)),
    ]
