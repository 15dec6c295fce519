"""A tabular model with `fit`: scikit-learn's diabetes data, a Keras model made in scope, callbacks and all.

python examples/diabetes_fit.py
"""

import argparse
import pathlib

import matplotlib
import numpy as np
from sklearn.datasets import load_diabetes

import mirrored as mr
from mirrored.integrations.keras import keras

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "diabetes_fit.png"
TEST = 88


def load():
    """Ten features of 442 patients, and the disease's progression after a year; standardised, shuffled."""
    data = load_diabetes()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = (data.data[order] / data.data.std(0)).astype(np.float32)
    y = ((data.target[order] - data.target.mean()) / data.target.std()).astype(np.float32)[:, None]
    return (x[TEST:], y[TEST:]), (x[:TEST], y[:TEST])


def make_model():
    regularizer = keras.regularizers.L2(1e-3)
    return keras.Sequential(
        [
            keras.Input((10,)),
            keras.layers.Dense(32, "relu", kernel_regularizer=regularizer),
            keras.layers.Dense(16, "relu", kernel_regularizer=regularizer),
            keras.layers.Dense(1),
        ]
    )


def train(epochs, strategy):
    """Fits; returns Keras' history, the share of the variance that is explained on test data, and predictions."""
    keras.utils.set_random_seed(0)
    training, (x, y) = load()
    with strategy.scope():
        model = make_model()
        model.compile(keras.optimizers.AdamW(3e-3), "mse", metrics=["mae"])
    # 354 examples: batches of 48 leave a last one of 18. `fit` spreads every batch over the replicas.
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=15, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=6),
    ]
    fitted = model.fit(*training, batch_size=48, epochs=epochs, validation_split=0.2, callbacks=callbacks, verbose=0)
    predictions = model.predict(x, verbose=0)
    explained = 1 - float(((predictions - y) ** 2).mean() / y.var())
    return fitted.history, explained, predictions


def draw(history, predictions, path=PICTURE):
    from matplotlib import pyplot

    _, (_, y) = load()
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.8), dpi=70)
    axes[0].plot(history["loss"], label="training")
    axes[0].plot(history["val_loss"], label="validation")
    axes[0].set(title="loss", xlabel="epoch")
    axes[0].legend(frameon=False)
    axes[1].scatter(y, predictions, s=8)
    axes[1].plot([-2, 2], [-2, 2], color="grey", linewidth=0.8)
    axes[1].set(title="test data", xlabel="progression", ylabel="predicted")
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=2)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    strategy = mr.MirroredStrategy()
    history, explained, predictions = train(options.epochs, strategy)
    print(f"{len(history['loss'])} epochs; {explained:.1%} of the variance explained on {TEST} unseen patients")
    draw(history, predictions)


if __name__ == "__main__":
    main()
