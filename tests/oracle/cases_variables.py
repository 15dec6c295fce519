# ruff: noqa
"""Mirrored and sync-on-read variables."""

from oracle import case

BOTH = ("eager", "function")
AGGS = ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]


@case("variables")
def repr_keeps_the_structure(t):
    v = t.var([1.0, 2.0])
    lines = repr(v).split("\n")
    return [lines[0], lines[1].startswith("  0: "), lines[2].startswith("  1: "), lines[3], len(lines)]


@case("variables")
def trainable_defaults(t):
    return [
        t.var(1.0).trainable,
        t.var(1.0, trainable=False).trainable,
        t.var(1.0, "SUM", "ON_READ").trainable,
        t.var(1.0, "SUM", "ON_READ", trainable=True).trainable,
    ]


@case("variables", replicas=(2, 4), params=AGGS)
def cross_replica_updates(t):
    v = t.var(1.0, t.p)
    out = [t.out(v)]
    for f in (lambda: v.assign(5.0), lambda: v.assign_add(2.0), lambda: v.assign_sub(1.0)):
        f()
        out.append(t.out(v))
    return out


@case("variables", mode=BOTH, params=["NONE", "MEAN", "ONLY_FIRST_REPLICA"])
def replica_updates_with_one_python_number(t):
    v = t.var(1.0, t.p)

    def f():
        v.assign(5.0)
        v.assign_add(2.0)
        v.assign_sub(1.0)
        return v.read_value()

    r = t.fn(lambda: t.strategy.run(f))()
    return [t.local(r), t.out(v)]


@case("variables", mode=BOTH)
def sum_of_one_python_number_is_refused(t):
    v = t.var(1.0, "SUM")
    r = t.raises(lambda: t.fn(lambda: t.strategy.run(lambda: v.assign(5.0)))())
    q = t.raises(lambda: t.fn(lambda: t.strategy.run(lambda: v.assign_add(5.0)))())
    return [r, q, t.out(v)]


@case("variables", replicas=(2, 4), mode=BOTH)
def equal_tensors_without_aggregation(t):
    v = t.var([1.0, 1.0])
    x = t.tf.constant([3.0, 4.0])

    def f():
        v.assign(x)
        v.assign_add(t.tf.constant([1.0, 2.0]))
        return v * 2.0

    r = t.fn(lambda: t.strategy.run(f))()
    return [t.local(r), t.out(v)]


@case("variables", mode=BOTH)
def read_after_update_in_the_same_function(t):
    v = t.var(0.0, "MEAN")

    def f():
        a = v.assign_add(t.fid() + 1.0)
        b = v.read_value()
        v.assign_sub(t.fid())
        return a, b, v.value(), v + 0.0

    r = t.fn(lambda: t.strategy.run(f))()
    return [t.local(r), t.out(v)]


@case("variables")
def per_replica_argument_is_aggregated(t):
    x = t.per([2.0, 4.0])
    out = []
    for agg in AGGS[1:]:
        v = t.var(1.0, agg)
        t.strategy.run(lambda a: v.assign(a), args=(x,))
        out.append(t.out(v))
    return out


@case("variables")
def assign_from_various_values(t):
    v, w = t.var(0.0), t.var(7.0)
    out = []
    for x in (w, t.np.float32(2), 3, t.tf.constant(4.5), w + 1.0):
        v.assign(x)
        out.append(t.out(v))
    return out


@case("variables", replicas=(1, 2))
def wrong_shape(t):
    v = t.var(0.0)
    return [t.raises(lambda: v.assign([1.0, 2.0])), t.raises(lambda: v.assign_add([1.0, 2.0])), t.out(v)]


@case("variables", replicas=(2, 4))
def created_inside_run(t):
    v = t.strategy.run(lambda: t.tf.Variable([1.0, 2.0]))
    return [isinstance(v, t.tf.Variable), t.out(v)]


@case("variables", replicas=(2, 4))
def created_inside_run_takes_the_first_initial_value(t):
    return t.out(t.strategy.run(lambda: t.tf.Variable(t.fid() + 5.0)))


