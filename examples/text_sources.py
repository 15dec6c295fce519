"""Text classification: from which of scikit-learn's data set descriptions does a piece of text come?

The model sees 60 characters: it embeds their trigrams and averages. Every fifth block of 240 characters
is kept for the test. Keras, with `fit`, on 4 replicas.

    python examples/text_sources.py
"""

import argparse
import pathlib

import matplotlib
import numpy as np
from sklearn import datasets

import mirrored as mr

import keras  # isort: skip  (after mirrored, which selects Keras' JAX backend)

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "text_sources.png"
LENGTH, BLOCK, BUCKETS, BATCH = 60, 240, 4096, 64
LOADERS = (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer, datasets.load_digits)
SOURCES = ("iris", "wine", "breast cancer", "digits", "diabetes")


def trigrams(text):
    """The trigrams of a text as numbers below BUCKETS, i32[len(text) - 2]."""
    codes = np.frombuffer(text.lower().encode("ascii", "replace"), np.uint8).astype(np.int64)
    return ((codes[:-2] * 961 + codes[1:-1] * 31 + codes[2:]) * 2654435761 % 2**32 % BUCKETS).astype(np.int32)


def load():
    """Pieces of text, their trigrams and sources: for training, and for testing."""
    parts = ([], [])
    for source, loader in enumerate((*LOADERS, datasets.load_diabetes)):
        text = " ".join(loader().DESCR.split())
        for number, start in enumerate(range(0, len(text), BLOCK)):
            block, part = text[start : start + BLOCK], parts[number % 5 == 4]
            part.extend((block[i : i + LENGTH], source) for i in range(0, len(block) - LENGTH + 1, 7))
    return [
        ([text for text, _ in part], np.stack([trigrams(text) for text, _ in part]), np.array([s for _, s in part]))
        for part in parts
    ]


def make_model(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((LENGTH - 2,), dtype="int32"),
                keras.layers.Embedding(BUCKETS, 32),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(len(SOURCES)),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(1e-2),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model


def train(epochs, strategy):
    """Trains; returns the history of `fit` and the model."""
    (_, x, y), (_, x_test, y_test) = load()
    model = make_model(strategy)
    done = model.fit(x, y, batch_size=BATCH, epochs=epochs, validation_data=(x_test, y_test), verbose=0)
    return done.history, model


def draw(history, model, path=PICTURE):
    from matplotlib import pyplot

    texts, x, y = load()[1]
    found = np.asarray(model(x)).argmax(1)
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 2.8), dpi=70, width_ratios=(2, 3))
    for name in ("accuracy", "val_accuracy"):
        axes[0].plot(range(1, len(history[name]) + 1), history[name], label=name.replace("val_", "test "))
    axes[0].set(title="accuracy", xlabel="epoch")
    axes[0].legend()
    for line, row in enumerate(np.linspace(0, len(texts) - 1, 9).astype(int)):
        color = "black" if found[row] == y[row] else "tab:red"
        axes[1].text(0, 1 - line / 9, texts[row][:44], family="monospace", fontsize=7, color=color, va="top")
        axes[1].text(0.74, 1 - line / 9, f"{SOURCES[found[row]]}", fontsize=7, color=color, va="top")
    axes[1].set(title="text of the test, and the answer (red: wrong)")
    axes[1].axis("off")
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    history, model = train(options.epochs, mr.MirroredStrategy())
    print(f"accuracy {history['accuracy'][-1]:.3f}, on the test texts {history['val_accuracy'][-1]:.3f}")
    draw(history, model)


if __name__ == "__main__":
    main()
