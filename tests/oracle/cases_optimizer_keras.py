# ruff: noqa
"""Keras optimizers, models, losses and metrics, alone and under a strategy."""

from oracle import case

BOTH = ("eager", "function")
X = [[0.0, 1.0], [1.0, 0.5], [2.0, -1.0], [3.0, 0.0], [-1.0, 1.0], [0.5, 0.5], [1.5, -0.5], [-2.0, 0.25]]
Y = [[1.0], [2.0], [2.5], [4.0], [0.0], [1.25], [2.0], [-1.0]]


def data(t):
    return t.np.array(X, "float32"), t.np.array(Y, "float32")


def in_scope(t, make):
    if t.strategy is None:
        return make()
    with t.strategy.scope():
        return make()


def mlp(t, seed=1):
    """Dense(3, tanh) -> Dense(1) with fixed weights."""
    K, np = t.tf.keras, t.np
    m = K.Sequential([K.Input((2,)), K.layers.Dense(3, activation="tanh"), K.layers.Dense(1)])
    m.set_weights(
        [
            np.array([[0.1, -0.2, 0.3], [0.4, 0.5, -0.6]], "float32") * seed,
            np.array([0.0, 0.1, -0.1], "float32"),
            np.array([[0.5], [-0.4], [0.3]], "float32"),
            np.array([0.2], "float32"),
        ]
    )
    return m


def weights(t, m):
    return [t.out(w) for w in m.get_weights()]


def dist(t, batch, *arrays):
    ds = t.tf.data.Dataset.from_tensor_slices(arrays).batch(batch)
    return t.strategy.experimental_distribute_dataset(ds)


OPTIMIZERS = {
    "SGD": lambda K: K.SGD(0.1),
    "Momentum": lambda K: K.SGD(0.1, momentum=0.9),
    "Nesterov": lambda K: K.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda K: K.Adam(0.05),
    "AMSGrad": lambda K: K.Adam(0.05, amsgrad=True),
    "AdamW": lambda K: K.AdamW(0.05, weight_decay=0.01),
    "RMSprop": lambda K: K.RMSprop(0.01),
    "Adagrad": lambda K: K.Adagrad(0.1),
    "Adamax": lambda K: K.Adamax(0.05),
}


# --- optimizers -------------------------------------------------------------------


@case("optimizer", replicas=(0, 2, 4), params=list(OPTIMIZERS), tol=1e-4)
def four_steps(t):
    tf = t.tf
    v, w, o = in_scope(t, lambda: (tf.Variable([1.0, -2.0]), tf.Variable(0.5), OPTIMIZERS[t.p](tf.keras.optimizers)))

    def f(k):
        n = 1.0 if t.strategy is None else 1.0 / t.n
        x = tf.constant(1.0) if t.strategy is None else (t.fid() + 0.5) * 2.0 * n
        with tf.GradientTape() as g:
            loss = (tf.reduce_sum(v * v) * w + tf.reduce_sum(v) * k) * x * n
        d = g.gradient(loss, [v, w])
        o.apply_gradients(zip(d, [v, w]))

    for k in (1.0, -0.5, 2.0, 0.25):
        f(k) if t.strategy is None else t.strategy.run(f, args=(k,))
    return [t.out(v), t.out(w), int(o.iterations.numpy())]


@case("optimizer", replicas=(1, 2))
def slots_are_mirrored(t):
    tf = t.tf
    v, o = in_scope(t, lambda: (tf.Variable(1.0), tf.keras.optimizers.Adam(0.1)))
    t.strategy.run(lambda: o.apply_gradients([(t.fid() + 1.0, v)]))
    return [t.out(v), [t.out(x) for x in o.variables]]


@case("optimizer")
def unknown_variable(t):
    tf = t.tf
    v, o = in_scope(t, lambda: (tf.Variable(1.0), tf.keras.optimizers.SGD(0.5)))
    t.strategy.run(lambda: o.apply_gradients([(tf.constant(1.0), v)]))
    w = t.var(1.0)
    return [t.raises(lambda: t.strategy.run(lambda: o.apply_gradients([(tf.constant(1.0), w)]))), t.out(w)]


@case("optimizer", mode=BOTH)
def learning_rate_changes(t):
    tf = t.tf
    v, o = in_scope(t, lambda: (tf.Variable(0.0), tf.keras.optimizers.SGD(0.1)))

    def f():
        o.apply_gradients([(tf.constant(1.0), v)])

    in_scope(t, lambda: o.build([v]))
    step = t.fn(lambda: t.strategy.run(f))
    step()
    a = t.out(v)
    o.learning_rate = 0.5
    step()
    return [a, t.out(v), t.out(float(o.learning_rate.numpy()))]


