"""TensorFlow's exception classes; each also derives from the matching builtin exception.

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

from typing import ClassVar, Self

from mirrored.errors import ContextError, MirroredError


class OpError(MirroredError):
    """Base class of operation errors, with TensorFlow's constructor.

    Args:
        node_def: Accepted for TensorFlow's signature; there are no nodes.
        op: Accepted for TensorFlow's signature.
        message: The complete message.
        error_code: TensorFlow's error number; by default that of the class.
    """

    code: ClassVar[int] = 2

    def __init__(
        self, node_def: object = None, op: object = None, message: str = "", error_code: int | None = None
    ) -> None:
        Exception.__init__(self, message)
        self.node_def = node_def
        self.op = op
        self.message = message
        self.error_code = type(self).code if error_code is None else error_code
        self.called, self.found, self.rule, self.remedy = "", message, "", ""

    @classmethod
    def of(cls, called: str, *, found: str, rule: str, remedy: str) -> Self:
        """Returns an error with the parts of a `MirroredError`: what was called and found, the rule and the remedy."""
        error = cls(None, None, f"{called}: {found}\n  rule:   {rule}\n  remedy: {remedy}")
        error.called, error.found, error.rule, error.remedy = called, found, rule, remedy
        return error

    def __str__(self) -> str:
        """Returns the message alone (builtin bases such as OSError would add their own fields)."""
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the error with its constructor arguments."""
        return type(self), (None, None, self.message, self.error_code)


class CancelledError(OpError):
    """The operation was cancelled."""

    code = 1


class UnknownError(OpError):
    """An error that no other class describes."""


class InvalidArgumentError(OpError, ValueError):
    """An argument of an operation has a wrong shape, dtype or value."""

    code = 3


class DeadlineExceededError(OpError, TimeoutError):
    """A deadline passed before the operation completed."""

    code = 4


class NotFoundError(OpError, FileNotFoundError):
    """A file, or a name in a checkpoint, does not exist."""

    code = 5


class AlreadyExistsError(OpError, FileExistsError):
    """An object to be created already exists."""

    code = 6


class PermissionDeniedError(OpError, PermissionError):
    """The caller lacks permission."""

    code = 7


class ResourceExhaustedError(OpError, MemoryError):
    """Memory or another resource is exhausted."""

    code = 8


class FailedPreconditionError(OpError, RuntimeError):
    """The state does not allow the operation, for example an uninitialized variable."""

    code = 9


class AbortedError(OpError):
    """The operation was aborted."""

    code = 10


class OutOfRangeError(OpError, IndexError):
    """An iteration or an index went past the end."""

    code = 11


class UnimplementedError(OpError, NotImplementedError):
    """The operation does not support the request."""

    code = 12


class InternalError(OpError, RuntimeError):
    """An internal invariant of the library is broken."""

    code = 13


class UnavailableError(OpError, ConnectionError):
    """A service is currently unavailable."""

    code = 14


class DataLossError(OpError):
    """Data is lost or corrupted."""

    code = 15


class UnauthenticatedError(OpError):
    """The caller is not authenticated."""

    code = 16


class TracedValueError(ContextError, NotImplementedError, AttributeError):
    """`numpy()` was called on a traced value, which has no elements yet."""


class MissingNameError(MirroredError, AttributeError):
    """A name of TensorFlow that `mirrored.tf` does not have."""
