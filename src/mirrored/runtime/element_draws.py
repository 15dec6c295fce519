"""Random numbers in functions of datasets, such as that of `map`: they depend on the element, not on the thread.

Threads of a pipeline call such functions, several at a time and ahead of the program. If they drew from the program's
streams, the numbers would depend on the timing of the threads. Each call therefore has a stream of its own, keyed by
the pipeline, the step of the pipeline, the pass over the data and the index of the element.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from mirrored.runtime.ambient import ambient, within

_MASK = 2**64 - 1


@dataclasses.dataclass(frozen=True)
class FunctionDraws:
    """The random numbers of one function of a dataset in one pass over the data.

    Attributes:
        pipeline: A number of the pipeline, which saved positions contain; 0 for a pass that only infers a spec.
        place: The position of the function's step in the pipeline.
        key: The numbers of the pass and of its repetitions.
    """

    pipeline: int
    place: tuple[int, ...]
    key: tuple[int, ...]


class ElementDraws:
    """The random numbers of one call of a function of a dataset.

    Args:
        function: The function and the pass.
        index: The index of the element.
    """

    __slots__ = ("_count", "_function", "_index")

    def __init__(self, function: FunctionDraws, index: int) -> None:
        self._function, self._index, self._count = function, index, 0

    @property
    def pipeline(self) -> int:
        """The number of the pipeline; 0 for a pass that only infers a spec."""
        return self._function.pipeline

    def next_number(self) -> int:
        """Draws a number for the pipeline that the function reads."""
        low, high = self.next_words(self.pipeline)
        return (int(high) << 32 | int(low)) % 2**62 | 1

    def next_words(self, *stream: int) -> np.ndarray:
        """Draws once: returns two words of a key, ``uint32[2]``, which differ for every draw of every element.

        Args:
            *stream: The numbers that identify the stream, such as its seed.
        """
        self._count += 1
        place, key = self._function.place, self._function.key
        numbers = (len(stream), *stream, len(place), *place, len(key), *key, self._index, self._count)
        digest = hashlib.blake2b(packed(numbers), digest_size=8).digest()
        return np.frombuffer(digest, "<u4").astype(np.uint32)


def packed(numbers: Sequence[int]) -> bytes:
    """Returns integers as bytes, of each the lowest 64 bits."""
    return struct.pack(f"<{len(numbers)}Q", *(number & _MASK for number in numbers))


class Pipelines:
    """Numbers the pipelines that draw from one stream, in the order of their first draws.

    The numbers are the same in the next run of the program, unlike those of `FunctionDraws.pipeline`.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._lock = threading.Lock()

    def number_of(self, pipeline: int) -> int:
        """Returns the number of a pipeline."""
        if not pipeline:
            return 0
        with self._lock:
            return self._numbers.setdefault(pipeline, len(self._numbers))


class DrewWhileTracing(BaseException):
    """Exception that ends the trace of a function that draws random numbers and is called by a function of a dataset.

    Its program would have the numbers of one element. In functions of datasets it then runs as Python.

    It is not an `Exception`: user code that catches `Exception` must not handle it.
    """


def element_draws() -> ElementDraws | None:
    """Returns the random numbers of the dataset's function that this thread calls; None outside of such functions."""
    return ambient().element


def drawing_for(function: FunctionDraws | None, index: int) -> AbstractContextManager[Any]:
    """Returns a context manager in which a function of a dataset is called for an element.

    Args:
        function: The function and the pass; None changes nothing.
        index: The index of the element.
    """
    return nullcontext() if function is None else within(element=ElementDraws(function, index))