@case("optimizer", replicas=(1, 2, 4), mode=BOTH)
def linear_regression_equals_one_device(t):
    tf = t.tf
    x = t.np.arange(8, dtype="float32").reshape(8, 1)
    y = 3.0 * x + 1.0
    w, b, o = in_scope(t, lambda: (tf.Variable(0.0), tf.Variable(0.0), tf.keras.optimizers.SGD(0.01)))

    def f(x, y):
        with tf.GradientTape() as g:
            loss = tf.nn.compute_average_loss(tf.square(x[:, 0] * w + b - y[:, 0]), global_batch_size=8)
        o.apply_gradients(zip(g.gradient(loss, [w, b]), [w, b]))
        return loss

    step = t.fn(lambda x, y: t.strategy.reduce("SUM", t.strategy.run(f, args=(x, y)), axis=None))
    out = []
    for _ in range(3):
        for bx, by in dist(t, 8, x, y):
            out.append(t.out(step(bx, by)))
    return [out, t.out(w), t.out(b)]


@case("optimizer", replicas=(2, 4), tol=1e-4)
def uneven_batches_weighted_by_the_global_batch(t):
    tf = t.tf
    x, y = data(t)
    w, o = in_scope(t, lambda: (tf.Variable([[0.1], [0.2]]), tf.keras.optimizers.Adam(0.1)))

    def f(x, y):
        with tf.GradientTape() as g:
            loss = tf.reduce_sum(tf.square(x @ w - y)) / 5.0
        o.apply_gradients([(g.gradient(loss, w), w)])
        return loss

    out = []
    for _ in range(2):
        for bx, by in dist(t, 5, x, y):
            out.append(t.out(t.strategy.reduce("SUM", t.strategy.run(f, args=(bx, by)), axis=None)))
    return [out, t.out(w)]


@case("optimizer", replicas=(0, 2), mode=BOTH, tol=1e-4)
def gradient_accumulation_by_hand(t):
    tf = t.tf
    v, acc, o = in_scope(t, lambda: (tf.Variable([1.0, 2.0]), tf.Variable([0.0, 0.0]), tf.keras.optimizers.Adam(0.1)))

    def micro(k):
        with tf.GradientTape() as g:
            loss = tf.reduce_sum(v * v) * k
        return g.gradient(loss, v)

    def f():
        d = micro(1.0) + micro(0.5)
        o.apply_gradients([(d / 2.0, v)])

    in_scope(t, lambda: o.build([v]))
    step = t.fn(f if t.strategy is None else (lambda: t.strategy.run(f)))
    step()
    step()
    return t.out(v)


# --- models in custom loops -------------------------------------------------------


@case("keras", replicas=(0, 1, 2, 4))
def forward_pass(t):
    m = in_scope(t, lambda: mlp(t))
    x = t.tf.constant(X)
    y = m(x) if t.strategy is None else t.strategy.run(lambda x: m(x) * (t.fid() + 1.0), args=(x,))
    return t.out(y)


def train(t, m, o, steps=3, batch=8, params=None):
    tf = t.tf
    x, y = data(t)
    in_scope(t, lambda: o.build(m.trainable_variables))  # slots before the first (compiled) step

    def f(x, y):
        with tf.GradientTape() as g:
            loss = tf.reduce_sum(tf.square(m(x) - y)) / float(batch)
        o.apply_gradients(zip(g.gradient(loss, m.trainable_variables), m.trainable_variables))
        return loss

    if t.strategy is None:
        step = t.fn(f)
        return [t.out(step(tf.constant(x), tf.constant(y))) for _ in range(steps)]
    step = t.fn(lambda x, y: t.strategy.reduce("SUM", t.strategy.run(f, args=(x, y)), axis=None))
    out = []
    for _ in range(steps):
        for bx, by in dist(t, batch, x, y):
            out.append(t.out(step(bx, by)))
    return out


@case("keras", replicas=(0, 1, 2, 4), mode=BOTH, params=["sgd", "adam"], tol=1e-4)
def custom_training_loop(t):
    K = t.tf.keras.optimizers
    m, o = in_scope(t, lambda: (mlp(t), K.SGD(0.1) if t.p == "sgd" else K.Adam(0.02)))
    losses = train(t, m, o)
    return [losses, weights(t, m)]