@case("variables")
def created_inside_run_twice(t):
    f = lambda: t.tf.Variable(1.0)
    a, b = t.strategy.run(f), t.strategy.run(f)
    a.assign(3.0)
    return [a is b, t.out(a), t.out(b)]


@case("variables")
def created_on_the_first_trace(t):
    box = []

    @t.tf.function
    def step():
        def f():
            if not box:
                box.append(t.tf.Variable(2.0, aggregation=t.tf.VariableAggregation.MEAN))
            return box[0].assign_add(t.fid())

        return t.strategy.run(f)

    a, b = t.local(step()), t.local(step())
    return [len(box), a, b, t.out(box[0])]


@case("variables", isolate=True)
def names_that_differ_between_replicas(t):
    return t.raises(lambda: t.strategy.run(lambda: t.tf.Variable(1.0, name=f"p{'ab'[int(t.rid())]}")))


@case("variables", replicas=(2, 4))
def plain_variable_used_in_run(t):
    v = t.tf.Variable(0.0)
    seen = []

    def f():
        seen.append(float(v.read_value()))
        v.assign_add(t.fid() + 1.0)
        return v.read_value()

    r = t.strategy.run(f)
    return [t.local(r), seen, t.out(v)]


@case("variables", replicas=(1, 2))
def operators(t):
    tf, v = t.tf, t.var([[1.0, 2.0], [3.0, 4.0]])
    return t.out(
        [
            v + 1.0,
            2.0 * v,
            v - v,
            v / 2.0,
            v**2.0,
            -v,
            abs(v),
            v[0],
            v[:, 1],
            v @ tf.ones([2, 1]),
            v > 2.0,
            1.0 - v,
            v.read_value(),
            v.value(),
            tf.convert_to_tensor(v),
            tf.reduce_sum(v),
        ]
    )


@case("variables", mode=BOTH)
def operators_in_replicas(t):
    v = t.var([7.0, 2.0])

    def f():
        return v + t.fid(), v * v, t.tf.reduce_sum(v), v[1], v // 2.0, v % 4.0

    return t.out(t.fn(lambda: t.strategy.run(f))())


@case("variables", replicas=(0, 2))
def references(t):
    v, w = t.var(1.0), t.var(1.0)
    d = {v.ref(): "v", w.ref(): "w"}
    return [v.ref() == v.ref(), v.ref() == w.ref(), d[w.ref()], v.ref().deref() is v]


@case("variables", replicas=(0, 2))
def captured_by_a_function(t):
    v = t.var(1.0)
    traces = []

    @t.tf.function
    def f(x):
        traces.append(1)
        return v * x

    a = t.out(f(t.tf.constant(2.0)))
    v.assign(5.0)
    return [a, t.out(f(t.tf.constant(2.0))), len(traces)]


@case("variables")
def returned_from_run(t):
    v = t.var(1.0)
    return [t.strategy.run(lambda: v) is v, t.strategy.run(lambda: {"k": [v]})["k"][0] is v]


@case("variables")
def read_value_false(t):
    v = t.var(1.0, "SUM")
    v.assign(4.0, read_value=False)
    v.assign_add(1.0, use_locking=False, name="n", read_value=True)
    return t.out(v)


@case("variables", replicas=(1, 2, 4))
def local_results_are_the_components(t):
    v = t.var([2.0, 3.0])
    parts = t.strategy.experimental_local_results(v)
    return [len(parts), all(isinstance(p, t.tf.Variable) for p in parts), t.out(list(parts))]


@case("variables", replicas=0)
def plain_variable_methods(t):
    v = t.tf.Variable([1.0, 2.0], name="q")
    out = [t.out(v)]
    v.assign([3.0, 4.0])
    out.append(t.out(v))
    v.assign_add([1.0, 1.0])
    out.append(t.out(v))
    v.assign_sub([0.5, 0.5])
    out.append(t.out(v))
    return out + [v.trainable, v.name.startswith("q"), list(v.shape), t.out(v.read_value())]


