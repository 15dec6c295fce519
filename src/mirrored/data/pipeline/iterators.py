"""The iterator over a `Dataset`, which can save its read position."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, Final

from mirrored.data.calling import taking_turn
from mirrored.data.cursors import beyond_end_error
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.feed import close_at_exit
from mirrored.data.iterator_errors import closed_error, closed_meanwhile_error, warn_exhausted
from mirrored.data.options import Optional, next_as_optional
from mirrored.data.pipeline.data_digest import digest_of
from mirrored.data.pipeline.inner_datasets import InnerDatasets, SameElementsError
from mirrored.data.pipeline.interrupts import RestartingCursor, position_of
from mirrored.data.pipeline.nodes import KEYS, Node, Run, first_element, nodes, random_step_ids, random_steps, seeded
from mirrored.data.pipeline.positions import (
    check_elements,
    check_epochs,
    check_recorded,
    check_same,
    dropped_remainder_error,
    epochs_of,
    may_have_dropped,
    outline,
    recorded_of,
)
from mirrored.data.pipeline.seeds import Epochs, FunctionEpochs
from mirrored.data.pipeline.transformations import Prefetched
from mirrored.errors import ArgumentError, EndOfDataError
from mirrored.runtime.element_draws import indices_of, set_indices
from mirrored.runtime.hooks import IteratedAsPython, note_created, note_iteration, note_moved, stop_iteration

_VERSION: Final = 1
_MOVED: Final = (
    "_reading", "_released", "_end", "_seeds", "_continues", "_keys", "_iteration", "_count", "_inner", "draws"
)  # fmt: skip
"""The attributes that `set_state` changes, and a position that does not fit leaves as they were."""


class DatasetIterator(IteratedAsPython):
    """An iterator over a `Dataset`, whose read position can be saved and restored.

    Several threads can share it: each element is returned to one of them. After an interrupt (Ctrl-C) it goes on with
    the element that was being computed, for which the dataset is read again from a recent position.

    Args:
        node: The pipeline.
        hand_out: Converts every element before it is returned.
        end_error: Creates the error for a request past the last element.

    Attributes:
        draws: The numbers of the pipeline and of this pass, for the random numbers of functions; 0 without functions.

    Example:
        >>> from mirrored.data import Dataset
        >>> iterator = iter(Dataset.range(5))
        >>> print(next(iterator), next(iterator))
        0 1
        >>> position = iterator.get_state()
        >>> print(next(iterator))
        2
        >>> iterator.set_state(position)
        >>> print(next(iterator))
        2

    TensorFlow: `tf.data.Iterator`. A `function` that calls `next` on it runs as Python, so that each call gets new
    elements; the function passed to `strategy.run` is compiled. To compile the whole function, pass it the elements.
    """

    def __init__(
        self,
        node: Node,
        hand_out: Callable[[Element], Any],
        end_error: Callable[..., EndOfDataError] = EndOfDataError,
    ) -> None:
        self._end_error = end_error
        self._node, self._hand_out = node, hand_out
        self._epochs = Epochs(seeded(node))
        self._iteration = self._epochs.begin()
        self._functions = FunctionEpochs(step.function_passes for step in random_steps(node))
        self.draws = self._functions.begin()
        # Keyed by `id`: nodes compare by identity, and the pipeline keeps them alive.
        self._seeds = self._epochs.seeds
        self._continues, self._keys = False, KEYS
        self._outline, self._inner = outline(node), InnerDatasets(node, {})
        self._reading: RestartingCursor | None = None
        self._released: RestartingCursor | None = None  # the last closed one, whose position `get_state` can return
        self._end: Any = None
        self._closed = self._waits = False
        self._count = 0
        # Reentrant: an interrupt that leaves it held must not block the next call of the same thread. `close` does not
        # take it, because it must not wait for an element.
        self._turn = threading.RLock()
        note_created(self)

    def __iter__(self) -> DatasetIterator:
        if self._end is not None:
            warn_exhausted("DatasetIterator")
        return self

    def __next__(self) -> Any:
        note_iteration(self)
        taken = None
        try:
            with self._turn:
                value = self._next()
                taken = self._count = self._count + 1
                return value
        except BaseException as error:
            # CPython runs signal handlers after C functions, such as the release of the lock: the caller has not
            # received the element.
            if taken is not None and not isinstance(error, Exception):
                with self._turn:
                    self._count -= self._count == taken
            raise

    def _next(self) -> Any:
        """Returns the next element, which is not counted yet: after an interrupt the next call computes it again."""
        if self._end is not None:
            raise stop_iteration(self._no_element_error)
        try:
            element = self._read()
        except StopIteration:
            self._end = self._cursor().get_end(self._count)
            self._release()
            raise stop_iteration(self._no_element_error) from None
        except Exception:
            self.close()
            raise
        try:
            return self._hand_out(element)
        except Exception:
            self._count += 1
            raise

    def _read(self) -> Element:
        # `close` of another thread sets `_closed` before it looks at `_waits`, so one of the two threads releases.
        self._waits = True
        try:
            element = self._cursor().read(self._count)
        except StopIteration:
            self._refuse_misfit()
            raise
        finally:
            self._waits = False
            if self._closed:
                self._release()
        if self._closed:
            raise closed_meanwhile_error()
        self._refuse_misfit()
        return element

    def get_next(self) -> Any:
        """Returns the next element of the dataset.

        Raises:
            EndOfDataError: There are no more elements.
        """
        try:
            return self.__next__()  # not `next(self)`: an interrupt after this C function would lose the element
        except StopIteration:
            raise self._no_element_error() from None

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of the elements, as in `Dataset.element_spec`."""
        return self._node.spec

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._node.name}>"

    def get_next_as_optional(self) -> Optional:
        """Returns the next element as an `Optional`, which has no value after the last element."""
        return next_as_optional(self, self._end_error, lambda: self.element_spec)

    def _no_element_error(self) -> EndOfDataError:
        return self._end_error(
            "DatasetIterator.get_next",
            found="End of sequence: the dataset has no more elements",
            rule="get_next can be called only while elements remain",
            remedy="iterate with for, use get_next_as_optional, or repeat the dataset",
        )

    def data_digest(self) -> str:
        """Returns a digest of the data that is read; empty before the first element, when no position means one."""
        return digest_of(self._node) if self._count else ""

    def get_state(self) -> dict[str, Any]:
        """Returns the read position and the shuffle seeds, as data that a checkpoint can save.

        After `close` and after an error, this is the position after the last element that was returned.
        If another thread reads an element, it waits for that element, which then precedes the position.

        Raises:
            ContextError: The other thread still reads the element after `LONGEST_WAIT` seconds. It may itself wait for
                this thread: a checkpoint holds the lock for assignments while it asks for positions.
        """
        with taking_turn(self._turn, "DatasetIterator.get_state"):
            return {
                "version": _VERSION,
                "pipeline": self._outline,
                **self._recorded,
                "iteration": self._iteration,
                **self.next_passes,
                "shared": True,
                "seeds": self.seeds,
                "keys": self._keys,
                "count": self._count,
                "cardinality": self._cardinality,
                "epochs": self._lengths,
                "position": self._position(),
                **self._inner.entries(),
            }

    def _position(self) -> Any:
        if self._end is not None:
            return position_of(self._end)
        if not self._closed:
            return self._cursor().get_state(self._count)
        # `close`, or an error that came from within an element, has closed the pipeline. It is opened once more, and
        # goes on to the last element that the caller has received.
        reading = self._released or self._opened()
        try:
            return reading.get_state(self._count)
        finally:
            reading.close()

    def restore(self, state: dict[str, Any], again: bool = False) -> bool:
        """Restores a saved read position, or else the start of the saved iteration.

        Returns:
            Whether the position itself was restored. False if `again` is True, or if operations have changed.

        Raises:
            ArgumentError: The order has changed, or other examples are dropped at the end of each epoch.
        """
        own = self._recorded
        check_epochs(state, self._node, self._lengths)
        groups = ("grouping", "grouped")
        is_same = all(state.get(name, own[name]) == own[name] for name in groups)
        if is_same and state.get("pipeline") == self._outline and not again:
            with contextlib.suppress(SameElementsError):
                self.set_state(state)
                return True
        check_same(state.get("order", own["order"]), own["order"])
        check_elements(state, self._node, own["kept"])
        if may_have_dropped(state, self._node):
            raise dropped_remainder_error(str(state.get("pipeline")), self._outline)
        changed = {"pipeline": self._outline, **{name: own[name] for name in (*groups, "replayed", "reread")}}
        self.set_state({**state, **changed, "position": None, "count": 0, "counts_examples": True})
        return False

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a read position of the same pipeline, possibly saved in another process.

        Args:
            state: A result of `get_state`.

        Raises:
            ArgumentError: The position belongs to another pipeline, or a function of it now makes another dataset. If a
                cache has to read its elements again, `next` raises the error.
            InputError: The data now ends before the position.
            ContextError: Another thread still reads an element after `LONGEST_WAIT` seconds.
        """
        with taking_turn(self._turn, "DatasetIterator.set_state"):
            self._move_to(state)
            note_moved(self)

    def _move_to(self, state: dict[str, Any]) -> None:
        steps, seeds = seeded(self._node), state.get("seeds", ())
        if len(seeds) < len(steps):
            # Positions saved by earlier versions have no seeds of the steps that make inner datasets.
            steps = [step for step in steps if not step.makes_datasets]
        if state.get("version") != _VERSION or state.get("pipeline") != self._outline or len(seeds) != len(steps):
            raise ArgumentError(
                "DatasetIterator.set_state",
                found=f"a position of the pipeline {state.get('pipeline')} with {len(seeds)} random seeds was passed "
                f"to one of {self._outline} with {len(steps)}",
                rule="a position can be restored only in a dataset with the same steps",
                remedy="build the dataset with the same steps as when the position was saved",
            )
        if state["position"] is not None:
            self._check_count(state)
        check_recorded(state, self._node, self._recorded)
        check_epochs(state, self._node, self._lengths)
        before = {name: getattr(self, name) for name in _MOVED}
        self._inner = InnerDatasets(self._node, state)
        epochs = self._epochs.get_state(), self._functions.get_state()
        self._reading, self._released, self._end, self._continues = None, None, None, True
        self._seeds = {**self._seeds, **dict(zip(map(id, steps), state["seeds"], strict=True))}
        # Positions saved by earlier versions have no "keys", and go on in their order; nor have they "next_iteration".
        self._iteration, self._count, self._keys = state["iteration"], state["count"], state.get("keys", 1)
        following = state.get("next_iteration", state["iteration"] + 1)
        # In earlier versions each dataset counted its own passes, so that positions of several ones differ.
        self._epochs.continue_with(max(following, 0 if "shared" in state else self._epochs.next), self._seeds)
        if (draws := state.get("draws")) and draws["number"]:  # positions of earlier versions and others have none
            self.draws = draws["number"], draws["pass"]
            self._functions.continue_with(draws["number"], draws["next_iteration"])
            set_indices(draws["number"], draws.get("indices", ()))  # those of earlier versions have none
        try:
            if state["position"] is not None:
                self._read_from(state["position"])
        except BaseException:
            self._release()
            vars(self).update(before)
            self._epochs.set_state(epochs[0])
            self._functions.set_state(epochs[1])
            raise
        if before["_reading"] is not None:
            before["_reading"].close()

    def _read_from(self, position: Any) -> None:
        try:
            self._cursor().set_state(position, self._count)
        except Exception as error:
            self._refuse_misfit()
            if isinstance(error, IndexError) and engine().is_beyond_end(error):
                raise beyond_end_error() from error
            raise
        self._refuse_misfit()

    def _refuse_misfit(self) -> None:
        """Raises the error of what does not fit the position, also if a step such as `ignore_errors` has caught it."""
        if self._inner.error is not None:
            raise self._inner.error from None

    def first_of(self, state: dict[str, Any]) -> Element:
        """Returns the first element of the pass to which a saved position belongs.

        A separate iterator reads the element, and fills no cache.
        """
        seeds = {**self._seeds, **dict(zip(map(id, seeded(self._node)), state["seeds"], strict=True))}
        draws = (state["draws"]["number"], state["draws"]["pass"]) if "draws" in state else self.draws
        return first_element(self._node, self._run(state["iteration"], seeds, True, state.get("keys", 1), draws))

    @functools.cached_property
    def _cardinality(self) -> int:
        return self._node.cardinality

    @functools.cached_property
    def _lengths(self) -> list[int]:
        return epochs_of(self._node)

    @functools.cached_property
    def _recorded(self) -> dict[str, list[str]]:
        return recorded_of(self._node)

    def _check_count(self, state: dict[str, Any]) -> None:
        """Raises an error if the dataset has become so short that no element follows the saved position any more.

        A position after the last element is not refused if the data has not changed.
        """
        count, known = state["count"], self._cardinality
        if 0 <= known <= count and (count > known or state.get("cardinality", known) > known):
            raise beyond_end_error(count, known)

    @property
    def outline(self) -> str:
        """The names and sizes of the dataset's operations as a string, to check that a read position fits the dataset.

        Operations that do not change positions (prefetching) are omitted.
        """
        return self._outline

    @property
    def arguments(self) -> list[str]:
        """The operations' arguments that decide the order and grouping of elements, such as `cycle_length`."""
        return [one for name in ("arguments", "order", "grouping") for one in self._recorded[name]]

    @property
    def seeds(self) -> list[int]:
        """The random seeds of the dataset's operations (such as `shuffle`), in the order of the operations."""
        if self._reading is None and self._end is None and not self._continues:
            self._seeds = self._epochs.seeds  # a position of another dataset with these steps may have been restored
            # A cache file that an earlier run of the program wrote contains that run's seeds. With several cache files,
            # the last one in the pipeline decides, because it also contains the seeds of the operations before it.
            for step in reversed(list(nodes(self._node))):
                self._seeds.update(step.kept_seeds())
        return list(self._seeds.values())

    @property
    def iteration(self) -> int:
        """The index of this pass over the dataset, from which random operations derive their order."""
        return self._iteration

    @property
    def next_passes(self) -> dict[str, Any]:
        """The number of the next pass and the state of the random streams, as a dict for saved read positions."""
        following = max(self._functions.next, self.draws[1] + 1)  # less if `set_seed` has restarted the count
        own = dict(zip(("number", "pass"), self.draws, strict=True))
        draws = {**own, "next_iteration": following, "indices": indices_of(self.draws[0])}
        return {"next_iteration": self._epochs.next, "draws": draws}

    def begin_as(self, iteration: int, seeds: list[int], draws: tuple[int, int]) -> None:
        """Sets the number of this pass over the dataset, and its random seeds; must be called before the first read."""
        self._iteration, self._continues, self.draws = iteration, True, draws
        self._seeds = dict(zip(self._seeds, seeds, strict=True))
        self._epochs.continue_with(iteration + 1, self._seeds)
        self._functions.continue_with(draws[0], draws[1] + 1)

    def close(self) -> None:
        """Stops the iterator's threads and closes its files; repeated calls have no effect.

        If another thread waits for an element, that thread closes the iterator when the element arrives, and raises an
        InputError.
        """
        self._closed = True
        if not self._waits:
            self._release()

    def _cursor(self) -> RestartingCursor:
        if self._closed:
            raise closed_error()
        if self._reading is None:
            self._reading = self._opened()
            close_at_exit(self)
        return self._reading

    def _opened(self) -> RestartingCursor:
        seeds = dict(zip(self._seeds, self.seeds, strict=True))
        run = self._run(self._iteration, seeds, self._continues, self._keys, self.draws)
        run = dataclasses.replace(run, inner=self._inner)
        open_cursor = functools.partial(self._node.cursor, run)
        return RestartingCursor(open_cursor, isinstance(self._node, Prefetched), self._inner.left_out)

    def _run(self, iteration: int, seeds: dict[int, int], continues: bool, keys: int, draws: tuple[int, int]) -> Run:
        return Run((iteration,), (), seeds, continues, keys=keys, draws=draws, places=random_step_ids(self._node))

    def _release(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            self._released = reading
            reading.close()

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_reading", None) is not None:
            self._release()
