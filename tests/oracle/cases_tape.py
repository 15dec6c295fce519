# ruff: noqa
"""GradientTape without a strategy."""

import contextlib

from oracle import case

BOTH = ("eager", "function")


def grads(t, f, *xs, **kw):
    """Gradients of f(*xs) with respect to every x, compiled or not."""

    def run(*xs):
        with t.tf.GradientTape() as g:
            g.watch(list(xs))
            y = f(*xs)
        return g.gradient(y, list(xs), **kw)

    return t.out(t.fn(run)(*[t.tf.constant(x) for x in xs]))


# --- values of gradients ---------------------------------------------------------


@case("tape", replicas=0, mode=BOTH)
def elementwise_functions(t):
    tf = t.tf
    fs = (
        tf.exp,
        tf.math.log,
        tf.sqrt,
        tf.sin,
        tf.cos,
        tf.tanh,
        tf.sigmoid,
        tf.square,
        tf.nn.relu,
        tf.nn.softplus,
        tf.math.rsqrt,
        tf.abs,
        tf.negative,
        lambda x: x**3.0,
        lambda x: 1.0 / x,
    )
    return [grads(t, f, [0.5, 1.0, 2.0]) for f in fs]


@case("tape", replicas=0, mode=BOTH)
def binary_functions(t):
    tf = t.tf
    fs = (tf.add, tf.subtract, tf.multiply, tf.divide, tf.pow, tf.maximum, tf.minimum, lambda a, b: a * b + b / a)
    return [grads(t, f, [1.0, 2.0, 3.0], [2.0, 1.5, 0.5]) for f in fs]


@case("tape", replicas=0, mode=BOTH)
def broadcasting(t):
    return [
        grads(t, lambda a, b: a * b + b, [[1.0, 2.0], [3.0, 4.0]], [10.0, 20.0]),
        grads(t, lambda a, b: a / b, [[1.0], [3.0]], [[2.0, 4.0]]),
        grads(t, lambda a, b: a - b, 3.0, [[1.0, 2.0]]),
    ]


@case("tape", replicas=0, mode=BOTH)
def matrix_products(t):
    tf = t.tf
    a, b = [[1.0, 2.0], [3.0, 4.0]], [[0.5, -1.0], [2.0, 0.0]]
    return [
        grads(t, tf.matmul, a, b),
        grads(t, lambda a, b: tf.matmul(a, b, transpose_b=True), a, b),
        grads(t, lambda a, b: tf.matmul(a, b, transpose_a=True), a, b),
        grads(t, lambda a, b: a @ b @ a, a, b),
        grads(t, lambda a, b: tf.einsum("ij,kj->ik", a, b), a, b),
        grads(t, lambda a, b: tf.tensordot(a, b, 1), a, b),
    ]


@case("tape", replicas=0, mode=BOTH)
def shapes_and_slices(t):
    tf, x = t.tf, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    w = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    fs = (
        lambda v: tf.reshape(v, [3, 2]) * tf.reshape(w, [3, 2]),
        lambda v: tf.transpose(v) * tf.transpose(w),
        lambda v: v[0] * 2.0,
        lambda v: v[:, 1:] * w[:, 1:],
        lambda v: tf.concat([v, 2.0 * v], 0),
        lambda v: tf.stack([v, v * v]),
        lambda v: tf.expand_dims(v, 1) * 3.0,
        lambda v: tf.tile(v, [2, 1]),
        lambda v: tf.pad(v, [[1, 0], [0, 1]]),
        lambda v: tf.split(v, 3, axis=1)[1] * 7.0,
        lambda v: tf.unstack(v)[1] * 5.0,
        lambda v: tf.squeeze(v[0:1] * 2.0, 0),
    )
    return [grads(t, f, x) for f in fs]


@case("tape", replicas=0, mode=BOTH)
def gather_and_select(t):
    tf = t.tf
    fs = (
        lambda v: tf.gather(v, [0, 2, 0]),
        lambda v: tf.where(v > 1.5, v * v, v * 10.0),
        lambda v: tf.clip_by_value(v, 1.5, 2.5) * v,
        lambda v: tf.cumsum(v) * v,
    )
    out = []
    for f in fs:

        def run(x):
            with tf.GradientTape() as g:
                g.watch(x)
                y = f(x)
            return tf.convert_to_tensor(g.gradient(y, x))

        out.append(t.out(t.fn(run)(tf.constant([1.0, 2.0, 3.0]))))
    return out


