"""Random numbers in functions that a dataset calls per element (as in `map`), independent of thread timing.

Threads of a pipeline call such functions, several at a time and ahead of the program. If they drew from the program's
streams, the numbers would depend on the timing of the threads. Each call therefore has a stream of its own, keyed by
the pipeline, the step of the pipeline, the pass over the data and the index of the element.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from mirrored.runtime.ambient import ambient, within

_MASK = 2**64 - 1

INNER_PASSES: Final = 2**61
"""The passes over datasets that functions of other datasets iterate have numbers from this one to its double."""


@dataclasses.dataclass(frozen=True)
class FunctionStreamId:
    """Identifies the random stream of a function that a dataset calls per element, in one pass over the data.

    Attributes:
        pipeline: A number of the pipeline, which saved positions contain; 0 for a pass that only infers a spec.
        place: The position of the function's step in the pipeline.
        key: The numbers of the pass and of its repetitions.
    """

    pipeline: int
    place: tuple[int, ...]
    key: tuple[int, ...]


class ElementDraws:
    """Draws the random numbers for one call of a function that a dataset calls per element.

    Args:
        function: The function and the pass.
        index: The index of the element.
    """

    __slots__ = ("_count", "_function", "_index")

    def __init__(self, function: FunctionStreamId, index: int) -> None:
        self._function, self._index, self._count = function, index, 0

    @property
    def pipeline(self) -> int:
        """A number that identifies the function's input pipeline.

        It is 0 while the pipeline only infers its element spec.
        """
        return self._function.pipeline

    def next_pass(self) -> int:
        """Returns a new number for a pass over a dataset that the function iterates, from `INNER_PASSES` on.

        It depends on the element, and not on the number of the pipeline, which can differ between runs of the program.
        """
        low, high = self.next_words()
        return INNER_PASSES + (int(high) << 32 | int(low)) % INNER_PASSES

    def next_words(self, *stream: int) -> np.ndarray:
        """Returns the two words of a new PRNG key, ``uint32[2]``, which differs for every draw of every element.

        Args:
            *stream: The numbers that identify the stream, such as its seed.
        """
        self._count += 1
        place, key = self._function.place, self._function.key
        numbers = (len(stream), *stream, len(place), *place, len(key), *key, self._index, self._count)
        digest = hashlib.blake2b(packed(numbers), digest_size=8).digest()
        return np.frombuffer(digest, "<u4").astype(np.uint32)


def packed(numbers: Sequence[int]) -> bytes:
    """Packs the lowest 64 bits of each integer into bytes."""
    return struct.pack(f"<{len(numbers)}Q", *(number & _MASK for number in numbers))


_indices_lock: Final = threading.Lock()
# By the number of a pipeline, and the seed of each random generator from which it draws: the pipeline's index.
_indices: Final[dict[int, dict[tuple[int, ...], int]]] = {}
# By the seed of a generator, and the number of a pipeline at a restored position that has not drawn since: its index.
_restored: Final[dict[tuple[int, ...], dict[int, int]]] = {}


class Pipelines:
    """Assigns numbers to the input pipelines that draw from one random generator, in the order of their first draws.

    The numbers are the same in the next run of the program, unlike those of `FunctionStreamId.pipeline`. A restored
    position contains those of its pipeline (`set_indices`).
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def number_of(self, pipeline: int, seed: Sequence[int]) -> int:
        """Returns an input pipeline's index, with pipelines ordered by their first random draw.

        The first draw assigns the index, unless a restored position contains it. A new index is larger than those of
        restored pipelines, also if these draw later. Returns 0 while the element spec is inferred.

        Args:
            pipeline: The number of the pipeline.
            seed: The seed of the generator.
        """
        if not pipeline:
            return 0
        with _indices_lock:
            restored = _restored.get(tuple(seed), {})
            if pipeline not in self._numbers:
                known = _indices.setdefault(pipeline, {})
                following = 1 + max((*self._numbers.values(), *restored.values()), default=-1)
                self._numbers[pipeline] = known.setdefault(tuple(seed), following)
            restored.pop(pipeline, None)
            return self._numbers[pipeline]


def indices_of(pipeline: int) -> list[list[int]]:
    """Returns the indices of a pipeline among those that draw from the same generators, for saved positions.

    Each list has the seed of a generator, and at its end the index.
    """
    with _indices_lock:
        return sorted([*seed, index] for seed, index in _indices.get(pipeline, {}).items())


def set_indices(pipeline: int, indices: Iterable[Sequence[int]]) -> None:
    """Sets the indices with which a pipeline draws from generators that it has not drawn from in this process."""
    with _indices_lock:
        for *seed, index in indices:
            _indices.setdefault(pipeline, {})[tuple(seed)] = index
            _restored.setdefault(tuple(seed), {})[pipeline] = index


class DrewWhileTracing(BaseException):
    """Exception that ends the trace of a compiled function that draws random numbers for a dataset's element.

    Its program would have the numbers of one element. In functions of datasets it then runs as Python.

    It is not an `Exception`: user code that catches `Exception` must not handle it.
    """


def element_draws() -> ElementDraws | None:
    """Returns the random number generator for the dataset element that this thread computes.

    None if this thread computes no element.
    """
    return ambient().element


def drawing_for(function: FunctionStreamId | None, index: int) -> AbstractContextManager[Any]:
    """Returns a context manager that derives random numbers from a function's random stream and an element's index.

    Args:
        function: The function and the pass; None changes nothing.
        index: The index of the element.
    """
    return nullcontext() if function is None else within(element=ElementDraws(function, index))
