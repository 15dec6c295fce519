# ruff: noqa
"""What `Strategy.run` passes in, runs and returns."""

import collections

from oracle import case

SHARED = object()
Pair = collections.namedtuple("Pair", ["a", "b"])
BOTH = ("eager", "function")


@case("run", replicas=(1, 2, 4), mode=BOTH)
def replica_ids(t):
    step = t.fn(lambda: t.strategy.run(lambda: t.fid() + 1.0))
    return t.local(step())


@case("run", replicas=(2, 4))
def positional_and_keyword_arguments(t):
    a = t.per([float(i) for i in range(t.n)])
    b = t.per([10.0 * i for i in range(t.n)])
    return t.out(t.strategy.run(lambda a, b: a + 2.0 * b + 2.0, args=(a,), kwargs={"b": b}))


@case("run")
def identical_object_stays_plain(t):
    r = t.strategy.run(lambda: SHARED)
    return [r is SHARED, t.out(t.strategy.run(lambda: None)), t.out(t.strategy.run(lambda: "a"))]


@case("run")
def none_inside_structure(t):
    return t.out(t.strategy.run(lambda: (None, t.fid())))


@case("run")
def exception_type_is_kept(t):
    def fn():
        raise ValueError("from the replica function")

    r = t.raises(lambda: t.strategy.run(fn))
    return [
        r,
        t.tf.distribute.has_strategy(),
        t.tf.distribute.in_cross_replica_context(),
        t.local(t.strategy.run(t.fid)),
    ]


@case("run")
def dict_keys_differ(t):
    return t.raises(lambda: t.strategy.run(lambda: {f"k{int(t.rid())}": t.fid()}))


@case("run", replicas=(2, 4))
def replicas_run_in_order(t):
    seen = []
    t.strategy.run(lambda: seen.append(int(t.rid())))
    return seen


@case("run", replicas=(1, 2, 4))
def context_inside(t):
    def fn():
        c = t.ctx()
        return [
            c.num_replicas_in_sync,
            c.strategy is t.strategy,
            t.tf.distribute.in_cross_replica_context(),
            t.tf.distribute.has_strategy(),
            t.tf.distribute.get_strategy() is t.strategy,
        ]

    seen = []
    t.strategy.run(lambda: seen.append(fn()))
    return [t.out(v) for v in seen]


@case("run")
def variable_argument_is_a_variable(t):
    v = t.var(3.0)
    seen = []
    t.strategy.run(lambda w: seen.append(isinstance(w, t.tf.Variable)), args=(v,))
    return [seen, t.strategy.run(lambda w: w, args=(v,)) is v]


@case("run", replicas=(2, 4), mode=BOTH)
def plain_tensor_reaches_every_replica(t):
    x = t.tf.constant([1.0, 2.0, 3.0])
    step = t.fn(lambda x: t.strategy.run(lambda a: a * (t.fid() + 1.0), args=(x,)))
    return t.local(step(x))


@case("run", replicas=(1, 2))
def python_and_numpy_arguments(t):
    fn = lambda a, b, c: t.tf.constant(0.0) + a + b[0] + c
    return t.local(t.strategy.run(fn, args=(2, t.np.array([4.0], "float32"), 0.5)))


@case("run")
def namedtuple_result(t):
    r = t.strategy.run(lambda: Pair(t.fid(), 2.0 * t.fid()))
    return [type(r).__name__, t.local(r.a), t.local(r.b)]


@case("run", replicas=1)
def one_replica_returns_plain_values(t):
    r = t.strategy.run(lambda: {"x": t.fid() + 1.0, "y": [t.tf.ones([2])]})
    return t.out(r)


@case("run", replicas=(1, 2), mode=BOTH)
def result_inside_scope(t):
    with t.strategy.scope():
        step = t.fn(lambda: t.strategy.run(lambda: t.fid() * 3.0))
        r = step()
    return t.out(r)


@case("run", replicas=(1, 2, 4))
def compiled_replica_function(t):
    fn = t.tf.function(lambda x: t.tf.reduce_sum(x * x) + t.fid())
    return t.local(t.strategy.run(fn, args=(t.tf.constant([1.0, 2.0]),)))


@case("run", mode=BOTH)
def closure_over_tensor(t):
    k = t.tf.constant([[1.0, 2.0], [3.0, 4.0]])
    step = t.fn(lambda x: t.strategy.run(lambda a: t.tf.matmul(a, k), args=(x,)))
    return t.out(step(t.per([[[1.0, 0.0]], [[0.0, 2.0]]])))


@case("run", replicas=(2, 4))
def results_feed_the_next_run(t):
    x = t.strategy.run(t.fid)
    for _ in range(3):
        x = t.strategy.run(lambda a: a * 2.0 + 1.0, args=(x,))
    return t.out(x)