@case("tape", replicas=0)
def embedding_rows_add_up(t):
    tf = t.tf
    e = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with tf.GradientTape() as g:
        y = tf.reduce_sum(tf.nn.embedding_lookup(e, [0, 2, 0]) ** 2.0)
    return t.out(tf.convert_to_tensor(g.gradient(y, e)))


@case("tape", replicas=0, mode=BOTH)
def small_network(t):
    tf = t.tf
    w1, b1 = tf.Variable([[0.1, -0.2, 0.3], [0.4, 0.5, -0.6]]), tf.Variable([0.0, 0.1, 0.2])
    w2, b2 = tf.Variable([[0.3], [-0.1], [0.2]]), tf.Variable([0.05])
    x, y = tf.constant([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]]), tf.constant([[1.0], [0.0], [2.0]])

    def run():
        with tf.GradientTape() as g:
            h = tf.tanh(x @ w1 + b1)
            loss = tf.reduce_mean(tf.square(h @ w2 + b2 - y))
        return loss, g.gradient(loss, [w1, b1, w2, b2])

    return t.out(t.fn(run)())


# --- what is watched --------------------------------------------------------------


@case("tape", replicas=0)
def non_trainable_variable_watched_by_hand(t):
    tf = t.tf
    n = tf.Variable(2.0, trainable=False)
    with tf.GradientTape() as g:
        g.watch(n)
        y = n * n * n
    return t.out(g.gradient(y, n))


@case("tape", replicas=0)
def read_before_the_tape_is_not_connected(t):
    tf = t.tf
    v = tf.Variable(2.0)
    c = v.read_value()
    with tf.GradientTape() as g:
        y = c * c
    return t.out(g.gradient(y, v))


@case("tape", replicas=0)
def value_at_recording_time_counts(t):
    tf = t.tf
    v = tf.Variable(2.0)
    with tf.GradientTape() as g:
        y = v * 3.0
        v.assign(10.0)
        z = v * y
    return t.out(g.gradient(z, v))


@case("tape", replicas=0)
def variable_created_inside(t):
    tf = t.tf
    with tf.GradientTape() as g:
        w = tf.Variable(4.0)
        y = w * w
    return t.out(g.gradient(y, w))


@case("tape", replicas=0)
def watch_refuses_other_objects(t):
    g = t.tf.GradientTape()
    return [
        t.raises(lambda: g.watch(t.np.array(1.0))),
        t.raises(lambda: g.watch("a")),
        t.raises(lambda: g.watch([1.0])),
    ]


@case("tape", replicas=0)
def integers_have_no_gradient(t):
    tf = t.tf
    i, x = tf.constant(2), tf.constant(2.0)
    with tf.GradientTape(persistent=True) as g:
        g.watch([i, x])
        y = i * i
        z = tf.cast(x * 3.0, tf.int32)
    return [t.out(g.gradient(y, i)), t.out(g.gradient(z, x)), t.out(g.gradient(y, i, unconnected_gradients="zero"))]


@case("tape", replicas=0)
def equal_constants_are_different_sources(t):
    tf = t.tf
    a, b = tf.constant(1.0), tf.constant(1.0)
    with tf.GradientTape() as g:
        g.watch([a, b])
        y = a * 2.0 + b * 3.0
    return t.out(g.gradient(y, [a, b]))


# --- sources and targets ----------------------------------------------------------


@case("tape", replicas=0)
def structure_of_sources(t):
    tf, x, v = t.tf, t.tf.constant(3.0), t.tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as g:
        g.watch(x)
        y = x * tf.reduce_sum(v)
    return [t.out(g.gradient(y, s)) for s in (x, [x], (x, v), {"p": x, "r": [v, (x,)]}, [], v)]