@case("keras", replicas=(2, 4), tol=1e-4)
def custom_training_loop_with_small_batches(t):
    m, o = in_scope(t, lambda: (mlp(t), t.tf.keras.optimizers.SGD(0.05, momentum=0.9)))
    return [train(t, m, o, steps=2, batch=4), weights(t, m)]


@case("keras", replicas=(0, 2, 4), mode=BOTH, tol=1e-4)
def two_models_two_tapes_one_adam(t):
    tf, np = t.tf, t.np
    K = tf.keras

    def make():
        trunk = K.Sequential([K.Input((2,)), K.layers.Dense(3, activation="tanh")])
        h1, h2 = (K.Sequential([K.Input((3,)), K.layers.Dense(1)]) for _ in range(2))
        trunk.set_weights([np.array([[0.1, -0.2, 0.3], [0.4, 0.5, -0.6]], "float32"), np.zeros(3, "float32")])
        h1.set_weights([np.array([[0.5], [-0.4], [0.3]], "float32"), np.zeros(1, "float32")])
        h2.set_weights([np.array([[-0.1], [0.2], [0.7]], "float32"), np.ones(1, "float32")])
        return trunk, h1, h2, K.optimizers.Adam(0.02)

    trunk, h1, h2, o = in_scope(t, make)
    in_scope(t, lambda: o.build(trunk.trainable_variables + h1.trainable_variables + h2.trainable_variables))
    x, y = data(t)

    def f(x, y):
        with tf.GradientTape() as g1:
            l1 = tf.reduce_sum(tf.square(h1(trunk(x)) - y)) / 8.0
        with tf.GradientTape() as g2:
            l2 = tf.reduce_sum(tf.square(h2(trunk(x)) + y)) / 8.0
        s = trunk.trainable_variables
        d1 = g1.gradient(l1, s + h1.trainable_variables)
        d2 = g2.gradient(l2, s + h2.trainable_variables)
        shared = [a + b for a, b in zip(d1[:2], d2[:2])]
        o.apply_gradients(zip(shared + d1[2:] + d2[2:], s + h1.trainable_variables + h2.trainable_variables))
        return l1 + l2

    if t.strategy is None:
        step = t.fn(f)
        losses = [t.out(step(tf.constant(x), tf.constant(y))) for _ in range(3)]
    else:
        step = t.fn(lambda a, b: t.strategy.reduce("SUM", t.strategy.run(f, args=(a, b)), axis=None))
        losses = [t.out(step(a, b)) for _ in range(3) for a, b in dist(t, 8, x, y)]
    return [losses, weights(t, trunk), weights(t, h1), weights(t, h2)]


@case("keras", replicas=(0, 2), tol=1e-4)
def functional_model_with_two_inputs(t):
    tf, np = t.tf, t.np
    K = tf.keras

    def make():
        a, b = K.Input((1,)), K.Input((1,))
        h = K.layers.Concatenate()([a, K.layers.Dense(2, activation="relu")(b)])
        m = K.Model([a, b], K.layers.Dense(1)(h))
        m.set_weights(
            [
                np.array([[1.0, -0.5]], "float32"),
                np.array([0.1, 0.3], "float32"),
                np.array([[0.2], [0.4], [-0.6]], "float32"),
                np.array([0.0], "float32"),
            ]
        )
        return m, K.optimizers.Adam(0.05)

    m, o = in_scope(t, make)
    a, b = np.array([[1.0], [2.0]], "float32"), np.array([[0.5], [-1.0]], "float32")

    def f():
        with tf.GradientTape() as g:
            loss = tf.reduce_mean(tf.square(m([a, b]) - 1.0))
        o.apply_gradients(zip(g.gradient(loss, m.trainable_variables), m.trainable_variables))
        return loss

    losses = [t.out(f() if t.strategy is None else t.strategy.run(f)) for _ in range(3)]
    return [losses, weights(t, m)]


