# ruff: noqa
"""ReplicaContext: all_reduce, all_gather, merge_call and its attributes."""

from oracle import case

BOTH = ("eager", "function")


def run(t, f):
    """Runs f on every replica, compiled or not."""
    return t.out(t.fn(lambda: t.strategy.run(f))())


# --- all_reduce -----------------------------------------------------------------


@case("all_reduce", replicas=(1, 2, 4), mode=BOTH, params=["SUM", "MEAN"])
def scalars(t):
    return run(t, lambda: t.ctx().all_reduce(t.p, 2.0 * t.fid() + 1.0))


@case("all_reduce", mode=BOTH)
def structures(t):
    def f():
        x = {"a": t.fid(), "b": [t.fid() + 1.0, t.tf.ones([2])], "c": (t.fid() * 3.0,)}
        return t.ctx().all_reduce("SUM", x)

    return run(t, f)


@case("all_reduce", mode=BOTH)
def list_of_values(t):
    return run(t, lambda: t.ctx().all_reduce("SUM", [t.tf.identity(1.0), t.tf.identity(2.0)]))


@case("all_reduce", replicas=(2, 4))
def integers(t):
    return [
        run(t, lambda: t.ctx().all_reduce("SUM", t.rid() + 1)),
        run(t, lambda: t.ctx().all_reduce("MEAN", t.rid() + 1)),
    ]


@case("all_reduce")
def bad_operation(t):
    return t.raises(lambda: t.strategy.run(lambda: t.ctx().all_reduce("MAX", t.fid())))


@case("all_reduce", replicas=(1, 2, 4), mode=BOTH, params=["SUM", "MEAN"])
def gradient_of_scalars(t):
    def f():
        x, c = t.tf.identity(42.0), t.fid() * 2.0 + 1.0
        with t.tf.GradientTape() as g:
            g.watch(x)
            y = t.ctx().all_reduce(t.p, x) * c
        return y, g.gradient(y, x)

    return run(t, f)


@case("all_reduce", replicas=(2, 4), params=["SUM", "MEAN"])
def gradient_of_vectors(t):
    def f():
        x = t.tf.stack([t.fid() + 1.0, 2.0])
        with t.tf.GradientTape() as g:
            g.watch(x)
            s = t.ctx().all_reduce(t.p, x * x)
            y = t.tf.reduce_sum(s * t.tf.stack([t.fid(), 1.0]))
        return s, g.gradient(y, x)

    return run(t, f)


@case("all_reduce", replicas=(2, 4), mode=BOTH)
def gradient_of_a_structure(t):
    def f():
        a, b = t.fid() + 1.0, t.tf.stack([t.fid(), 1.0])
        with t.tf.GradientTape() as g:
            g.watch([a, b])
            r = t.ctx().all_reduce("SUM", {"a": a, "b": b})
            y = r["a"] * (t.fid() + 1.0) + t.tf.reduce_sum(r["b"] * r["b"])
        return g.gradient(y, [a, b])

    return run(t, f)


@case("all_reduce", replicas=(2, 4), mode=BOTH)
def gradient_to_a_variable(t):
    v = t.var([1.0, 2.0])

    def f():
        with t.tf.GradientTape() as g:
            y = t.ctx().all_reduce("MEAN", t.tf.reduce_sum(v * v) * (t.fid() + 1.0))
        return y, g.gradient(y, v)

    return run(t, f)


@case("all_reduce", replicas=(2, 4), mode=BOTH)
def cross_replica_normalisation(t):
    tf = t.tf
    x = t.per([[1.0 + i, 2.0 * i, -1.0] for i in range(t.n)])

    def f(x):
        with tf.GradientTape() as g:
            g.watch(x)
            c = t.ctx()
            mean = c.all_reduce("MEAN", tf.reduce_mean(x))
            var = c.all_reduce("MEAN", tf.reduce_mean(tf.square(x - mean)))
            y = (x - mean) / tf.sqrt(var + 0.1)
            loss = tf.reduce_sum(y * tf.constant([1.0, 2.0, 3.0]))
        return y, g.gradient(loss, x)

    return t.out(t.fn(lambda v: t.strategy.run(f, args=(v,)))(x))


@case("all_reduce", replicas=(2, 4), mode=BOTH)
def manual_gradient_averaging(t):
    v = t.var(4.0)
    x = t.per([1.0 + i for i in range(t.n)])

    def f(x):
        with t.tf.GradientTape() as g:
            loss = v * v * x
        grad = t.ctx().all_reduce("MEAN", g.gradient(loss, v))
        v.assign_sub(0.1 * grad)
        return grad

    r = t.fn(lambda v: t.strategy.run(f, args=(v,)))(x)
    return [t.out(r), t.out(v)]


# --- all_gather -----------------------------------------------------------------


@case("all_gather", replicas=(2, 4), mode=BOTH, params=[0, 1, 2])
def rank_3_along_each_axis(t):
    return run(t, lambda: t.ctx().all_gather(t.tf.reshape(t.tf.range(4.0), [1, 2, 2]) + 10.0 * t.fid(), axis=t.p))