@case("tape", replicas=0)
def output_gradients(t):
    tf, x, v = t.tf, t.tf.constant(3.0), t.tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as g:
        g.watch([x, v])
        y, z, q = x * x, 5.0 * x, v * v
    return t.out(
        [
            g.gradient(q, v, output_gradients=tf.constant([10.0, 100.0])),
            g.gradient([y, z], x, output_gradients=[tf.constant(2.0), tf.constant(0.5)]),
            g.gradient([q, y], [v, x], output_gradients=[tf.constant([1.0, 0.0]), tf.constant(-1.0)]),
        ]
    )


@case("tape", replicas=0)
def output_gradients_of_wrong_shape(t):
    tf, v = t.tf, t.tf.constant([1.0, 2.0])
    with tf.GradientTape() as g:
        g.watch(v)
        y = v * v
    return t.raises(lambda: g.gradient(y, v, output_gradients=tf.constant([1.0, 2.0, 3.0])))


@case("tape", replicas=0)
def intermediate_sources(t):
    tf, x = t.tf, t.tf.constant(3.0)
    with tf.GradientTape(persistent=True) as g:
        g.watch(x)
        y = x * x
        z = y * y
        w = z + y
    return t.out([g.gradient(z, x), g.gradient(z, y), g.gradient(y, x), g.gradient(w, [x, y, z])])


@case("tape", replicas=0, mode=BOTH)
def intermediate_activations_of_a_network(t):
    tf = t.tf
    w = tf.Variable([[1.0, -1.0], [0.5, 2.0]])

    def run(x):
        with tf.GradientTape() as g:
            h = tf.nn.relu(x @ w)
            y = tf.reduce_sum(h * h)
        return g.gradient(y, [h, w])

    return t.out(t.fn(run)(tf.constant([[1.0, 2.0], [-3.0, 0.5]])))


@case("tape", replicas=0)
def unconnected_gradients(t):
    tf = t.tf
    x, v, y = tf.ones([2, 2]), tf.Variable([1.0, 2.0]), tf.constant(3.0)

    def g(src, **k):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            z = y * 2.0
        return t.out(tape.gradient(z, src, **k))

    U = tf.UnconnectedGradients
    return [
        g(x),
        g(v),
        g(x, unconnected_gradients=U.ZERO),
        g(v, unconnected_gradients="zero"),
        g(x, unconnected_gradients="none"),
        g(x, unconnected_gradients=U.NONE),
        g({"a": x, "b": [y, v]}, unconnected_gradients=U.ZERO),
        g([x, y]),
    ]


@case("tape", replicas=0)
def target_none(t):
    tf, x = t.tf, t.tf.constant(1.0)
    with tf.GradientTape() as g:
        g.watch(x)
    return t.raises(lambda: g.gradient(None, x))


@case("tape", replicas=0, mode=BOTH)
def unused_outputs_do_not_disturb(t):
    tf = t.tf

    def run(x):
        with tf.GradientTape() as g:
            g.watch(x)
            a, b, c = tf.split(x * x, 3)
            unused = tf.exp(c)
            y = a + 2.0 * b
        return g.gradient(y, x)

    return t.out(t.fn(run)(tf.constant([1.0, 2.0, 3.0])))


# --- life of a tape ---------------------------------------------------------------


@case("tape", replicas=0)
def entering_again_continues(t):
    tf, x = t.tf, t.tf.constant(3.0)
    g = tf.GradientTape()
    with g:
        g.watch(x)
        y = 2.0 * x
    u = y + 100.0
    with g:
        z = 2.0 * y
    return t.out(g.gradient(z, x))


@case("tape", replicas=0)
def entering_twice_is_refused(t):
    with t.tf.GradientTape() as g:
        return t.raises(g.__enter__)


@case("tape", replicas=0)
def stop_recording(t):
    tf = t.tf
    v = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as g:
        x2 = v * 2.0
        with g.stop_recording():
            y = x2 * x2
            inner = g.gradient(x2, v)
        z = x2 * x2
    return [t.out(x) for x in (inner, g.gradient(y, x2), g.gradient(y, v), g.gradient(z, x2), g.gradient(z, v))]


