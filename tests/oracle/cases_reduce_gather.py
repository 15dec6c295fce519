# ruff: noqa
"""`Strategy.reduce` and `Strategy.gather`."""

from oracle import case

BOTH = ("eager", "function")


def op_of(t, name):
    if name.startswith("enum_"):
        return getattr(t.tf.distribute.ReduceOp, name[5:])
    return name


@case("reduce", replicas=(2, 4), params=["SUM", "sum", "MEAN", "mean", "enum_SUM", "enum_MEAN"])
def spellings_of_the_operation(t):
    x = t.per([1.0 + 3.0 * i for i in range(t.n)])
    return t.out(t.strategy.reduce(op_of(t, t.p), x, axis=None))


@case("reduce", replicas=(2, 4), params=["SUM", "MEAN"])
def uneven_first_axis(t):
    x = t.strategy.run(lambda: t.tf.fill([int(t.rid()) + 1], t.fid() + 1.0))
    return t.out(t.strategy.reduce(t.p, x, axis=0))


@case("reduce", replicas=(2, 4), params=["SUM_1", "MEAN_1", "SUM_-1", "MEAN_-1", "MEAN_-2"])
def other_and_negative_axes(t):
    op, axis = t.p.split("_")
    x = t.per([[[0.0 + i, 1.0], [2.0, 3.0 * i]] for i in range(t.n)])
    return t.out(t.strategy.reduce(op, x, axis=int(axis)))


@case("reduce", params=["SUM", "MEAN"])
def tuple_of_axes(t):
    x = t.per([[[0.0, 1.0], [2.0, 3.0]], [[10.0, 11.0], [12.0, 13.0]]])
    return t.out(t.strategy.reduce(t.p, x, axis=(0, 1)))


@case("reduce")
def empty_component_counts_nothing(t):
    x = t.strategy.run(lambda: t.tf.constant([8.0]) if int(t.rid()) == 0 else t.tf.zeros([0]))
    return [t.out(t.strategy.reduce(op, x, axis=0)) for op in ("SUM", "MEAN")]


@case("reduce")
def all_components_empty(t):
    x = t.strategy.run(lambda: t.tf.zeros([0]))
    return [t.out(t.strategy.reduce(op, x, axis=0)) for op in ("SUM", "MEAN")]


@case("reduce", replicas=(2, 4), mode=BOTH)
def integer_sum(t):
    def step():
        return t.strategy.reduce("SUM", t.strategy.run(lambda: t.rid() + 1), axis=None)

    return t.out(t.fn(step)())


@case("reduce", replicas=(2, 4))
def integer_mean_is_fractional(t):
    x = t.strategy.run(lambda: t.rid() + 1)
    y = t.strategy.run(lambda: t.tf.range(3) + t.rid())
    return [
        t.out(t.strategy.reduce("MEAN", x, axis=None)),
        t.out(t.strategy.reduce("MEAN", y, axis=0)),
        t.out(t.strategy.reduce("SUM", y, axis=0)),
    ]


@case("reduce")
def axis_is_required(t):
    x = t.strategy.run(t.fid)
    return t.raises(lambda: t.strategy.reduce("SUM", x))


@case("reduce")
def axis_out_of_range(t):
    x = t.per([[[1.0, 2.0]], [[3.0, 4.0]]])
    return [
        t.raises(lambda: t.strategy.reduce("SUM", x, axis=5)),
        t.raises(lambda: t.strategy.reduce("SUM", t.strategy.run(t.fid), axis=0)),
    ]


@case("reduce")
def plain_value(t):
    s, c = t.strategy, t.tf.constant
    return [
        t.out(s.reduce("MEAN", c(1.5), axis=None)),
        t.raises(lambda: s.reduce("SUM", c(1.5), axis=None)),
        t.raises(lambda: s.reduce("SUM", 1.0, axis=None)),
        t.out(s.reduce("MEAN", c([1.0, 3.0]), axis=0)),
    ]


