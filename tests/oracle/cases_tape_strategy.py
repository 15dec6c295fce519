# ruff: noqa
"""GradientTape inside replica functions and around mirrored variables."""

from oracle import case

BOTH = ("eager", "function")


def run(t, f, *args):
    return t.out(t.fn(lambda *a: t.strategy.run(f, args=a))(*args))


@case("tape_strategy", replicas=(1, 2, 4), mode=BOTH)
def gradient_of_a_mirrored_variable(t):
    v = t.var([2.0, 3.0])

    def f():
        with t.tf.GradientTape() as g:
            y = v * v * (t.fid() + 1.0)
        return g.gradient(y, v)

    return run(t, f)


@case("tape_strategy", mode=BOTH)
def second_derivative(t):
    v = t.var(3.0)

    def f():
        with t.tf.GradientTape() as a:
            with t.tf.GradientTape() as b:
                y = v**3.0 * (t.fid() + 1.0)
            d = b.gradient(y, v)
        return d, a.gradient(d, v)

    return run(t, f)


@case("tape_strategy", mode=BOTH)
def jacobian(t):
    v = t.var(3.0)

    def f(x):
        with t.tf.GradientTape(persistent=True) as g:
            g.watch(x)
            y = x * x * v
        return g.jacobian(y, x), g.jacobian(y, v)

    return run(t, f, t.per([[0.0, 1.0], [1.0, 2.0]]))


@case("tape_strategy")
def batch_jacobian(t):
    def f(x):
        with t.tf.GradientTape() as g:
            g.watch(x)
            y = x * x * (t.fid() + 1.0)
        return g.batch_jacobian(y, x)

    return run(t, f, t.per([[[1.0, 2.0]], [[3.0, 4.0]]]))


@case("tape_strategy", replicas=(2, 4), mode=BOTH)
def two_tapes_with_a_shared_variable(t):
    a, b, shared = t.var(1.0), t.var(2.0), t.var([3.0, -1.0])

    def f(x):
        with t.tf.GradientTape() as g1:
            l1 = a * t.tf.reduce_sum(shared * shared) * x
        with t.tf.GradientTape() as g2:
            l2 = b * b * t.tf.reduce_sum(shared) + x
        da, s1 = g1.gradient(l1, [a, shared])
        db, s2 = g2.gradient(l2, [b, shared])
        return da, db, s1 + s2

    return run(t, f, t.per([1.0 + i for i in range(t.n)]))


@case("tape_strategy", replicas=(2, 4), mode=BOTH)
def gradients_reduced_and_applied(t):
    s, v = t.strategy, t.var([1.0, -2.0])

    def f(x):
        with t.tf.GradientTape() as g:
            loss = t.tf.reduce_sum(t.tf.square(v - x))
        return g.gradient(loss, v)

    def step(x):
        total = s.reduce("MEAN", s.run(f, args=(x,)), axis=None)
        v.assign_sub(0.25 * total)
        return total

    step = t.fn(step)
    x = t.per([[1.0 * i, 0.5] for i in range(t.n)])
    return [t.out(step(x)), t.out(step(x)), t.out(v)]


@case("tape_strategy")
def unconnected_zero(t):
    v, u = t.var(2.0), t.var([1.0, 1.0])

    def f():
        with t.tf.GradientTape() as g:
            y = v * v
        return g.gradient(y, [v, u], unconnected_gradients=t.tf.UnconnectedGradients.ZERO)

    return run(t, f)


@case("tape_strategy", mode=BOTH)
def output_gradients_per_replica(t):
    v = t.var([2.0, 3.0])

    def f(w):
        with t.tf.GradientTape() as g:
            y = v * v
        return g.gradient(y, v, output_gradients=w)

    return run(t, f, t.per([[1.0, 0.0], [0.5, 10.0]]))


@case("tape_strategy")
def without_automatic_watching(t):
    v, w = t.var(2.0), t.var(3.0)

    def f():
        with t.tf.GradientTape(watch_accessed_variables=False) as g:
            g.watch(w)
            y = v * w * w
        d = g.gradient(y, [v, w], unconnected_gradients="zero")
        return d, t.tf.constant(len(g.watched_variables()))

    return run(t, f)


@case("tape_strategy", replicas=(1, 2))
def tape_in_cross_replica_context(t):
    v = t.var(2.0)
    with t.strategy.scope():
        with t.tf.GradientTape() as g:
            y = v * v * 3.0
    with t.tf.GradientTape() as h:
        z = v * 5.0
    return [t.out(g.gradient(y, v)), t.out(h.gradient(z, v))]


@case("tape_strategy", mode=BOTH)
def intermediate_tensor_in_replicas(t):
    w = t.var([[1.0, -1.0], [0.5, 2.0]])

    def f(x):
        with t.tf.GradientTape() as g:
            h = t.tf.matmul(x, w)
            y = t.tf.reduce_sum(h * h)
        return g.gradient(y, [h, w])

    return run(t, f, t.per([[[1.0, 2.0]], [[0.0, -1.0]]]))


@case("tape_strategy", mode=BOTH)
def compiled_function_called_in_the_tape(t):
    v = t.var(3.0)
    square = t.tf.function(lambda x: x * x * v)

    def f(x):
        with t.tf.GradientTape() as g:
            g.watch(x)
            y = square(x)
        return g.gradient(y, [x, v])

    return run(t, f, t.per([1.0, 2.0]))


@case("tape_strategy", replicas=(2, 4), mode=BOTH, tol=1e-4)
def training_by_all_reduce(t):
    tf = t.tf
    w, b = t.var([[0.0], [0.0]]), t.var(0.0)
    x = t.np.array(
        [[1.0, 2.0], [2.0, 1.0], [0.0, 1.0], [3.0, -1.0], [1.0, 1.0], [2.0, 2.0], [-1.0, 0.5], [0.5, 0.0]], "float32"
    )
    y = x @ t.np.array([[2.0], [-1.0]], "float32") + 0.5
    d = t.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(8))

    def f(x, y):
        with tf.GradientTape() as g:
            loss = tf.reduce_sum(tf.square(x @ w + b - y)) / 8.0
        dw, db = t.ctx().all_reduce("SUM", g.gradient(loss, [w, b]))
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        return loss

    step = t.fn(lambda x, y: t.strategy.reduce("SUM", t.strategy.run(f, args=(x, y)), axis=None))
    out = []
    for _ in range(5):
        for bx, by in d:
            out.append(t.out(step(bx, by)))
    return out + [t.out(w), t.out(b)]


@case("tape_strategy", mode=BOTH)
def nested_tapes_with_all_reduced_inner_gradient(t):
    v = t.var(2.0)

    def f():
        x = t.fid() + 1.0
        with t.tf.GradientTape() as outer:
            with t.tf.GradientTape() as inner:
                y = v * v * x
            d = inner.gradient(y, v)
            m = t.ctx().all_reduce("MEAN", d)
            z = m * m
        return d, m, outer.gradient(z, v)

    return run(t, f)