@case("tape", replicas=0)
def reset(t):
    tf, v = t.tf, t.tf.Variable(3.0)
    with tf.GradientTape() as g:
        loss = v * v
        a = len(g.watched_variables())
        g.reset()
        b = len(g.watched_variables())
        loss += v * v
    return [a, b, t.out(g.gradient(loss, v)), t.raises(lambda: g.reset())]


@case("tape", replicas=0)
def usable_after_an_exception(t):
    tf, x = t.tf, t.tf.constant(3.0)
    try:
        with tf.GradientTape() as g:
            g.watch(x)
            y = x * x
            raise KeyError("k")
    except KeyError:
        pass
    with tf.GradientTape() as h:
        h.watch(x)
        z = x * 2.0
    return [t.out(g.gradient(y, x)), t.out(h.gradient(z, x))]


@case("tape", replicas=0)
def a_tape_per_step(t):
    tf, v = t.tf, t.tf.Variable(1.0)
    out = []
    for k in range(3):
        with tf.GradientTape() as g:
            y = v * v * float(k + 1)
        d = g.gradient(y, v)
        v.assign_sub(0.1 * d)
        out.append(t.out(d))
    return out + [t.out(v)]


@case("tape", replicas=0)
def exit_stack_of_tapes(t):
    tf, x = t.tf, t.tf.constant(2.0)
    with contextlib.ExitStack() as stack:
        tapes = [stack.enter_context(tf.GradientTape()) for _ in range(3)]
        for g in tapes:
            g.watch(x)
        y = x**3.0
    return [t.out(g.gradient(y, x)) for g in tapes]


# --- several tapes ----------------------------------------------------------------


@case("tape", replicas=0, mode=BOTH)
def two_tapes_with_a_shared_variable(t):
    tf = t.tf
    a, b, shared = tf.Variable(1.0), tf.Variable(2.0), tf.Variable([3.0, -1.0])

    def run():
        with tf.GradientTape() as g1:
            l1 = a * tf.reduce_sum(shared * shared)
        with tf.GradientTape() as g2:
            l2 = b * b * tf.reduce_sum(shared)
        d1 = g1.gradient(l1, [a, shared])
        d2 = g2.gradient(l2, [b, shared])
        return d1[0], d2[0], d1[1] + d2[1]

    return t.out(t.fn(run)())


@case("tape", replicas=0, mode=BOTH)
def three_losses_summed_over_tapes(t):
    tf = t.tf
    trunk, h1, h2, h3 = (tf.Variable(x) for x in ([0.5, 1.0], [1.0, 2.0], [3.0, 4.0], [-1.0, 0.0]))

    def run(x):
        total = tf.zeros([2])
        heads = []
        for h in (h1, h2, h3):
            with tf.GradientTape() as g:
                y = tf.reduce_sum(tf.tanh(x * trunk) * h)
            dt, dh = g.gradient(y, [trunk, h])
            total += dt
            heads.append(dh)
        return total, heads

    return t.out(t.fn(run)(tf.constant([0.3, -0.7])))


# --- higher order -----------------------------------------------------------------


@case("tape_higher", replicas=0)
def persistent_tape_in_its_own_block(t):
    tf, x = t.tf, t.tf.constant(3.0)
    with tf.GradientTape(persistent=True) as g:
        g.watch(x)
        y = x**3.0
        d1 = g.gradient(y, x)
        d2 = g.gradient(d1, x)
    return t.out([d1, d2, g.gradient(d2, x)])


@case("tape_higher", replicas=0)
def inner_gradient_taken_outside_the_outer_block(t):
    tf, x = t.tf, t.tf.constant(3.0)
    with tf.GradientTape(persistent=True) as a:
        a.watch(x)
        with tf.GradientTape(persistent=True) as b:
            b.watch(x)
            y = x * x
            z = y * y
        d = b.gradient(z, x)
    e = b.gradient(z, x)
    return [t.out(v) for v in (a.gradient(d, x), a.gradient(e, x), a.gradient(z, y))]