@case("variables", replicas=0)
def assignment_returns_the_new_value(t):
    v = t.tf.Variable(1.0)
    return [t.out(v.assign(3.0) + 0.0), t.out(v.assign_add(2.0) + 0.0), t.out(v.assign_sub(1.0) + 0.0)]


# --- sync on read ---------------------------------------------------------------


@case("sync_on_read", mode=BOTH, params=["SUM", "MEAN", "ONLY_FIRST_REPLICA", "NONE"])
def read_in_replicas_is_local(t):
    v = t.var(1.0, t.p, "ON_READ")

    def f():
        v.assign(t.fid() * 3.0)
        return v.read_value(), v.value(), v + 1.0

    return t.out(t.fn(lambda: t.strategy.run(f))())


@case("sync_on_read", params=["assign", "assign_add", "assign_sub"])
def replica_updates(t):
    v = t.var(10.0, "SUM", "ON_READ")
    r = t.strategy.run(lambda: getattr(v, t.p)(t.fid() + 1.0))
    s = t.strategy.run(lambda: getattr(v, t.p)(5.0))
    return [t.local(r), t.local(s), t.out(v)]


@case("sync_on_read", params=["MEAN", "ONLY_FIRST_REPLICA"])
def cross_replica_add_and_sub(t):
    v = t.var(1.0, t.p, "ON_READ")
    v.assign_add(3.0)
    a = t.out(v)
    v.assign_sub(0.5)
    return [a, t.out(v), t.out(v.read_value())]


@case("sync_on_read", params=["assign_add", "assign_sub"])
def cross_replica_add_with_sum_is_refused(t):
    v = t.var(1.0, "SUM", "ON_READ")
    return [t.raises(lambda: getattr(v, t.p)(1.0)), t.out(v)]


@case("sync_on_read", replicas=1)
def one_replica(t):
    v = t.var(1.0, "SUM", "ON_READ")
    t.strategy.run(lambda: v.assign_add(2.0))
    a = t.out(v.read_value())
    v.assign(6.0)
    return [a, t.out(v), t.out(v.read_value())]


@case("sync_on_read", replicas=(2, 4))
def integer_counter(t):
    v = t.var(0, "SUM", "ON_READ")
    for _ in range(3):
        t.strategy.run(lambda: v.assign_add(1))
    return [t.out(v), t.out(v.read_value())]


@case("sync_on_read")
def integer_mean_is_refused(t):
    return t.raises(lambda: t.var(0, "MEAN", "ON_READ"))


@case("sync_on_read")
def read_inside_merge(t):
    v = t.var([0.0, 0.0], "SUM", "ON_READ")

    def f():
        v.assign([1.0, 2.0])
        return t.ctx().merge_call(lambda s: v.read_value()) + t.fid()

    return t.local(t.strategy.run(f))


@case("sync_on_read", replicas=(2, 4))
def reset_then_accumulate(t):
    total, count = t.var(0.0, "SUM", "ON_READ"), t.var(0.0, "SUM", "ON_READ")
    out = []
    for k in range(2):

        def f():
            total.assign_add(t.fid() + k)
            count.assign_add(1.0)

        t.strategy.run(f)
        t.strategy.run(f)
        out.append(t.out(total.read_value() / count.read_value()))
        total.assign(0.0)
        count.assign(0.0)
    return [out, t.out(total)]


@case("sync_on_read")
def update_writes_every_component(t):
    v = t.var(1.0, "SUM", "ON_READ")
    t.strategy.extended.update(v, lambda var, x: var.assign(x), args=(5.0,))
    return [t.out(v), t.out(v.read_value())]


@case("sync_on_read")
def read_in_a_compiled_function_outside_replicas(t):
    v = t.var(1.0, "SUM", "ON_READ")
    t.strategy.run(lambda: v.assign(t.fid() + 2.0))
    return t.out(t.tf.function(lambda: v * 2.0)())
