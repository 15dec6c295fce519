"""`RestoreStatus`: the result of a restore, with the names that matched, were missing or were unexpected."""

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
    """The result of `Checkpoint.restore`: lists which names matched, and checks the match on request.

    After a partial restore, a warning is logged when the status is garbage-collected, unless `expect_partial` or one of
    the `assert_` methods was called.

    TensorFlow: the `CheckpointLoadStatus` of `tf.train.Checkpoint.restore`.
    """

    def __init__(self, path: str | None, look: Callable[[], Match]) -> None:
        self._path, self._look = path, look
        found = look()
        self._partial = None if path is None or found.is_complete else found.report()
        if self._partial is not None:
            _unreported.add(self)

    @property
    def matched(self) -> tuple[str, ...]:
        """The names that were restored."""
        return tuple(self._look().pairs)

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the program that are not in the checkpoint. Their state kept its values."""
        return self._look().missing

    @property
    def unexpected(self) -> tuple[str, ...]:
        """The names of the checkpoint that the program does not have (yet)."""
        return self._look().unexpected

    @property
    def report(self) -> str:
        """A summary of the match in a few lines."""
        return self._look().report()

    def assert_consumed(self) -> RestoreStatus:
        """Checks that the program and the checkpoint have the same names.

        Raises:
            CheckpointMismatchError: A name is missing on one side.
        """
        return self._assert(
            "assert_consumed", "every name is in both the program and the checkpoint", lambda found: found.is_complete
        )

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Checks that everything in the program was restored. The checkpoint can contain more.

        Raises:
            CheckpointMismatchError: A name of the program was not restored.
        """
        rule = "every name of the program is in the checkpoint"
        return self._assert("assert_existing_objects_matched", rule, lambda found: not found.missing)

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Checks that at least one name was restored.

        Raises:
            CheckpointMismatchError: No name was restored.
        """
        return self._assert("assert_nontrivial_match", "at least one name matches", lambda found: bool(found.pairs))

    def expect_partial(self) -> RestoreStatus:
        """Declares that a partial restore is intended, so that no warning is logged."""
        self._partial = None
        return self

    def run_restore_ops(self, session: object = None) -> None:
        """Does nothing. Exists for compatibility with TensorFlow; the values are already restored."""

    def initialize_or_restore(self, session: object = None) -> None:
        """Does nothing. Exists for compatibility with TensorFlow; the values are already restored."""

    def _assert(self, method: str, rule: str, holds: Callable[[Match], bool]) -> RestoreStatus:
        self._partial = None
        found = self._look()
        if self._path is None or not holds(found):
            raise CheckpointMismatchError(
                f"restore(...).{method}",
                found="no checkpoint was given (None), so nothing was restored"
                if self._path is None
                else f"{self._path} was partially restored\n{found.report()}",
                rule=rule,
                remedy="build all objects under the names that they had when it was saved, or use expect_partial()",
            )
        return self

    def __repr__(self) -> str:
        return f"<RestoreStatus {self._path}: {self.report}>"

    def __del__(self) -> None:
        partial = getattr(self, "_partial", None)
        if partial is not None:
            _report(self._path, partial)


def _report(path: str | None, partial: str) -> None:
    _log.warning(
        "%s was partially restored; objects that are created later are restored then. "
        "Call expect_partial() if this is intended\n%s",
        path,
        partial,
    )


_unreported: weakref.WeakSet[RestoreStatus] = weakref.WeakSet()


@atexit.register
def _report_unreported() -> None:
    """Logs partial restores at exit. Python finalizes modules before it calls the remaining `__del__` methods."""
    for status in list(_unreported):
        partial, status._partial = status._partial, None
        if partial is not None:
            _report(status._path, partial)


in_forked_children(_unreported.clear)  # the parent process reports its own restores
