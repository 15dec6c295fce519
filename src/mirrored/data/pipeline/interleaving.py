"""The iterator of the dataset operations `interleave` and `flat_map`, and of files that are read in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrored.data.calling import close_each
from mirrored.data.cursors import Cursor, beyond_end_error
from mirrored.data.elements import Element
from mirrored.data.pipeline.left_out import LeftOut
from mirrored.errors import ArgumentError, InputError


class InterleaveCursor:
    """An iterator that takes `block` elements from each of `cycle` open streams in turn, like tf.data's interleave.

    Args:
        inputs: The inputs, each of which becomes a stream.
        open_input: Opens the stream of one input; its second argument is the index of the input.
        cycle: Number of streams that are open at a time.
        block: Number of consecutive elements from one stream.
        passed: Receives each input, and its index, whose stream ended before a restored position.
        left_out: The exceptions that a later `ignore_errors` has left out, so that the iteration goes on after an input
            that raises one; None if no `ignore_errors` follows. A position contains the indices of these inputs, which
            are left out when the inputs are read again. An exception of any other input ends the restoration: the
            iterator would go on with other elements.

    Source: the order of `tf.data.Dataset.interleave`, where the next input takes the slot of a stream that ends.
    """

    def __init__(
        self,
        inputs: Cursor,
        open_input: Callable[[Element, int], Cursor],
        cycle: int,
        block: int,
        passed: Callable[[Element, int], object] = lambda value, number: None,
        left_out: LeftOut | None = None,
    ) -> None:
        self._inputs, self._open_input, self._block, self._passed = inputs, open_input, block, passed
        self._start = inputs.get_state()
        self._slots: list[tuple[Element, int, Cursor] | None] = [None] * cycle
        self._opened = self._turn = self._taken = 0
        self._ended = False
        # The indices of the inputs that raised an exception; None if a position of an earlier version lacks them.
        self._failed: list[int] | None = None if left_out is None else []
        self._left_out = left_out

    def __next__(self) -> Element:
        while True:
            slot = self._slots[self._turn] or self._refill()
            if slot is None:
                if self._ended and not any(self._slots):
                    raise StopIteration
                self._advance()
                continue
            try:
                element = next(slot[2])
            except StopIteration:
                slot[2].close()
                self._slots[self._turn] = None
                self._advance()
                continue
            self._taken += 1
            if self._taken == self._block:
                self._advance()
            return element

    def _advance(self) -> None:
        self._turn, self._taken = (self._turn + 1) % len(self._slots), 0

    def _refill(self) -> tuple[Element, int, Cursor] | None:
        if self._ended:
            return None
        before = self._inputs.get_state()
        try:
            value = next(self._inputs)
        except StopIteration:
            self._ended = True
            return None
        except Exception:  # a position counts it, unless the inputs cannot go on after it
            if self._inputs.get_state() != before:
                if self._failed is not None:
                    self._failed.append(self._opened)
                self._opened += 1
            raise
        number = self._opened
        self._opened += 1  # also if opening it raises: `ignore_errors` goes on with the next input
        slot = self._slots[self._turn] = (value, number, self._open_input(value, number))
        return slot

    def get_state(self) -> Any:
        slots = [None if slot is None else {"number": slot[1], "inner": slot[2].get_state()} for slot in self._slots]
        failed = {} if self._failed is None else {"failed": list(self._failed)}
        counts = {"opened": self._opened, "turn": self._turn, "taken": self._taken, "ended": self._ended}
        return {"slots": slots, **counts, **failed}

    def set_state(self, state: dict[str, Any]) -> None:
        if len(state["slots"]) > len(self._slots):
            raise ArgumentError(
                "DatasetIterator.set_state",
                found=f"the position was saved with cycle_length={len(state['slots'])}, this dataset has "
                f"cycle_length={len(self._slots)}",
                rule="as many datasets as were open at the position must be open again",
                remedy="pass at least the saved cycle_length (of files: num_parallel_reads); by default it is the "
                "number of cores, at most 10",
            )
        self._close_slots()
        # Inputs can be of any type, so a position contains only their indices, and the inputs are read again.
        self._inputs.set_state(self._start)
        wanted = {slot["number"]: place for place, slot in enumerate(state["slots"]) if slot is not None}
        # Positions of earlier versions do not tell which inputs were left out.
        self._failed = list(state["failed"]) if self._left_out is not None and "failed" in state else None
        left_out = set(range(state["opened"]) if self._failed is None else self._failed) - wanted.keys()
        for number in range(state["opened"]):
            try:
                value = next(self._inputs)
            except StopIteration:
                raise beyond_end_error() from None
            except Exception as error:
                is_end = self._failed is None and isinstance(error, InputError)
                if self._left_out is None or number not in left_out or is_end:
                    raise
                continue
            if number in wanted:
                place = wanted[number]
                cursor = self._open_input(value, number)
                cursor.set_state(state["slots"][place]["inner"])
                self._slots[place] = (value, number, cursor)
            else:
                self._passed(value, number)
        self._opened, self._turn, self._taken = state["opened"], state["turn"], state["taken"]
        self._ended = state["ended"]

    def _close_slots(self) -> None:
        slots, self._slots = self._slots, [None] * len(self._slots)
        close_each(slot[2] for slot in slots if slot is not None)

    def close(self) -> None:
        try:
            self._close_slots()
        finally:
            self._inputs.close()
