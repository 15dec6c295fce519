"""TensorFlow's exception classes, each with the Python class that a caller would catch too.

OpError (MirroredError)
├── CancelledError, UnknownError, DataLossError, UnauthenticatedError, AbortedError
├── InvalidArgumentError (ValueError)
├── DeadlineExceededError (TimeoutError)
├── NotFoundError (FileNotFoundError), AlreadyExistsError (FileExistsError), PermissionDeniedError (PermissionError)
├── ResourceExhaustedError (MemoryError)
├── FailedPreconditionError, InternalError (RuntimeError)
├── OutOfRangeError (IndexError)
├── UnimplementedError (NotImplementedError)
└── UnavailableError (ConnectionError)
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from mirrored.errors import ContextError, MirroredError


class OpError(MirroredError):
    """Base of the errors of operations, constructed as in TensorFlow.

    Args:
        node_def: Kept for TensorFlow's signature; there are no nodes here.
        op: Kept for TensorFlow's signature.
        message: The whole message.
        error_code: TensorFlow's number of the error; the class's own by default.
    """

    code: ClassVar[int] = 2

    def __init__(self, node_def: Any = None, op: Any = None, message: str = "", error_code: int | None = None) -> None:
        Exception.__init__(self, message)
        self.node_def = node_def
        self.op = op
        self.message = message
        self.error_code = type(self).code if error_code is None else error_code
        self.called, self.found, self.rule, self.remedy = "", message, "", ""

    @classmethod
    def of(cls, called: str, *, found: str, rule: str, remedy: str) -> Self:
        """An error with the parts that every error of mirrored has."""
        error = cls(None, None, f"{called}: {found}\n  rule:   {rule}\n  remedy: {remedy}")
        error.called, error.found, error.rule, error.remedy = called, found, rule, remedy
        return error

    def __str__(self) -> str:
        """The message alone (builtin bases such as OSError would show their own fields)."""
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles as it was made."""
        return type(self), (None, None, self.message, self.error_code)


class CancelledError(OpError):
    """The operation was cancelled."""

    code = 1


class UnknownError(OpError):
    """An error of no other class."""


class InvalidArgumentError(OpError, ValueError):
    """An argument of an operation has a wrong shape, dtype or value."""

    code = 3


class DeadlineExceededError(OpError, TimeoutError):
    """A deadline passed before the operation was done."""

    code = 4


class NotFoundError(OpError, FileNotFoundError):
    """A file, or a name in a checkpoint, does not exist."""

    code = 5


class AlreadyExistsError(OpError, FileExistsError):
    """What was to be made exists."""

    code = 6


class PermissionDeniedError(OpError, PermissionError):
    """The caller may not do this."""

    code = 7


class ResourceExhaustedError(OpError, MemoryError):
    """Memory (or another resource) ran out."""

    code = 8


class FailedPreconditionError(OpError, RuntimeError):
    """The state does not allow the operation: an uninitialised variable, for example."""

    code = 9


class AbortedError(OpError):
    """The operation was aborted."""

    code = 10


class OutOfRangeError(OpError, IndexError):
    """An iteration went past its end."""

    code = 11


class UnimplementedError(OpError, NotImplementedError):
    """The operation does not do this."""

    code = 12


class InternalError(OpError, RuntimeError):
    """A broken invariant of the library."""

    code = 13


class UnavailableError(OpError, ConnectionError):
    """A service cannot be reached at present."""

    code = 14


class DataLossError(OpError):
    """Data is lost or corrupted."""

    code = 15


class UnauthenticatedError(OpError):
    """The caller's identity is not known."""

    code = 16


class TracedValueError(ContextError, NotImplementedError, AttributeError):
    """`numpy()` of a value that is being traced, which has no numbers yet."""


class MissingNameError(MirroredError, AttributeError):
    """A name of TensorFlow that this facade does not have."""
