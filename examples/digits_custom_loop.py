"""Image classification with a custom training loop, as TensorFlow's tutorials write it: one import line is ours.

A convnet learns the 1,797 handwritten digits that ship with scikit-learn, on 4 replicas.

    python examples/digits_custom_loop.py
"""

import argparse
import pathlib

import matplotlib
import numpy as np
from sklearn.datasets import load_digits

import mirrored.tf as tf

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "digits_custom_loop.png"
GLOBAL_BATCH, TEST = 64, 357


def load():
    """Images f32[n, 8, 8, 1] and labels i32[n], shuffled; for training and testing."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    return (images[TEST:], labels[TEST:]), (images[:TEST], labels[:TEST])


def make_model():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def train(epochs, strategy):
    """Trains; returns the loss of each epoch, the test accuracy and the model."""
    tf.keras.utils.set_random_seed(0)
    training, testing = load()
    train_data = tf.data.Dataset.from_tensor_slices(training).shuffle(2000, seed=0).batch(GLOBAL_BATCH)
    test_data = tf.data.Dataset.from_tensor_slices(testing).batch(GLOBAL_BATCH)
    train_data = strategy.experimental_distribute_dataset(train_data)
    test_data = strategy.experimental_distribute_dataset(test_data)

    with strategy.scope():
        model = make_model()
        optimizer = tf.keras.optimizers.Adam(2e-3)
        optimizer.build(model.trainable_variables)
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_step(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            # Parts of the global mean: right for the last, smaller batch, too.
            loss = tf.nn.compute_average_loss(loss_object(labels, predictions), global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def test_step(inputs):
        images, labels = inputs
        accuracy.update_state(labels, model(images, training=False))

    @tf.function
    def distributed_train_step(inputs):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train_step, args=(inputs,)), axis=None)

    @tf.function
    def distributed_test_step(inputs):
        strategy.run(test_step, args=(inputs,))

    losses = []
    for epoch in range(epochs):
        total, batches = 0.0, 0
        for batch in train_data:
            total += float(distributed_train_step(batch))
            batches += 1
        losses.append(total / batches)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}")
    for batch in test_data:
        distributed_test_step(batch)
    return losses, float(accuracy.result()), model


def draw(losses, model, path=PICTURE):
    """The loss, and what the model sees in 24 test images."""
    from matplotlib import pyplot

    images, labels = load()[1]
    seen = np.asarray(model(images[:24])).argmax(1)
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.6), dpi=70)
    axes[0].plot(range(1, len(losses) + 1), losses, marker="o")
    axes[0].set(title="loss", xlabel="epoch", yscale="log")
    axes[1].imshow(np.vstack([np.hstack(images[row * 8 : row * 8 + 8, :, :, 0]) for row in range(3)]), cmap="gray_r")
    wrong = int((seen != labels[:24]).sum())
    axes[1].set(title=f"test images, {wrong} of 24 seen wrongly", xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * options.replicas
    )
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(options.replicas)])
    losses, accuracy, model = train(options.epochs, strategy)
    print(f"test accuracy {accuracy:.4f} on {strategy.num_replicas_in_sync} replicas")
    draw(losses, model)


if __name__ == "__main__":
    main()