@case("tape_higher", replicas=0, mode=BOTH)
def hessian_vector_product(t):
    tf = t.tf
    v = tf.constant([1.0, -2.0])

    def run(x):
        with tf.GradientTape() as a:
            a.watch(x)
            with tf.GradientTape() as b:
                b.watch(x)
                y = tf.reduce_sum(tf.exp(x)) * x[0]
            d = b.gradient(y, x)
            s = tf.reduce_sum(d * v)
        return a.gradient(s, x)

    return t.out(t.fn(run)(tf.constant([0.5, 1.0])))


@case("tape_higher", replicas=0, mode=BOTH)
def gradient_penalty(t):
    tf = t.tf
    w = tf.Variable([[0.5, -0.3], [0.8, 0.1]])

    def run(x):
        with tf.GradientTape() as a:
            with tf.GradientTape() as b:
                b.watch(x)
                y = tf.reduce_sum(tf.tanh(x @ w))
            d = b.gradient(y, x)
            penalty = tf.reduce_mean((tf.sqrt(tf.reduce_sum(d * d, axis=1)) - 1.0) ** 2.0)
        return penalty, a.gradient(penalty, w)

    return t.out(t.fn(run)(tf.constant([[1.0, 2.0], [0.3, -0.4]])))


@case("tape_higher", replicas=0)
def outer_gradient_of_a_constant_inner_gradient(t):
    tf, x = t.tf, t.tf.constant(3.0)
    with tf.GradientTape() as a:
        a.watch(x)
        with tf.GradientTape() as b:
            b.watch(x)
            y = 4.0 * x
        d = b.gradient(y, x)
        z = d * x * x
    return [t.out(d), t.out(a.gradient(z, x))]


@case("tape_higher", replicas=0)
def mixed_second_derivatives(t):
    tf = t.tf
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as a:
        with tf.GradientTape() as b:
            y = v * v * w * w * w
        dv, dw = b.gradient(y, [v, w])
    return t.out([dv, dw, a.gradient(dv, [v, w]), a.gradient(dw, [v, w])])


# --- jacobians --------------------------------------------------------------------


@case("jacobian", replicas=0, mode=BOTH)
def of_a_vector(t):
    def run(x):
        with t.tf.GradientTape() as g:
            g.watch(x)
            y = x * x * t.tf.constant([3.0, 4.0])
        return g.jacobian(y, x)

    return t.out(t.fn(run)(t.tf.constant([1.0, 2.0])))


@case("jacobian", replicas=0)
def persistent_without_vectorisation(t):
    tf, x = t.tf, t.tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as g:
        g.watch(x)
        y = x * x * x
    return t.out([g.jacobian(y, x, experimental_use_pfor=False), g.jacobian(y, x)])


@case("jacobian", replicas=0, mode=BOTH)
def batch_jacobian(t):
    def run(x):
        with t.tf.GradientTape(persistent=True) as g:
            g.watch(x)
            y = x * x * x
            z = t.tf.matmul(x, t.tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])) * x[:, :1]
        return g.batch_jacobian(y, x), g.batch_jacobian(z, x)

    return t.out(t.fn(run)(t.tf.constant([[1.0, 2.0], [3.0, 4.0]])))


@case("jacobian", replicas=0)
def batch_jacobian_of_higher_rank(t):
    tf, x = t.tf, t.tf.constant([[[1.0], [2.0]], [[3.0], [4.0]]])
    with tf.GradientTape() as g:
        g.watch(x)
        y = tf.reshape(x, [2, 2, 1, 1]) * 2.0 * tf.reshape(x, [2, 2, 1, 1])
    return t.out(g.batch_jacobian(y, x))


@case("jacobian", replicas=0)
def uses_up_a_plain_tape(t):
    tf, x = t.tf, t.tf.constant([1.0, 2.0])
    with tf.GradientTape() as g:
        g.watch(x)
        y = x * x
    g.jacobian(y, x)
    return [t.raises(lambda: g.jacobian(y, x)), t.raises(lambda: g.gradient(y, x))]


# --- custom gradients and control -------------------------------------------------


