"""Reading a dataset: the iterator, its position, and its end."""

from __future__ import annotations

import atexit
import threading
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from mirrored.data.elements import Element
from mirrored.data.optional import Optional
from mirrored.data.pipeline import Node, Run, nodes
from mirrored.errors import ArgumentError, EndOfDataError, InputError
from mirrored.runtime.driving import note_iteration, stop_iteration
from mirrored.watchdog.forked_children import in_forked_children

_VERSION: Final = 1
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(resource: Any) -> None:
    """Has `resource.close()` called when the interpreter ends, unless it is gone by then.

    A thread of Grain that still reads at exit can abort the process.
    """
    _open.add(resource)


@atexit.register
def _close_all() -> None:
    for resource in list(_open):
        resource.close()


# A forked child has none of the threads that the resources would wait for.
in_forked_children(_open.clear)


def warn_exhausted(kind: str) -> None:
    """Warns of a loop over an iterator that has no more elements."""
    warnings.warn(
        f"{kind}: a loop over an iterator that is exhausted makes no steps. Loop over the dataset, which begins "
        "a new epoch: `for batch in dataset`",
        stacklevel=3,
    )


class Epochs:
    """How often a dataset has been read, and the seeds of its shuffles.

    A restored position brings both along, so that the epochs after it are those of the run that saved it.
    """

    def __init__(self) -> None:
        self.next = 0
        self.seeds: dict[int, int] = {}
        self._lock = threading.Lock()

    def begin(self) -> int:
        """The number of a new reading."""
        with self._lock:
            self.next += 1
            return self.next - 1


class DatasetIterator:
    """One reading of a dataset.

    Args:
        node: The pipeline.
        epochs: Of the dataset: gives the number of this reading, which shuffles reshuffle by.
        hand_out: Applied to every element before it is given out.
        end_error: Makes the error for an element that is asked for after the last one.

    TensorFlow: `tf.data.Iterator`. A `function` that takes elements from it runs as Python, so that each call takes
    others; what it gives to `strategy.run` is compiled. To compile the whole function, pass it the elements.
    """

    def __init__(
        self,
        node: Node,
        epochs: Epochs,
        hand_out: Callable[[Element], Any],
        end_error: Callable[..., EndOfDataError] = EndOfDataError,
    ) -> None:
        self._end_error = end_error
        self._node, self._epochs, self._hand_out = node, epochs, hand_out
        self._iteration = epochs.begin()
        self._seeds = {id(step): epochs.seeds.get(id(step), step.seed) for step in _seeded(node)}
        self._outline = _outline(node)
        self._reading: Any = None
        self._end: Any = None
        self._closed = False
        self._count = 0

    def __iter__(self) -> DatasetIterator:
        if self._end is not None:
            warn_exhausted("DatasetIterator")
        return self

    def __next__(self) -> Any:
        note_iteration()
        if self._end is not None:
            raise stop_iteration(self._ended)
        cursor = self._cursor()
        try:
            element = next(cursor)
        except StopIteration:
            self._end = cursor.get_state()
            self._release()
            raise stop_iteration(self._ended) from None
        except Exception:
            self.close()
            raise
        self._count += 1
        return self._hand_out(element)

    def get_next(self) -> Any:
        """The next element.

        Raises:
            EndOfDataError: The data has ended.
        """
        try:
            return next(self)
        except StopIteration:
            raise self._ended() from None

    def get_next_as_optional(self) -> Optional:
        """The next element, or an `Optional` without a value at the end."""
        try:
            return Optional(next(self))
        except StopIteration:
            return Optional(end_error=self._end_error)

    def _ended(self) -> EndOfDataError:
        return self._end_error(
            "DatasetIterator.get_next",
            found="End of sequence: the dataset has no more elements",
            rule="get_next is called while there are elements",
            remedy="iterate with for, use get_next_as_optional, or repeat the dataset",
        )

    def get_state(self) -> dict[str, Any]:
        """The position, as JSON-like data: also the seeds of shuffles that were given none."""
        return {
            "version": _VERSION,
            "pipeline": self._outline,
            "iteration": self._iteration,
            "next_iteration": self._epochs.next,
            "seeds": list(self._seeds.values()),
            "count": self._count,
            "position": self._cursor().get_state() if self._end is None else self._end,
        }

    def restore(self, state: dict[str, Any]) -> bool:
        """Goes to a position; if it is of a pipeline with another batch size, to the beginning of its epoch.

        Returns:
            Whether the position itself was reached.
        """
        if state.get("pipeline") == self._outline:
            self.set_state(state)
            return True
        self.set_state({**state, "pipeline": self._outline, "position": None, "count": 0})
        return False

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position of the same pipeline, perhaps in another process.

        Args:
            state: From `get_state`.

        Raises:
            ArgumentError: It is the position of another pipeline.
        """
        steps = _seeded(self._node)
        if state.get("version") != _VERSION or state["pipeline"] != self._outline or len(state["seeds"]) != len(steps):
            raise ArgumentError(
                "DatasetIterator.set_state",
                found=f"a position of the pipeline {state.get('pipeline')}",
                rule=f"the position fits the dataset, which is {self._outline}",
                remedy="build the dataset by the same steps as when the position was saved",
            )
        self._release()
        self._end = None
        self._seeds = dict(zip(map(id, steps), state["seeds"], strict=True))
        self._iteration, self._count = state["iteration"], state["count"]
        # Positions of earlier versions do not say which reading would have been the next one.
        self._epochs.next = state.get("next_iteration", state["iteration"] + 1)
        self._epochs.seeds = dict(self._seeds)
        if state["position"] is not None:
            self._cursor().set_state(state["position"])

    @property
    def outline(self) -> str:
        """The steps of the pipeline that its positions depend on."""
        return self._outline

    @property
    def seeds(self) -> list[int]:
        """The seeds of its shuffles, in the order of its steps."""
        return list(self._seeds.values())

    def take_seeds(self, seeds: list[int]) -> None:
        """Shuffles by other seeds. Before the first element."""
        self._seeds = dict(zip(self._seeds, seeds, strict=True))

    def close(self) -> None:
        """Stops threads and closes files. More than once does no harm."""
        self._closed = True
        self._release()

    def _cursor(self) -> Any:
        if self._closed:
            raise InputError(
                "DatasetIterator",
                found="it was used after close(), or after it raised an error",
                rule="a closed iterator gives no elements",
                remedy="make a new one with iter(dataset)",
            )
        if self._reading is None:
            self._reading = self._node.cursor(Run((self._iteration,), self._seeds))
            close_at_exit(self)
        return self._reading

    def _release(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_reading", None) is not None:
            self._release()


def _outline(node: Node) -> str:
    """The steps of a pipeline that its positions depend on."""
    steps = (step for step in nodes(node) if not type(step).__name__.endswith("Prefetched"))
    return " < ".join(f"{type(step).__name__}{getattr(step, 'size', '')}" for step in steps)


def _seeded(node: Node) -> list[Any]:
    """The steps that draw random numbers, each once."""
    return list({id(step): step for step in nodes(node) if hasattr(step, "seed")}.values())