@case("all_gather", mode=BOTH)
def structures_are_gathered_leaf_by_leaf(t):
    return run(t, lambda: t.ctx().all_gather([t.tf.fill([1], t.fid()), {"k": t.tf.fill([2, 1], t.fid())}], axis=0))


@case("all_gather", isolate=True)
def sizes_that_do_not_match(t):
    return t.raises(
        lambda: t.strategy.run(lambda: t.ctx().all_gather(t.tf.fill([1, 1 + int(t.rid())], t.rid()), axis=0))
    )


@case("all_gather", replicas=(2, 4), mode=BOTH)
def gradient(t):
    def f():
        x = t.tf.constant([[3.0], [5.0]])
        with t.tf.GradientTape() as g:
            g.watch(x)
            y = t.ctx().all_gather(x, axis=1) * (t.fid() + 1.0)
        return y, g.gradient(y, x)

    return run(t, f)


@case("all_gather", replicas=(2, 4))
def gradient_of_two_leaves(t):
    def f():
        a, b = t.tf.constant([[1.0, 2.0]]), t.tf.constant([[3.0, 4.0]]) + t.fid()
        with t.tf.GradientTape() as g:
            g.watch([a, b])
            x, y = t.ctx().all_gather([a, b], axis=0)
            z = t.tf.reduce_sum(x * x) * (t.fid() + 1.0) + t.tf.reduce_sum(y)
        return g.gradient(z, [a, b])

    return run(t, f)


# --- merge_call -----------------------------------------------------------------


@case("merge_call", replicas=(2, 4))
def how_arguments_arrive(t):
    seen = []

    def merge(s, a, b, k=None):
        seen.append([t.local(a), b, t.local(k["z"])])
        return a

    r = t.strategy.run(lambda: t.ctx().merge_call(merge, args=(t.fid(), "same"), kwargs={"k": {"z": int(t.rid())}}))
    return [seen, t.out(r)]


@case("merge_call")
def tuple_results_are_split(t):
    def merge(s, x):
        return x, s.reduce("MEAN", x, axis=None)

    r = t.strategy.run(lambda: t.ctx().merge_call(merge, args=(t.fid() + 1.0,)))
    return [t.local(r[0]), t.local(t.strategy.run(lambda: t.ctx().merge_call(merge, args=(t.fid(),))[1] + t.fid()))]


@case("merge_call", replicas=(2, 4))
def runs_once_after_all_replicas_arrived(t):
    log = []

    def f():
        log.append(f"before {int(t.rid())}")
        t.ctx().merge_call(lambda s: log.append("merge"))
        log.append(f"after {int(t.rid())}")

    t.strategy.run(f)
    return log


@case("merge_call", mode=BOTH)
def two_calls_in_one_function(t):
    def f():
        m = lambda s, x: s.reduce("SUM", x, axis=None)
        a = t.ctx().merge_call(m, args=(t.fid() + 1.0,))
        return t.ctx().merge_call(m, args=(a * (t.fid() + 1.0),)) + t.fid()

    return run(t, f)


@case("merge_call")
def exception_inside_merge(t):
    def merge(s):
        raise TypeError("in merge")

    r = t.raises(lambda: t.strategy.run(lambda: t.ctx().merge_call(merge)))
    return [r, t.local(t.strategy.run(t.fid))]


@case("merge_call")
def exception_inside_a_nested_run(t):
    def inner():
        raise ValueError("nested")

    return t.raises(lambda: t.strategy.run(lambda: t.ctx().merge_call(lambda s: s.run(inner))))


@case("merge_call", isolate=True)
def replicas_must_agree_on_the_number_of_calls(t):
    def f():
        if int(t.rid()) == 0:
            return t.ctx().merge_call(lambda s: 1)
        return 2

    return t.raises(lambda: t.strategy.run(f))


@case("merge_call")
def gather_inside(t):
    def f():
        return t.ctx().merge_call(lambda s, x: s.gather(x, axis=0), args=(t.tf.fill([1], t.fid()),)) * (t.fid() + 1.0)

    return t.local(t.strategy.run(f))


@case("merge_call", replicas=0)
def default_context_merge_call(t):
    d = t.tf.distribute.get_strategy()
    return t.ctx().merge_call(lambda s, a, k: [s is d, a + k], args=(7,), kwargs={"k": 1})


# --- attributes -----------------------------------------------------------------


@case("replica_context", replicas=(1, 2, 4), mode=BOTH)
def ids_and_count(t):
    return run(t, lambda: (t.tf.identity(t.rid()), t.tf.constant(t.ctx().num_replicas_in_sync)))


@case("replica_context")
def none_in_scope(t):
    with t.strategy.scope():
        a = t.ctx() is None
    return [a, t.ctx() is None]


@case("replica_context")
def not_usable_after_the_run(t):
    keep = []
    t.strategy.run(lambda: keep.append(t.ctx()))
    return [
        t.raises(lambda: keep[0].merge_call(lambda s: 1)),
        t.raises(lambda: keep[0].all_reduce("SUM", t.tf.constant(1.0))),
    ]


@case("replica_context")
def strategy_of_the_context(t):
    seen = []
    t.strategy.run(lambda: seen.append(t.ctx().strategy is t.strategy))
    return seen
