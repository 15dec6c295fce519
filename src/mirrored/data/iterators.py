"""Reading a dataset: the iterator, its position, and its end."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from mirrored.data._elements import Element
from mirrored.data._pipeline import Node, Run, nodes
from mirrored.errors import ArgumentError, InputError

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


class DatasetIterator:
    """One reading of a dataset.

    Args:
        node: The pipeline.
        iteration: The number of this reading, which shuffles reshuffle by.
        hand_out: Applied to every element before it is given out.
    """

    def __init__(self, node: Node, iteration: int, hand_out: Callable[[Element], Any]) -> None:
        self._node, self._iteration, self._hand_out = node, iteration, hand_out
        self._seeds = {id(step): step.seed for step in _seeded(node)}
        self._outline = _outline(node)
        self._reading: Any = None
        self._end: Any = None
        self._closed = False
        self._count = 0

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        if self._end is not None:
            raise StopIteration
        cursor = self._cursor()
        try:
            element = next(cursor)
        except StopIteration:
            self._end = cursor.get_state()
            self._release()
            raise
        except Exception:
            self.close()
            raise
        self._count += 1
        return self._hand_out(element)

    def get_next(self) -> Any:
        """The next element.

        Raises:
            StopIteration: There is none.
        """
        return next(self)

    def get_state(self) -> dict[str, Any]:
        """The position, as JSON-like data: also the seeds of shuffles that were given none."""
        return {
            "version": _VERSION,
            "pipeline": self._outline,
            "iteration": self._iteration,
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
