# ruff: noqa
"""tf.function, alone and with a strategy."""

from oracle import case


@case("function", replicas=0)
def traces_per_shape_and_dtype(t):
    tf, n = t.tf, []

    @tf.function
    def f(x):
        n.append(1)
        return x + x

    out = []
    for x in (tf.constant(1.0), tf.constant(2.0), tf.constant([1.0]), tf.constant(1), tf.constant([5.0])):
        out.append([t.out(f(x)), len(n)])
    return out


@case("function", replicas=0)
def python_numbers_are_part_of_the_signature(t):
    tf, n = t.tf, []

    @tf.function
    def f(x, k):
        n.append(1)
        return x * k

    return [[t.out(f(tf.constant(3.0), k)), len(n)] for k in (2.0, 2.0, 5.0)]


@case("function", replicas=0)
def variable_updates(t):
    tf = t.tf
    v, w = tf.Variable(1.0), tf.Variable([1.0, 2.0])

    @tf.function
    def f(x):
        v.assign_add(x)
        w.assign(w * v)
        return v + 0.0

    out = [t.out(f(tf.constant(2.0))), t.out(f(tf.constant(1.0)))]
    return out + [t.out(v), t.out(w)]


@case("function", replicas=0)
def variable_created_once(t):
    tf = t.tf

    class M(tf.Module):
        v = None

        @tf.function
        def __call__(self, x):
            if self.v is None:
                self.v = tf.Variable(tf.ones([2]) * 3.0)
            return self.v * x

    m = M()
    return [t.out(m(tf.constant(2.0))), t.out(m(tf.constant(4.0))), t.out(m.v)]


@case("function", replicas=0)
def variable_created_on_every_call_is_refused(t):
    tf = t.tf

    @tf.function
    def f(x):
        v = tf.Variable(1.0)
        return v * x

    return t.raises(lambda: f(tf.constant(1.0)))


@case("function", replicas=0)
def nested_functions(t):
    tf = t.tf
    v = tf.Variable(1.25)
    inner = tf.function(lambda x: v * x)
    middle = tf.function(lambda x: inner(x) + 1.0)
    outer = tf.function(lambda x: middle(x) + inner(x))
    return t.out(outer(tf.constant(2.0)))


@case("function", replicas=0)
def input_signature(t):
    tf, n = t.tf, []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def f(x):
        n.append(1)
        return tf.reduce_sum(x)

    return [t.out(f(tf.constant([1.0, 2.0]))), t.out(f(tf.constant([1.0, 2.0, 3.0])))]


@case("function", replicas=0)
def options_are_accepted(t):
    tf = t.tf
    f = tf.function(lambda x: x * 2.0, jit_compile=True)
    g = tf.function(lambda x: x * 3.0, reduce_retracing=True)
    h = tf.function(autograph=False)(lambda x: x * 4.0)
    return t.out([k(tf.constant(1.5)) for k in (f, g, h)])


@case("function", replicas=(2, 4))
def distributed_step_is_traced_once_for_equal_shapes(t):
    v, n = t.var(0.0, "SUM"), []

    @t.tf.function
    def step(x):
        n.append(1)
        t.strategy.run(lambda a: v.assign_add(a), args=(x,))
        return v.read_value()

    out = [t.out(step(t.per([1.0 * i + k for i in range(t.n)]))) for k in range(3)]
    return [out, len(n), t.out(v)]


@case("function", replicas=(2, 4))
def reduce_inside_a_function(t):
    @t.tf.function
    def step(x):
        r = t.strategy.run(lambda a: (a * a, t.tf.reduce_sum(a)), args=(x,))
        return t.strategy.reduce("SUM", r[0], axis=0), t.strategy.reduce("MEAN", r[1], axis=None)

    return t.out(step(t.per([[1.0 + i, 2.0] for i in range(t.n)])))


@case("function")
def returning_a_variable_value(t):
    v = t.var([1.0, 2.0])
    f = t.tf.function(lambda: v.read_value() + 1.0)
    g = t.tf.function(lambda: t.strategy.run(lambda: v.read_value() * (t.fid() + 1.0)))
    return [t.out(f()), t.out(g())]


@case("function")
def compiled_assign_outside_replicas(t):
    v = t.var(1.0)
    f = t.tf.function(lambda x: v.assign_add(x) + 0.0)
    return [t.out(f(t.tf.constant(1.0))), t.out(f(t.tf.constant(2.0))), t.out(v)]


@case("function", replicas=(2, 4))
def counters_of_both_kinds(t):
    n = t.var(0, "ONLY_FIRST_REPLICA", trainable=False)
    m = t.var(0.0, "SUM", "ON_READ")

    @t.tf.function
    def step(x):
        def f(a):
            n.assign_add(1)
            m.assign_add(t.tf.reduce_sum(a))
            return a * 2.0

        return t.strategy.run(f, args=(x,))

    for _ in range(3):
        r = step(t.per([[1.0 * i, 1.0] for i in range(t.n)]))
    return [t.local(r), t.out(n), t.out(m), t.out(m.read_value())]
