"""A generative adversarial network as in the DCGAN tutorial: two models, two tapes, one strategy, one import line.

It learns to draw the handwritten digits that ship with scikit-learn, on 2 replicas.

    python examples/gan_two_tapes.py
"""

import argparse
import pathlib

import matplotlib
import numpy as np
from sklearn.datasets import load_digits

import mirrored.tf as tf

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "gan_two_tapes.png"
GLOBAL_BATCH, NOISE = 64, 16


def load():
    """Images f32[1797, 8, 8, 1], -1 to 1."""
    return (load_digits().images[..., None] / 8 - 1).astype(np.float32)


def make_generator():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((NOISE,)),
            layers.Dense(4 * 4 * 32, use_bias=False),
            layers.BatchNormalization(synchronized=True),  # statistics over both replicas
            layers.LeakyReLU(),
            layers.Reshape((4, 4, 32)),
            layers.Conv2DTranspose(16, 3, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Conv2D(1, 3, padding="same", activation="tanh"),
        ]
    )


def make_discriminator():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Dropout(0.3),
            layers.Conv2D(32, 3, padding="same"),
            layers.LeakyReLU(),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def train(epochs, strategy):
    """Trains; returns the losses of both per epoch, and the generator."""
    tf.keras.utils.set_random_seed(0)
    images = load()
    noise = np.random.default_rng(0).normal(size=(len(images), NOISE)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((images, noise)).shuffle(2000, seed=0)
    dataset = strategy.experimental_distribute_dataset(dataset.batch(GLOBAL_BATCH, drop_remainder=True))

    with strategy.scope():
        generator, discriminator = make_generator(), make_discriminator()
        generator_optimizer = tf.keras.optimizers.Adam(1e-3, beta_1=0.5)
        discriminator_optimizer = tf.keras.optimizers.Adam(1e-3, beta_1=0.5)
        generator_optimizer.build(generator.trainable_variables)
        discriminator_optimizer.build(discriminator.trainable_variables)
        cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction=None)

    def mean_over_replicas(target, output):
        losses = cross_entropy(target * tf.ones_like(output), output)
        return tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)

    def train_step(images, noise):
        with tf.GradientTape() as generator_tape, tf.GradientTape() as discriminator_tape:
            drawn = generator(noise, training=True)
            real, fake = discriminator(images, training=True), discriminator(drawn, training=True)
            generator_loss = mean_over_replicas(1.0, fake)
            discriminator_loss = mean_over_replicas(0.9, real) + mean_over_replicas(0.0, fake)
        for tape, loss, model, optimizer in (
            (generator_tape, generator_loss, generator, generator_optimizer),
            (discriminator_tape, discriminator_loss, discriminator, discriminator_optimizer),
        ):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return generator_loss, discriminator_loss

    @tf.function
    def step(images, noise):
        losses = strategy.run(train_step, args=(images, noise))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    history = []
    for epoch in range(epochs):
        losses = [[float(loss) for loss in step(*batch)] for batch in dataset]
        history.append(np.mean(losses, axis=0))
        print(f"epoch {epoch + 1}: generator {history[-1][0]:.3f}, discriminator {history[-1][1]:.3f}")
    return np.array(history), generator


def sample(generator, count=32):
    """Drawn images f32[count, 8, 8]."""
    noise = np.random.default_rng(1).normal(size=(count, NOISE)).astype(np.float32)
    return np.asarray(generator(noise, training=False))[..., 0]


def draw(history, images, path=PICTURE):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.8), dpi=70)
    axes[0].plot(history, label=["generator", "discriminator"])
    axes[0].set(title="losses", xlabel="epoch")
    axes[0].legend(frameon=False)
    axes[1].imshow(np.vstack([np.hstack(images[row * 8 : row * 8 + 8]) for row in range(4)]), cmap="gray_r")
    axes[1].set(title="what it draws", xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--replicas", type=int, default=2)
    options = parser.parse_args()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * options.replicas
    )
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(options.replicas)])
    history, generator = train(options.epochs, strategy)
    draw(history, sample(generator))


if __name__ == "__main__":
    main()
