"""What became of a restore: which names matched, which were missing, which were unexpected."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable

from mirrored.checkpoint.matching import Match
from mirrored.errors import CheckpointMismatchError
from mirrored.watchdog.forked_children import in_forked_children

_log = logging.getLogger("mirrored.checkpoint")


class RestoreStatus:
    """What `Checkpoint.restore` returns.

    A partial restore is told in the log once the status is dropped, unless one of its methods was called.

    TensorFlow: the `CheckpointLoadStatus` of `tf.train.Checkpoint.restore`.
    """

    def __init__(self, path: str | None, look: Callable[[], Match]) -> None:
        self._path, self._look = path, look
        found = look()
        self._partial = None if path is None or found.is_complete else found.report()
        if self._partial is not None:
            _untold.add(self)

    @property
    def matched(self) -> tuple[str, ...]:
        """The names that were restored."""
        return tuple(self._look().pairs)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the program that the checkpoint does not have; they kept their values."""
        return self._look().missing

    @property
    def unexpected(self) -> tuple[str, ...]:
        """Names of the checkpoint that the program does not have (yet)."""
        return self._look().unexpected

    @property
    def report(self) -> str:
        """All of that in a few lines."""
        return self._look().report()

    def assert_consumed(self) -> RestoreStatus:
        """Checks that every name on either side has its counterpart.

        Raises:
            CheckpointMismatchError: Some have none.
        """
        return self._assert("assert_consumed", "every name is on both sides", lambda found: found.is_complete)

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Checks that everything in the program was restored; the checkpoint may hold more.

        Raises:
            CheckpointMismatchError: Something was not.
        """
        rule = "everything in the program is in the checkpoint"
        return self._assert("assert_existing_objects_matched", rule, lambda found: not found.missing)

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Checks that anything was restored.

        Raises:
            CheckpointMismatchError: Nothing was.
        """
        return self._assert("assert_nontrivial_match", "something matches", lambda found: bool(found.pairs))

    def expect_partial(self) -> RestoreStatus:
        """Says that a partial restore is meant: nothing is logged."""
        self._partial = None
        return self

    def run_restore_ops(self, session: object = None) -> None:
        """Accepted for TensorFlow's sake: values are restored already."""

    def initialize_or_restore(self, session: object = None) -> None:
        """Accepted for TensorFlow's sake: values are restored already."""

    def _assert(self, method: str, rule: str, holds: Callable[[Match], bool]) -> RestoreStatus:
        self._partial = None
        found = self._look()
        if self._path is None or not holds(found):
            raise CheckpointMismatchError(
                f"restore(...).{method}",
                found="no checkpoint was given (None), so nothing was restored"
                if self._path is None
                else f"{self._path} was restored in part\n{found.report()}",
                rule=rule,
                remedy="build all objects under the names that they had when it was saved, or use expect_partial()",
            )
        return self

    def __repr__(self) -> str:
        return f"<RestoreStatus {self._path}: {self.report}>"

    def __del__(self) -> None:
        partial = getattr(self, "_partial", None)
        if partial is not None:
            _tell(self._path, partial)


def _tell(path: str | None, partial: str) -> None:
    _log.warning(
        "%s was restored in part so far; what is created later is restored then. "
        "expect_partial() says that this is meant\n%s",
        path,
        partial,
    )


_untold: weakref.WeakSet[RestoreStatus] = weakref.WeakSet()


@atexit.register
def _tell_all() -> None:
    """Tells of those that live until the program ends: once Python takes its modules apart, nothing can be logged."""
    for status in list(_untold):
        partial, status._partial = status._partial, None
        if partial is not None:
            _tell(status._path, partial)


in_forked_children(_untold.clear)  # what was restored in the parent is the parent's to tell
