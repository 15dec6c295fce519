"""The data sources of the matrix, over one problem's data.

PyTorch and Hugging Face datasets are large; where they are not installed, objects with the same interface stand in for
them. `make guarantees-sources` installs them in an environment of their own and runs the same tests there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, Final

import grain
import numpy as np

import mirrored as mr
from guarantees.problem import BATCH, data

HAS_TORCH: Final = importlib.util.find_spec("torch") is not None
HAS_HUGGING_FACE: Final = importlib.util.find_spec("datasets") is not None


def numpy_arrays() -> Any:
    """Arrays, batched by `InputOptions(batch_size=)`."""
    return data()


def dataset() -> Any:
    """`mirrored.data.Dataset`."""
    return mr.data.Dataset.from_tensor_slices(data()).batch(BATCH)


def grain_dataset() -> Any:
    """Grain."""
    x, y = data()
    return grain.MapDataset.range(len(x)).map(lambda i: (x[i], y[i])).batch(BATCH)


class ReusedBuffers:
    """A loader that refills the same two buffers for each batch."""

    def __iter__(self) -> Iterator[Any]:
        x, y = (np.empty((BATCH, *part.shape[1:]), part.dtype) for part in data())
        for at in range(0, len(data()[0]), BATCH):
            count = len(data()[0][at : at + BATCH])
            x[:count], y[:count] = (part[at : at + BATCH] for part in data())
            yield x[:count], y[:count]


class _Tensor:
    """Stands in for `torch.Tensor`."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def detach(self) -> _Tensor:
        return self

    def cpu(self) -> _Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._array


_Tensor.__module__ = "torch"


class _Loader:
    """Stands in for `torch.utils.data.DataLoader`: lists of tensors."""

    def __iter__(self) -> Iterator[Any]:
        for at in range(0, len(data()[0]), BATCH):
            yield [_Tensor(part[at : at + BATCH].copy()) for part in data()]


def torch_loader() -> Any:
    """PyTorch's DataLoader."""
    if not HAS_TORCH:
        return _Loader()
    import torch

    tensors = torch.utils.data.TensorDataset(*map(torch.from_numpy, data()))
    return torch.utils.data.DataLoader(tensors, batch_size=BATCH)


class _Arrow:
    """Stands in for `datasets.Dataset`."""

    def with_format(self, kind: str) -> _Arrow:
        assert kind == "numpy"
        return self

    def iter(self, batch_size: int) -> Iterator[Any]:
        for at in range(0, len(data()[0]), batch_size):
            yield dict(zip("xy", (part[at : at + batch_size].copy() for part in data()), strict=True))


_Arrow.__module__ = "datasets.arrow_dataset"


def hugging_face() -> Any:
    """Hugging Face datasets."""
    if not HAS_HUGGING_FACE:
        return _Arrow()
    import datasets

    return datasets.Dataset.from_dict(dict(zip("xy", data(), strict=True)))


SOURCES: Final[dict[str, Callable[[], Any]]] = {
    "NumPy": numpy_arrays,
    "Dataset": dataset,
    "Grain": grain_dataset,
    "PyTorch DataLoader": torch_loader,
    "Hugging Face datasets": hugging_face,
    "buffer-reusing loader": ReusedBuffers,
}
OF_EXAMPLES: Final = ("NumPy", "Hugging Face datasets")


def as_pair(batch: Any) -> tuple[Any, Any]:
    """(x, y) of a batch: a dict, a list or a tuple."""
    return (batch["x"], batch["y"]) if isinstance(batch, dict) else (batch[0], batch[1])