@case("reduce")
def sync_on_read_variable(t):
    w = t.var(3.0, "SUM", "ON_READ")
    t.strategy.run(lambda: w.assign(t.fid() + 3.0))
    return [t.out(t.strategy.reduce("SUM", w, axis=None)), t.out(t.strategy.reduce("MEAN", w, axis=None))]


@case("reduce")
def mean_of_means_is_not_the_mean(t):
    x = t.strategy.run(lambda: t.tf.constant([5.0, 6.0]) if int(t.rid()) == 0 else t.tf.constant([7.0]))
    m = t.strategy.run(t.tf.reduce_mean, args=(x,))
    return [t.out(t.strategy.reduce("MEAN", x, axis=0)), t.out(t.strategy.reduce("MEAN", m, axis=None))]


@case("reduce", replicas=0)
def default_strategy_reduce(t):
    d = t.tf.distribute.get_strategy()
    return [
        t.out(d.reduce("SUM", t.tf.constant(3.0), axis=None)),
        t.out(d.reduce("MEAN", t.tf.constant([1.0, 3.0]), axis=0)),
        t.out(d.reduce("SUM", t.tf.constant([[1.0, 3.0]]), axis=1)),
    ]


@case("reduce", replicas=(2, 4), mode=BOTH)
def scalar_product_then_reduce(t):
    x = t.per([[1.0 + i, 2.0] for i in range(t.n)])
    step = t.fn(
        lambda v: t.strategy.reduce("MEAN", t.strategy.run(lambda a: t.tf.reduce_sum(a * a), args=(v,)), axis=None)
    )
    return t.out(step(x))


# --- gather ---------------------------------------------------------------------


@case("gather", replicas=(1, 2, 4), mode=BOTH)
def vectors(t):
    step = t.fn(lambda: t.strategy.gather(t.strategy.run(lambda: t.tf.fill([3], t.fid())), axis=0))
    return t.out(step())


@case("gather", replicas=(2, 4), params=[0, 1])
def uneven_along_the_axis(t):
    def fn():
        n = int(t.rid()) + 1
        return t.tf.fill([n, 2] if t.p == 0 else [2, n], t.fid())

    return t.out(t.strategy.gather(t.strategy.run(fn), axis=t.p))


@case("gather", replicas=(2, 4))
def with_an_empty_component(t):
    x = t.strategy.run(lambda: t.tf.fill([2 * (int(t.rid()) % 2), 2], t.fid()))
    return t.out(t.strategy.gather(x, axis=0))


@case("gather", isolate=True, params=["sizes", "ranks", "scalars", "axis"])
def invalid_gathers(t):
    tf, s = t.tf, t.strategy
    fn, axis = {
        "sizes": (lambda: tf.fill([1, 1 + int(t.rid())], t.rid()), 0),
        "ranks": (lambda: tf.fill([1], 1) if int(t.rid()) == 0 else tf.fill([1, 2], 1), 0),
        "scalars": (t.rid, 0),
        "axis": (lambda: tf.fill([1, 2], t.rid()), 2),
    }[t.p]
    x = s.run(fn)
    return t.raises(lambda: s.gather(x, axis=axis))


@case("gather")
def result_is_plain(t):
    r = t.strategy.gather(t.strategy.run(lambda: t.tf.ones([1, 2])), axis=0)
    return [t.tf.is_tensor(r), list(r.shape)]


@case("gather")
def not_allowed_in_replica_context(t):
    x = t.strategy.run(lambda: t.tf.ones([1]))
    return t.raises(lambda: t.strategy.run(lambda: t.strategy.gather(x, axis=0)))


@case("gather", replicas=0)
def default_strategy_gather(t):
    d = t.tf.distribute.get_strategy()
    return t.out(d.gather(t.tf.constant([1.0, 2.0]), axis=0))


@case("gather", replicas=(2, 4))
def dataset_batches_come_back_in_order(t):
    ds = t.tf.data.Dataset.range(8).batch(8)
    d = t.strategy.experimental_distribute_dataset(ds)
    return [t.out(t.strategy.gather(x, axis=0)) for x in d]
