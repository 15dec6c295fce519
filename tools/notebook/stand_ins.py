"""Replacements for downloads of notebooks: Keras data sets, `tensorflow_datasets`, tables and images.

They have the shapes, dtypes and value ranges of the originals, with fewer examples, and are learnable: every class has
a distinct pattern under noise.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import io
import os
import re
import socket
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from notebook import tables


class NoNetworkError(OSError):
    """A notebook requested a download that has no replacement."""


# name -> example shape, dtype, number of classes, training examples, test examples
_PICTURES: Final[dict[str, tuple[tuple[int, ...], int, int, int]]] = {
    "mnist": ((28, 28), 10, 60000, 10000),
    "fashion_mnist": ((28, 28), 10, 60000, 10000),
    "cifar10": ((32, 32, 3), 10, 50000, 10000),
    "cifar100": ((32, 32, 3), 100, 50000, 10000),
}
_LOCAL: Final = re.compile(r"^(localhost|127\.|::1|0\.0\.0\.0|$)")


def learnable(shape: tuple[int, ...], classes: int, count: int, seed: int) -> tuple[Any, Any]:
    """Returns examples in [0, 255] and their labels: a pattern per class, under noise."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(classes).integers(0, 256, (classes, *shape))
    labels = rng.integers(0, classes, count)
    noise = rng.integers(0, 256, (count, *shape))
    return ((2 * patterns[labels] + noise) // 3).astype(np.uint8), labels


def load_data(name: str, examples: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Returns the result of ``keras.datasets.<name>.load_data()``.

    Args:
        name: ``"mnist"`` or a similar name.
        examples: Maximum number of examples for training, and for testing.
    """
    shape, classes, train, test = _PICTURES[name]
    parts = [learnable(shape, classes, min(count, examples), seed) for seed, count in enumerate((train, test))]
    column = (-1, 1) if name.startswith("cifar") else (-1,)
    (x, y), (u, v) = [(images, labels.astype(np.uint8).reshape(column)) for images, labels in parts]
    return (x, y), (u, v)


def install(examples: int, *, text: str, framework: str = "mirrored.tf") -> None:
    """Installs the replacements.

    Args:
        examples: Maximum number of examples of a data set.
        text: The code of the notebook; packages that it does not mention are not imported.
        framework: The module used as TensorFlow, or ``tensorflow`` itself.
    """
    _cut_network()
    sys.modules["tensorflow_datasets"] = _tensorflow_datasets(examples, framework)
    if "keras" in text or "kaggle" in text:
        _keras(examples, "tensorflow" if framework == "tensorflow" else "jax")
    # Without the package, the cell that imports it fails, and says so.
    if re.search(r"\bpandas\b", text) and importlib.util.find_spec("pandas") is not None:
        _pandas(examples)
    if re.search(r"^\s*import requests", text, re.MULTILINE) and importlib.util.find_spec("requests") is not None:
        _requests()


def _cut_network() -> None:
    ask = socket.getaddrinfo

    @functools.wraps(ask)
    def local_only(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host is not None and not _LOCAL.match(str(host)) and str(host) != socket.gethostname():
            raise NoNetworkError(f"no network here, and no replacement for data from {host}")
        return ask(host, *args, **kwargs)

    socket.getaddrinfo = local_only


def _keras(examples: int, backend: str) -> None:
    os.environ["KERAS_BACKEND"] = backend
    import keras
    import keras._tf_keras.keras as tf_keras  # the module behind tf.keras, whose import would start JAX

    for namespace in (keras, tf_keras):
        for name in _PICTURES:
            module = getattr(namespace.datasets, name)
            module.load_data = functools.partial(_load_data, name, examples)
        namespace.utils.get_file = _get_file


def _load_data(name: str, examples: int, path: str | None = None) -> Any:
    return load_data(name, examples)


def _get_file(fname: str | None = None, origin: str | None = None, *args: Any, **kwargs: Any) -> str:
    """Replaces `keras.utils.get_file`: generates tables, images and MNIST; anything else has no replacement."""
    name = fname or str(origin).rpartition("/")[2]
    target = Path(kwargs.get("cache_dir") or "downloads") / (kwargs.get("cache_subdir") or "") / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if tables.write_download(target, str(origin), extract=bool(kwargs.get("extract"))):
        return str(target.absolute())
    if name.endswith((".jpg", ".jpeg", ".png")) or "sunflower" in name:
        target.write_bytes(_picture("PNG" if name.endswith(".png") else "JPEG"))
    elif name == "mnist.npz":
        (x_train, y_train), (x_test, y_test) = load_data("mnist", 1000)
        np.savez(target, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    else:
        raise NoNetworkError(f"no network here, and no replacement for {origin or name}")
    return str(target.absolute())


def _picture(kind: str, size: tuple[int, int] = (320, 240)) -> bytes:
    """Returns an image file with smooth colors."""
    from PIL import Image

    rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
    waves = [np.sin(rows / 17 + i) + np.cos(columns / (11 + 5 * i)) for i in range(3)]
    pixels = ((np.stack(waves, -1) + 2) * 63).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def _requests() -> None:
    import requests

    def get(url: str, *args: Any, **kwargs: Any) -> Any:
        if not re.search(r"\.(jpe?g|png)(\?|$)", url):
            raise NoNetworkError(f"no network here, and no replacement for {url}")
        answer = requests.Response()
        answer.status_code = 200
        answer._content = _picture("PNG" if ".png" in url else "JPEG")
        answer.raw = io.BytesIO(answer._content)
        return answer

    requests.get = get


def _pandas(examples: int) -> None:
    import pandas

    read = pandas.read_csv

    @functools.wraps(read)
    def read_csv(source: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(source).startswith(("http:", "https:")):
            return read(source, *args, **kwargs)
        text = tables.csv_text(str(source))
        if text is not None:
            return read(io.StringIO(text), *args, **kwargs)
        for name, make in _TABLES.items():
            if name in str(source):
                return make(pandas, list(kwargs.get("names") or []))
        raise NoNetworkError(f"no network here, and no replacement for {source}")

    pandas.read_csv = read_csv


def _auto_mpg(pandas: Any, names: list[str]) -> Any:
    rng = np.random.default_rng(0)
    count = 398
    weight = rng.uniform(1600, 5200, count)
    columns = {
        "MPG": 46 - weight / 150 + rng.normal(0, 2, count),
        "Cylinders": rng.choice([4, 6, 8], count),
        "Displacement": weight / 15 + rng.normal(0, 20, count),
        "Horsepower": weight / 28 + rng.normal(0, 10, count),
        "Weight": weight,
        "Acceleration": rng.uniform(8, 25, count),
        "Model Year": rng.integers(70, 83, count),
        "Origin": rng.integers(1, 4, count),
    }
    columns["Horsepower"][:6] = np.nan  # as in the original
    table = pandas.DataFrame(columns)
    return table.set_axis(names, axis=1) if len(names) == len(columns) else table


def _cancer(pandas: Any, names: list[str]) -> Any:
    rng = np.random.default_rng(0)
    malignant = rng.random(569) < 0.37
    features = rng.normal(10, 2, (569, 30)) + 3 * malignant[:, None]
    columns = [*names, *range(len(names), 32)][:32]
    table = pandas.DataFrame(features, columns=columns[2:])
    table.insert(0, columns[1], np.where(malignant, "M", "B"))
    table.insert(0, columns[0], np.arange(569))
    return table


_TABLES: Final[dict[str, Callable[[Any, list[str]], Any]]] = {"auto-mpg": _auto_mpg, "breast-cancer": _cancer}


# name -> example shape, dtype, number of classes, training examples, test examples
_TFDS: Final[dict[str, tuple[tuple[int, ...], str, int, int, int]]] = {
    "mnist": ((28, 28, 1), "uint8", 10, 60000, 10000),
    "fashion_mnist": ((28, 28, 1), "uint8", 10, 60000, 10000),
    "cifar10": ((32, 32, 3), "uint8", 10, 50000, 10000),
    "cats_vs_dogs": ((200, 300, 3), "uint8", 2, 23262, 0),
    "iris": ((4,), "float32", 3, 150, 0),
    "penguins/processed": ((4,), "float32", 3, 334, 0),
    "tf_flowers": ((240, 320, 3), "uint8", 5, 3670, 0),
}


def _tensorflow_datasets(examples: int, framework: str) -> types.ModuleType:
    module = types.ModuleType("tensorflow_datasets", "Arrays in place of tensorflow_datasets.")
    module.__spec__ = importlib.machinery.ModuleSpec("tensorflow_datasets", None)
    module.disable_progress_bar = lambda: None  # type: ignore[attr-defined]
    module.load = functools.partial(_tfds_load, examples, framework)  # type: ignore[attr-defined]
    module.as_numpy = lambda dataset: dataset.as_numpy_iterator()  # type: ignore[attr-defined]
    module.Split = types.SimpleNamespace(TRAIN="train", TEST="test", VALIDATION="validation")  # type: ignore[attr-defined]
    return module


def _tfds_load(
    examples: int,
    framework: str,
    name: str,
    split: Any = None,
    as_supervised: bool = False,
    with_info: bool = False,
    batch_size: int | None = None,
    **options: Any,
) -> Any:
    known = _TFDS.get(name.partition(":")[0])
    if known is None:
        raise NoNetworkError(f"no network here, and no replacement for the data set {name}")
    shape, dtype, classes, *counts = known
    parts = {
        part: _Part(shape, dtype, classes, min(count, examples), seed)
        for seed, (part, count) in enumerate(zip(("train", "test"), counts, strict=True))
        if count
    }

    def one(wanted: str) -> Any:
        return _dataset(parts, wanted, supervised=as_supervised, batch_size=batch_size, framework=framework)

    wanted = list(parts) if split is None else split
    made = [one(part) for part in wanted] if isinstance(wanted, (list, tuple)) else one(wanted)
    result = dict(zip(parts, made, strict=True)) if split is None else made
    return (result, _Info(parts, shape, classes)) if with_info else result


class _Part:
    """One split of a data set."""

    def __init__(self, shape: tuple[int, ...], dtype: str, classes: int, count: int, seed: int) -> None:
        images, self.labels = learnable(shape, classes, count, seed)
        self.images = images if dtype == "uint8" else (images / 32).astype(dtype)
        self.num_examples = count


class _Info:
    """`DatasetInfo`: the attributes that notebooks use."""

    def __init__(self, parts: dict[str, _Part], shape: tuple[int, ...], classes: int) -> None:
        names = [f"class {i}" for i in range(classes)]
        label = types.SimpleNamespace(num_classes=classes, names=names, int2str=names.__getitem__)
        self.splits = parts
        self.features = {"image": types.SimpleNamespace(shape=shape), "label": label}


def _dataset(parts: dict[str, _Part], wanted: str, *, supervised: bool, batch_size: int | None, framework: str) -> Any:
    tf = importlib.import_module(framework)
    pieces = [_slice(parts, piece.strip()) for piece in wanted.split("+")]
    images = np.concatenate([one for one, _ in pieces])
    labels = np.concatenate([one for _, one in pieces]).astype(np.int32)
    value: Any = (images, labels) if supervised else {"image": images, "label": labels}
    if batch_size == -1:
        return tf.nest.map_structure(tf.constant, value)
    dataset = tf.data.Dataset.from_tensor_slices(value)
    return dataset if batch_size is None else dataset.batch(batch_size)


def _slice(parts: dict[str, _Part], wanted: str) -> Sequence[Any]:
    """Returns the examples of a split such as ``"train"``, ``"train[:80%]"`` or ``"test[10:20]"``."""
    match = re.fullmatch(r"(\w+)(?:\[(\d*)(%?):(\d*)(%?)\])?", wanted)
    if match is None or match[1] not in parts:
        raise ValueError(f"unknown split {wanted!r}: there are {', '.join(parts)}")
    part = parts[match[1]]

    def edge(number: str | None, percent: str | None, default: int) -> int:
        if not number:
            return default
        return int(number) * part.num_examples // 100 if percent else int(number)

    taken = slice(edge(match[2], match[3], 0), edge(match[4], match[5], part.num_examples))
    return part.images[taken], part.labels[taken]