@case("custom_gradient", replicas=0, mode=BOTH)
def replaces_the_gradient(t):
    @t.tf.custom_gradient
    def f(z):
        return z * z, lambda dy: dy * 100.0

    return grads(t, lambda x: f(x) * 2.0, [3.0, 4.0])


@case("custom_gradient", replicas=0)
def second_order(t):
    tf, x = t.tf, t.tf.constant(2.0)

    @tf.custom_gradient
    def f(z):
        return z * z * z, lambda dy: dy * z * 10.0

    with tf.GradientTape() as a:
        a.watch(x)
        with tf.GradientTape() as b:
            b.watch(x)
            y = f(x)
        d = b.gradient(y, x)
    return [t.out(d), t.out(a.gradient(d, x))]


@case("custom_gradient", replicas=0)
def too_few_gradients(t):
    tf, x = t.tf, t.tf.constant(3.0)

    @tf.custom_gradient
    def f(z):
        return z * 1.0, lambda dy: []

    with tf.GradientTape() as g:
        g.watch(x)
        y = f(x)
    return t.raises(lambda: g.gradient(y, x))


@case("custom_gradient", replicas=0, mode=BOTH)
def clipped_gradient(t):
    tf = t.tf

    @tf.custom_gradient
    def clip(z):
        return tf.identity(z), lambda dy: tf.clip_by_value(dy, -1.0, 1.0)

    return grads(t, lambda x: clip(x) * tf.constant([5.0, 0.5, -3.0]), [1.0, 2.0, 3.0])


@case("custom_gradient", replicas=0, mode=BOTH)
def with_variables_inside(t):
    tf = t.tf
    w = tf.Variable(3.0)

    @tf.custom_gradient
    def f(x):
        y = x * w

        def grad(dy, variables=None):
            return dy * 10.0, [dy * 20.0 for _ in variables]

        return y, grad

    def run(x):
        with tf.GradientTape() as g:
            g.watch(x)
            y = f(x)
        return g.gradient(y, [x, w])

    return t.out(t.fn(run)(tf.constant(2.0)))


@case("custom_gradient", replicas=0, mode=BOTH)
def recomputed_gradient(t):
    tf = t.tf
    w = tf.Variable([[0.5, -0.2], [0.1, 0.9]])
    f = tf.recompute_grad(lambda x: tf.tanh(x @ w) * x)

    def run(x):
        with tf.GradientTape() as g:
            g.watch(x)
            y = tf.reduce_sum(f(x))
        return y, g.gradient(y, [x, w])

    return t.out(t.fn(run)(tf.constant([[1.0, 2.0]])))


@case("tape", replicas=0, mode=BOTH)
def stop_gradient(t):
    tf = t.tf
    return [
        grads(t, lambda x: tf.stop_gradient(x) * x, 3.0),
        grads(t, lambda x: tf.stop_gradient(x * x) + x, [1.0, 2.0]),
        grads(t, lambda a, b: tf.stop_gradient(a) * b, 2.0, 5.0, unconnected_gradients="zero"),
    ]


@case("tape", replicas=0, mode=BOTH)
def conditional_gradients(t):
    tf = t.tf
    f = lambda x: tf.cond(x > 2.0, lambda: x * x, lambda: x * 10.0)
    return [grads(t, f, 3.0), grads(t, f, 1.0)]


@case("tape", replicas=0)
def while_loop_gradients(t):
    tf, x = t.tf, t.tf.constant(2.0)
    with tf.GradientTape() as g:
        g.watch(x)
        y = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * x), [tf.constant(0), x])[1]
    return [t.out(y), t.out(g.gradient(y, x))]


@case("tape", replicas=0)
def empty_tensors(t):
    tf, x = t.tf, t.tf.zeros([0, 2])
    with tf.GradientTape() as g:
        g.watch(x)
        y = tf.reduce_sum(x * 2.0)
    return t.out(g.gradient(y, x))


@case("tape", replicas=0)
def python_maximum_of_variables(t):
    tf = t.tf
    vs = [tf.Variable(float(k)) for k in (1, 2, 3)]
    with tf.GradientTape() as g:
        y = max(vs, key=lambda v: float(v.numpy())) * 1.0
    return t.out(g.gradient(y, vs))