@case("keras", replicas=(0, 2), tol=1e-4)
def embedding_and_layer_normalisation(t):
    tf, np = t.tf, t.np
    K = tf.keras

    def make():
        m = K.Sequential(
            [
                K.Input((2,), dtype="int32"),
                K.layers.Embedding(4, 3),
                K.layers.Flatten(),
                K.layers.LayerNormalization(),
                K.layers.Dense(1),
            ]
        )
        m.set_weights(
            [
                np.arange(12, dtype="float32").reshape(4, 3) ** 2 / 10.0,
                np.ones(6, "float32"),
                np.zeros(6, "float32"),
                np.array([[0.1], [-0.2], [0.3], [0.4], [-0.5], [0.6]], "float32"),
                np.zeros(1, "float32"),
            ]
        )
        return m, K.optimizers.SGD(0.1)

    m, o = in_scope(t, make)
    ids = tf.constant([[0, 1], [2, 3], [1, 1]])

    def f():
        with tf.GradientTape() as g:
            loss = tf.reduce_mean(tf.square(m(ids) - 1.0))
        d = [tf.convert_to_tensor(x) for x in g.gradient(loss, m.trainable_variables)]
        o.apply_gradients(zip(d, m.trainable_variables))
        return loss

    losses = [t.out(f() if t.strategy is None else t.strategy.run(f)) for _ in range(2)]
    return [losses, weights(t, m)]


@case("keras", replicas=(0, 2))
def regularisation_losses(t):
    tf, np = t.tf, t.np
    K = tf.keras

    def make():
        m = K.Sequential([K.Input((2,)), K.layers.Dense(1, kernel_regularizer=K.regularizers.L2(0.1))])
        m.set_weights([np.array([[1.0], [2.0]], "float32"), np.zeros(1, "float32")])
        return m

    m = in_scope(t, make)
    x, y = (tf.constant(a) for a in data(t))

    def f():
        with tf.GradientTape() as g:
            p = m(x)
            reg = tf.add_n(m.losses)
            loss = tf.reduce_mean(tf.square(p - y)) + tf.nn.scale_regularization_loss(reg)
        return loss, reg, g.gradient(loss, m.trainable_variables)

    return t.out(f() if t.strategy is None else t.strategy.run(f))


# --- compile / fit ----------------------------------------------------------------


@case("keras_fit", replicas=(0, 2, 4), tol=1e-4)
def fit_on_a_dataset(t):
    x, y = data(t)

    def make():
        m = mlp(t)
        m.compile(optimizer=t.tf.keras.optimizers.SGD(0.1), loss="mse")
        return m

    m = in_scope(t, make)
    h = m.fit(t.tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, verbose=0)
    return [t.out(h.history["loss"]), weights(t, m)]


@case("keras_fit", replicas=(0, 1, 2, 4), tol=1e-4)
def evaluate_and_predict(t):
    x, y = data(t)

    def make():
        m = mlp(t)
        m.compile(optimizer="sgd", loss="mse", metrics=["mae"])
        return m

    m = in_scope(t, make)
    r = m.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
    return [t.out({k: float(v) for k, v in r.items()}), t.out(m.predict(x, batch_size=4, verbose=0))]


@case("keras_fit", replicas=(0, 2), tol=1e-4)
def classification(t):
    K, np = t.tf.keras, t.np
    x = data(t)[0]
    labels = np.array([0, 1, 1, 1, 0, 1, 1, 0])

    def make():
        m = K.Sequential([K.Input((2,)), K.layers.Dense(2)])
        m.set_weights([np.array([[0.1, -0.2], [0.3, 0.4]], "float32"), np.zeros(2, "float32")])
        m.compile(
            optimizer=K.optimizers.Adam(0.1),
            loss=K.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return m

    m = in_scope(t, make)
    h = m.fit(x, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return [t.out({k: [float(a) for a in v] for k, v in h.history.items()}), weights(t, m)]


# --- metrics ----------------------------------------------------------------------


@case("metrics", replicas=(2, 4))
def mean_over_a_dataset(t):
    m = in_scope(t, lambda: t.tf.keras.metrics.Mean())
    for x in t.strategy.experimental_distribute_dataset(t.tf.data.Dataset.range(10).batch(4)):
        t.strategy.run(lambda a: (m.update_state(a), None)[1], args=(x,))
    return t.out(m.result())


@case("metrics", replicas=(0, 2), params=["MeanSquaredError", "MeanAbsoluteError", "BinaryAccuracy", "Sum"])
def other_metrics(t):
    tf = t.tf
    m = in_scope(t, lambda: getattr(tf.keras.metrics, t.p)())
    y, p = tf.constant([[0.0], [1.0], [1.0]]), tf.constant([[0.2], [0.4], [0.9]])

    def f():
        args = (p,) if t.p == "Sum" else (y, p)
        m.update_state(*args)

    f() if t.strategy is None else t.strategy.run(f)
    return t.out(m.result())
