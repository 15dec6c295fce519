"""Elements of several datasets, one at a time, by choices that are a dataset themselves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mirrored.data import specs
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.data.pipeline import Cursor, Node, Run, StreamNode
from mirrored.errors import ArgumentError


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen(StreamNode):
    """The next element of the member that the next choice names.

    Attributes:
        choices: Gives the numbers of members.
        members: What to choose from.
        stop_on_empty: Whether the end of the first member is the end; otherwise one that has ended is passed over.
        called: For messages.
    """

    choices: Node
    members: tuple[Node, ...]
    stop_on_empty: bool
    called: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.choices, *self.members)

    @property
    def cardinality(self) -> int:
        counts = [member.cardinality for member in self.members]
        some = all if self.stop_on_empty else any
        endless = some(count == INFINITE_CARDINALITY for count in counts)
        return INFINITE_CARDINALITY if endless and self._choices_are_endless else UNKNOWN_CARDINALITY

    @property
    def _choices_are_endless(self) -> bool:
        return self.choices.cardinality == INFINITE_CARDINALITY

    @property
    def spec(self) -> Any:
        return functools.reduce(specs.merged, (member.spec for member in self.members))

    def stream(self, run: Run) -> Any:
        def cursor() -> Cursor:
            readings = [member.cursor(run) for member in self.members]
            return _ChoiceCursor(self.choices.cursor(run), readings, self.stop_on_empty, self.called)

        return engine().by_cursor(cursor, self.called)


class _ChoiceCursor:
    """Source: the order of TensorFlow's DirectedInterleaveDataset."""

    def __init__(self, choices: Cursor, members: Sequence[Cursor], stop_on_empty: bool, called: str) -> None:
        self._choices, self._members = choices, members
        self._stop_on_empty, self._called = stop_on_empty, called
        self._ended = [False] * len(members)

    def __next__(self) -> Element:
        while not all(self._ended):
            chosen = self._checked(next(self._choices))
            if self._ended[chosen]:
                continue
            try:
                return next(self._members[chosen])
            except StopIteration:
                self._ended = [self._stop_on_empty or n == chosen or ended for n, ended in enumerate(self._ended)]
        raise StopIteration

    def _checked(self, choice: Any) -> int:
        if np.shape(choice) != () or np.asarray(choice).dtype.kind not in "iu" or not 0 <= choice < len(self._members):
            raise ArgumentError(
                self._called,
                found=f"the choice {choice!r} of {len(self._members)} datasets",
                rule="a choice is a scalar integer, the number of a dataset counted from 0",
                remedy="map choice_dataset to such numbers",
            )
        return int(choice)

    def get_state(self) -> Any:
        """Where the choices and all members are."""
        members = [member.get_state() for member in self._members]
        return {"choices": self._choices.get_state(), "members": members, "ended": list(self._ended)}

    def set_state(self, state: Any) -> None:
        """Goes there."""
        self._choices.set_state(state["choices"])
        for member, position in zip(self._members, state["members"], strict=True):
            member.set_state(position)
        self._ended = list(state["ended"])

    def close(self) -> None:
        """Closes all."""
        for reading in (self._choices, *self._members):
            reading.close()


class ByWeight:
    """From a number in [0, 1) to the number of a dataset: i with a probability in proportion to ``weights[i]``.

    Raises:
        ArgumentError: The weights are no distribution.
    """

    def __init__(self, weights: Any) -> None:
        self._edges = np.cumsum(check_weights(weights, "weights", "Dataset.sample_from_datasets"))

    def __call__(self, uniform: Any) -> np.int64:
        place = np.searchsorted(self._edges, uniform * self._edges[-1], side="right")
        return np.int64(min(place, len(self._edges) - 1))


def check_weights(weights: Any, name: str, called: str) -> np.ndarray:
    """A vector of weights as float64.

    Raises:
        ArgumentError: One is negative or not finite, or all are zero, or it is no vector.
    """
    vector = np.asarray(weights, np.float64)
    if vector.ndim != 1 or not np.isfinite(vector).all() or (vector < 0).any() or not vector.sum() > 0:
        raise ArgumentError(
            called,
            found=f"{name}={np.asarray(weights).tolist()}",
            rule=f"{name} are one finite number of at least 0 each, and not all zero",
            remedy="pass how often each comes in proportion to the others",
        )
    return vector
