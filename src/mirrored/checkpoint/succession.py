"""Unfinished restores of one `Checkpoint`; each value comes from the newest restore that contains it."""

from __future__ import annotations

from collections.abc import Callable

from mirrored.checkpoint.graph import Graph
from mirrored.checkpoint.late_state import late_state
from mirrored.checkpoint.leaves import Leaf
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.restoring import Restoration


class Succession:
    """The unfinished restores of one `Checkpoint` object, from the newest to the oldest.

    They have values for objects that the program has not created yet. A restore leaves what an earlier one waits for,
    except for the names that it has itself, as in TensorFlow.

    Attributes:
        has_earlier: Whether a restore waits that began before the newest one.
    """

    def __init__(self) -> None:
        self._restorations: tuple[Restoration, ...] = ()  # the newest one first
        self.has_earlier = False

    def followed_by(self, newest: Restoration) -> Succession:
        """Returns a new `Succession` that begins with the restore `newest`.

        The earlier restores follow, and skip state that `newest` also contains. Finished restores are left out.
        """
        for one in self._restorations:
            one.cancel_superseded_by(newest)
        found = Succession()
        # A program that restores one checkpoint after another keeps one restore, if all have the same names.
        earlier = [one for one in self._restorations if one.has_more_than(newest)]
        found._restorations = tuple(one for one in (newest, *earlier) if not one.is_over())
        found.has_earlier = bool(earlier)
        return found

    def is_over(self) -> bool:
        """Returns whether all restores are finished."""
        return not self._restorations

    def pending(self) -> list[tuple[Manifest, set[str]]]:
        """Returns, for each restore, the checkpoint's manifest and the names still to be restored."""
        return [one.pending() for one in self._restorations]

    def has_pending_values_of(self, part: str) -> bool:
        """Returns whether any saved value of the checkpoint's object named `part` is not restored yet.

        The checkpoint may have such a value under another path, if several objects contained it when it was saved.
        """
        for manifest, waiting in self.pending():
            of_part = [part, *(name for path, name in manifest.aliases.items() if path.partition("/")[0] == part)]
            inside = tuple(f"{one}/" for one in of_part)
            if any(f"{name}/".startswith(inside) for name in waiting):
                return True
        return False

    def proceed(self, called: str, wanted: Callable[[str, Leaf], bool]) -> None:
        """Restores newly created variables and other state, each from the newest restore that contains its value.

        The arguments and the errors are those of `Restoration.proceed`.
        """
        waiting = self._restorations  # which a nested call may replace
        for number, one in enumerate(waiting):
            if one.proceed(called, wanted):
                for earlier in waiting[number + 1 :]:
                    earlier.cancel_superseded_by(one)
                    earlier.make_slots(called)
        # Reading a variable restores further ones, so other restores may be over, too.
        self._restorations = tuple(one for one in self._restorations if not one.is_over())

    def created_late(self, graph: Graph) -> dict[str, Leaf]:
        """Returns the state, by name, that the program has created too late to be restored."""
        late: dict[str, Leaf] = {}
        for manifest, waiting in self.pending():
            late |= late_state(manifest, waiting, graph)
        return late

    def make_slots(self, called: str) -> None:
        """Creates and restores the pending optimizer slots whose variables all exist now.

        Their values can be in an earlier restore than those of the variables.
        """
        for one in self._restorations:
            one.make_slots(called)
        self._restorations = tuple(one for one in self._restorations if not one.is_over())

    def carry_over(self, manifest: Manifest, graph: Graph, wanted: Callable[[str], bool]) -> Manifest:
        """Returns a new checkpoint's `manifest`, extended by the saved values that no restore has restored yet."""
        for one in self._restorations:
            manifest = one.carry_over(manifest, graph, wanted)
        return manifest
