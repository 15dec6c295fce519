"""Random numbers as an indexed dataset: the number at a position does not depend on the preceding numbers."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Final

import numpy as np

from mirrored.data.buffering import DRAWS
from mirrored.data.elements import Element
from mirrored.data.indexed import ItemRows
from mirrored.data.options import INFINITE_CARDINALITY
from mirrored.data.pipeline import ENDLESS, IndexedNode, Node, Rows, Run
from mirrored.data.specs import spec_of

_LIMIT: Final = 2**31


@dataclasses.dataclass(frozen=True, eq=False)
class Uniform(IndexedNode):
    """An infinite sequence of float64 scalars in [0, 1).

    Attributes:
        seed: The random seed.
        rerandomize: Whether every iteration draws new numbers. If False, all iterations are equal, as in TensorFlow.
    """

    seed: int
    rerandomize: bool

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY

    @property
    def spec(self) -> Any:
        return spec_of(np.float64(0))

    def open(self, run: Run) -> Rows:
        return _UniformRows((run.seeds.get(id(self), self.seed), *(run.path if self.rerandomize else ())))


class _UniformRows(ItemRows):
    def __init__(self, key: tuple[int, ...]) -> None:
        self.length, self._key = ENDLESS, key
        self._block: tuple[int, np.ndarray] = (-1, np.empty(0))
        self._lock = threading.Lock()

    def item(self, index: int) -> Element:
        block, place = divmod(index, DRAWS)
        with self._lock:
            if self._block[0] != block:
                self._block = (block, np.random.default_rng((*self._key, block)).random(DRAWS))
            return self._block[1][place]


def as_integer(uniform: Any) -> np.int64:
    """Scales a number in [0, 1) to an integer in [0, 2**31), which fits into 32 bits."""
    return np.int64(uniform * _LIMIT)


@dataclasses.dataclass(frozen=True, eq=False)
class Endless(IndexedNode):
    """The infinite sequence 0, 1, 2, ..."""

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY

    @property
    def spec(self) -> Any:
        return spec_of(np.int64(0))

    def open(self, run: Run) -> Rows:
        return _EndlessRows()


class _EndlessRows(ItemRows):
    def __init__(self) -> None:
        self.length = ENDLESS

    def item(self, index: int) -> Element:
        return np.int64(index)
