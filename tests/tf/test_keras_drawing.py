"""`tf.random` and `keras.random` in the layers of a Keras model, in `fit` and custom steps, as in a VAE."""

from __future__ import annotations

import contextlib

import jax
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import LossScaleWarning

ROWS = np.zeros((8, 3), "float32")
STRATEGIES = {
    "none": contextlib.nullcontext,
    "one": lambda: tf.distribute.MirroredStrategy(jax.devices()[:1]).scope(),
    "two": lambda: tf.distribute.MirroredStrategy(jax.devices()[:2]).scope(),
    "deterministic": lambda: tf.distribute.MirroredStrategy(jax.devices()[:2], deterministic=True).scope(),
}


class Noise(tf.keras.layers.Layer):
    """Adds random numbers, also when it predicts."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, x):
        return x + self.draw(x)


def normal(x):
    return tf.random.normal(tf.shape(x))


def noisy(draw=normal, scope=contextlib.nullcontext, model=tf.keras.Model, **options):
    with scope():
        inputs = tf.keras.Input((3,))
        made = model(inputs, Noise(draw)(tf.keras.layers.Dense(3, kernel_initializer="zeros")(inputs)))
        made.compile("sgd", "mse", **options)
    return made


def predicted(model):
    return model.predict(ROWS, batch_size=4, verbose=0)


def all_differ(values):
    return len(np.unique(np.asarray(values))) == np.size(values)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scope", STRATEGIES)
@pytest.mark.first(1)
@pytest.mark.long
def test_every_step_and_row_draws_other_numbers_which_a_seed_repeats(scope):
    model = noisy(scope=STRATEGIES[scope])

    def trained():
        tf.random.set_seed(5)
        model.layers[1].set_weights([np.zeros((3, 3)), np.zeros(3)])
        losses = model.fit(ROWS, ROWS, batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"]
        tested = [model.evaluate(ROWS, ROWS, batch_size=4, verbose=0) for _ in range(2)]
        return [*losses, *tested], np.concatenate([predicted(model), predicted(model)])

    (losses, rows), (again, same) = trained(), trained()
    assert all_differ(losses)
    assert all_differ(rows)
    np.testing.assert_array_equal(losses, again)
    np.testing.assert_array_equal(rows, same)


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 2}], ids=str)
@pytest.mark.first(1)
@pytest.mark.long
def test_steps_that_are_eager_or_executed_together_draw_other_numbers(options):
    model = noisy(scope=STRATEGIES["two"], **options)
    losses = model.fit(ROWS, ROWS, batch_size=2, epochs=3, verbose=0).history["loss"]
    assert all_differ(losses)
    assert all_differ(predicted(model))


DRAWS = {
    "uniform": lambda x: tf.random.uniform(tf.shape(x)),
    "truncated_normal": lambda x: tf.random.truncated_normal(tf.shape(x)),
    "with a seed": lambda x: tf.random.normal(tf.shape(x), seed=3),
    "keras.random without a seed": lambda x: tf.keras.random.normal(tf.shape(x)),
    "twice": lambda x: 2 * tf.random.normal(tf.shape(x)) + tf.random.normal(tf.shape(x)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.first(1)
@pytest.mark.long
def test_all_stateful_functions_draw(draw):
    model = noisy(DRAWS[draw], STRATEGIES["two"])
    assert all_differ([*predicted(model), *predicted(model)])
    assert all_differ(model.fit(ROWS, ROWS, batch_size=8, epochs=3, verbose=0).history["loss"])


def test_keras_random_with_an_integer_seed_repeats_as_on_tensorflow():
    model = noisy(lambda x: tf.keras.random.normal(tf.shape(x), seed=1), STRATEGIES["two"])
    first, second = np.split(predicted(model), 2)
    np.testing.assert_array_equal(first, second)
    assert all_differ(first)


@pytest.mark.long
def test_two_draws_of_one_step_differ():
    model = noisy(lambda x: tf.random.normal(tf.shape(x)) - tf.random.normal(tf.shape(x)), STRATEGIES["two"])
    assert all_differ(predicted(model))


@pytest.mark.long
def test_iterations_of_a_loop_draw_other_numbers():
    class Summing(tf.keras.layers.Layer):
        def call(self, x):
            total = tf.zeros_like(x)
            for _ in tf.range(3):
                total += tf.random.normal(tf.shape(x))
            return total, tf.random.normal(tf.shape(x))

    with STRATEGIES["two"]():
        inputs = tf.keras.Input((3000,))
        model = tf.keras.Model(inputs, Summing()(inputs))
    total, single = model.predict(np.zeros((2, 3000), "float32"), verbose=0)
    # The standard deviation of a sum of three independent numbers; that of a number taken three times is 3.
    np.testing.assert_allclose([total.std(), single.std()], [3**0.5, 1], rtol=0.06)
    assert all_differ([total[:, :5], single[:, :5]])


@pytest.mark.long
def test_a_generator_of_a_layer_advances_in_fit():
    generator = tf.random.Generator.from_seed(1)
    model = noisy(lambda x: generator.normal(tf.shape(x)))
    before = generator.state.numpy()
    model.fit(ROWS, ROWS, epochs=2, batch_size=4, verbose=0)
    assert generator.state.numpy()[2] == before[2] + 4
    generator.reset_from_seed(1)
    first = predicted(model)
    assert all_differ([*first, *predicted(model)])
    generator.reset_from_seed(1)
    np.testing.assert_array_equal(predicted(model), first)


@pytest.mark.long
def test_draws_that_begin_only_with_another_shape_of_batch():
    def draw(x):
        return tf.random.normal(tf.shape(x)) if x.shape[0] == 3 else tf.zeros_like(x)

    model = noisy(draw, STRATEGIES["two"])
    assert not predicted(model).any()
    assert all_differ(model.predict(ROWS[:3], verbose=0))


@pytest.mark.parametrize("is_read", [True, False])
def test_a_callback_reads_and_assigns_variables_after_the_first_step(is_read):
    """It refers to the variables as globals: the `model` of a callback would sync the state."""
    model = noisy(scope=STRATEGIES["two"])
    rate, kernel = model.optimizer._learning_rate, model.layers[1].kernel
    seen = []

    def assign(batch, logs):
        if is_read:
            seen.append(kernel.numpy().shape)
        if batch == 0:
            rate.assign(0.0)

    end = tf.keras.callbacks.LambdaCallback(on_train_batch_end=assign)
    model.fit(ROWS, ROWS, batch_size=4, callbacks=[end], verbose=0)
    assert float(rate.numpy()) == 0.0
    assert seen == [(3, 3)] * 2 * is_read


def test_setting_the_seed_of_keras_sets_that_of_tensorflow():
    def drawn(seed):
        tf.keras.utils.set_random_seed(seed)
        return tf.random.normal([4]).numpy()

    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert all_differ([drawn(1), drawn(2)])


class VAE(tf.keras.Model):
    """The variational autoencoder of the Keras guide, with a `train_step` in TensorFlow's form."""

    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder
        self.total_loss_tracker = tf.keras.metrics.Mean(name="total_loss")
        self.kl_loss_tracker = tf.keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.kl_loss_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder(data)
            reconstruction = self.decoder(z)
            reconstruction_loss = tf.reduce_mean(
                tf.reduce_sum(tf.keras.losses.binary_crossentropy(data, reconstruction), axis=(1, 2))
            )
            kl_loss = -0.5 * (1 + z_log_var - tf.square(z_mean) - tf.exp(z_log_var))
            kl_loss = tf.reduce_mean(tf.reduce_sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {"loss": self.total_loss_tracker.result(), "kl_loss": self.kl_loss_tracker.result()}


class Sampling(tf.keras.layers.Layer):
    """Uses (z_mean, z_log_var) to sample z, the vector encoding a digit."""

    def call(self, inputs):
        z_mean, z_log_var = inputs
        batch = tf.shape(z_mean)[0]
        dim = tf.shape(z_mean)[1]
        epsilon = tf.random.normal(shape=(batch, dim))
        return z_mean + tf.exp(0.5 * z_log_var) * epsilon


@pytest.mark.long
def test_the_vae_of_the_keras_guide_trains_on_two_replicas():
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(0)
    with STRATEGIES["two"]():
        images = tf.keras.Input(shape=(8, 8, 1))
        x = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(images)
        x = layers.Dense(8, activation="relu")(layers.Flatten()(x))
        z_mean, z_log_var = layers.Dense(2, name="z_mean")(x), layers.Dense(2, name="z_log_var")(x)
        encoder = tf.keras.Model(images, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])], name="encoder")
        latent = tf.keras.Input(shape=(2,))
        x = layers.Reshape((4, 4, 4))(layers.Dense(64, activation="relu")(latent))
        x = layers.Conv2DTranspose(4, 3, activation="relu", strides=2, padding="same")(x)
        decoder = tf.keras.Model(latent, layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x))
        vae = VAE(encoder, decoder)
        vae.compile(optimizer=tf.keras.optimizers.Adam(0.01))
    digits = (np.random.default_rng(0).random((64, 8, 8, 1)) < 0.2).astype("float32")
    # The guide averages over a replica's examples, so on TensorFlow, too, the step is too large on two replicas.
    with pytest.warns(LossScaleWarning, match="averaged over the 8 examples of one replica"):
        history = vae.fit(digits, epochs=4, batch_size=16, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    assert np.isfinite(history["kl_loss"]).all()
    # The replicas draw different numbers for equal images.
    drawn = encoder.predict(np.repeat(digits[:1], 4, 0), verbose=0)[2]
    assert all_differ(drawn)


@pytest.mark.long
def test_replicas_of_a_custom_step_draw_different_numbers():
    class Stepping(tf.keras.Model):
        def test_step(self, data):
            return {"drawn": tf.reduce_mean(tf.abs(self(data[0])))}

        def predict_step(self, data):
            return self(data[0] if isinstance(data, tuple) else data)

    model = noisy(scope=STRATEGIES["two"], model=Stepping)
    assert all_differ([*predicted(model), *predicted(model)])
    assert all_differ([model.evaluate(ROWS, ROWS, verbose=0, return_dict=True)["drawn"] for _ in range(2)])