@case("run")
def no_retrace_for_equal_shapes(t):
    traces = []

    @t.tf.function
    def step(x):
        def fn(y):
            traces.append(1)
            return y * 2.0

        return t.strategy.run(fn, args=(x,))

    a = t.local(step(t.per([1.0, 2.0])))
    first = len(traces)
    b = t.local(step(t.per([3.0, 4.0])))
    return [first > 0, len(traces) == first, a, b]


@case("run", replicas=(2, 4), mode=BOTH)
def reductions_inside_replicas(t):
    tf = t.tf
    x = t.per([[[1.0 * i, 2.0], [3.0, -4.0 * i]] for i in range(t.n)])

    def fn(a):
        return tf.reduce_sum(a), tf.reduce_mean(a, axis=0), tf.reduce_max(a, axis=1), tf.reduce_min(a)

    step = t.fn(lambda v: t.strategy.run(fn, args=(v,)))
    return t.out(step(x))


@case("run", mode=BOTH)
def conditional_inside_replica(t):
    tf = t.tf

    def fn(x):
        return tf.cond(tf.reduce_sum(x) > 2.0, lambda: x * 10.0, lambda: x - 1.0)

    step = t.fn(lambda v: t.strategy.run(fn, args=(v,)))
    return t.out(step(t.per([[1.0, 0.5], [2.0, 3.0]])))


# --- experimental_local_results ------------------------------------------------


@case("local_results", replicas=(1, 2, 4))
def of_a_tensor_result(t):
    r = t.strategy.run(lambda: t.tf.fill([2], t.fid()))
    l = t.strategy.experimental_local_results(r)
    return [type(l).__name__, len(l), t.out(l)]


@case("local_results", replicas=(1, 2))
def of_plain_values(t):
    L = t.strategy.experimental_local_results
    return [t.out(L(t.tf.constant(3))), t.out(L(7)), t.out(L(None))]


@case("local_results", replicas=(1, 2, 4))
def of_variables(t):
    v, w = t.var([1.0, 2.0]), t.var(1.0, "SUM", "ON_READ")
    L = t.strategy.experimental_local_results
    return [len(L(v)), t.local(v), len(L(w)), t.local(w)]


@case("local_results")
def mixed_with_plain_leaves(t):
    r = (t.strategy.run(t.fid), 2)
    return t.out(t.strategy.experimental_local_results(r))


# --- experimental_distribute_values_from_function -------------------------------


@case("values_from_function", replicas=(1, 2, 4))
def context_fields(t):
    seen = []
    t.strategy.experimental_distribute_values_from_function(
        lambda c: seen.append([int(c.replica_id_in_sync_group), int(c.num_replicas_in_sync)]) or 0.0
    )
    return seen


@case("values_from_function", replicas=(1, 2, 4))
def python_numbers(t):
    f = t.strategy.experimental_distribute_values_from_function
    return [t.local(f(lambda c: c.replica_id_in_sync_group * 1.5)), t.local(f(lambda c: 3.0))]


@case("values_from_function", replicas=(1, 2))
def used_as_run_argument(t):
    x = t.strategy.experimental_distribute_values_from_function(
        lambda c: t.tf.constant([1.0, 2.0]) * (c.replica_id_in_sync_group + 1.0)
    )
    return t.local(t.strategy.run(lambda a: a * a, args=(x,)))


@case("values_from_function")
def one_replica_or_two_always_wrapped(t):
    x = t.strategy.experimental_distribute_values_from_function(lambda c: t.tf.constant(4.0))
    return [isinstance(x, t.tf.distribute.DistributedValues), t.out(x)]


@case("values_from_function")
def value_context_object(t):
    c = t.tf.distribute.experimental.ValueContext(1, 4)
    return [int(c.replica_id_in_sync_group), int(c.num_replicas_in_sync)]


# --- the PerReplica container ---------------------------------------------------


@case("per_replica")
def is_not_tensor_like(t):
    tf, pr = t.tf, t.strategy.run(t.fid)
    return [
        isinstance(pr, tf.distribute.DistributedValues),
        tf.is_tensor(pr),
        t.raises(lambda: pr + 1),
        t.raises(lambda: float(pr)),
        t.raises(lambda: list(pr)),
        t.raises(lambda: pr[0]),
    ]


@case("per_replica", replicas=(2, 4))
def values_attribute(t):
    pr = t.strategy.run(lambda: t.fid() * 2.0)
    return [type(pr.values).__name__, t.out(pr.values)]


@case("per_replica")
def repr_structure(t):
    pr = t.strategy.run(lambda: t.fid() + 1.0)
    lines = repr(pr).split("\n")
    return [lines[0], lines[1].startswith("  0: "), lines[2].startswith("  1: "), lines[3], len(lines)]


@case("per_replica")
def through_a_compiled_function(t):
    f = t.tf.function(lambda p: t.strategy.run(lambda a: a + 1.0, args=(p,)))
    ident = t.tf.function(lambda p: p)
    pr = t.strategy.run(t.fid)
    return [t.out(f(pr)), t.out(ident(pr))]
