"""`tf.errors`: TensorFlow's exception classes, most of them derived also from a matching builtin exception.

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

from mirrored.errors import ArgumentError, ContextError, MirroredError
from mirrored.runtime.hooks import set_shape_error


class OpError(MirroredError):
    """Base class of the errors that operations raise, with TensorFlow's constructor.

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
        """Creates an error whose message states the called function, the problem, the violated rule and a remedy."""
        error = cls(None, None, f"{called}: {found}\n  rule:   {rule}\n  remedy: {remedy}")
        error.called, error.found, error.rule, error.remedy = called, found, rule, remedy
        return error

    def __str__(self) -> str:
        """Returns the error message, without the fields that builtin base classes such as OSError would add."""
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the error with its constructor arguments."""
        return type(self), (None, None, self.message, self.error_code)


class CancelledError(OpError):
    """Error for an operation that was cancelled."""

    code = 1


class UnknownError(OpError):
    """Error that no other error class describes."""


class InvalidArgumentError(OpError, ValueError):
    """Error for an operation whose argument has a wrong shape, dtype or value."""

    code = 3


class ShapesError(InvalidArgumentError, ArgumentError):
    """Error for a per-replica value whose shapes on different replicas are incompatible.

    It is both TensorFlow's `InvalidArgumentError` and mirrored's `ArgumentError`.
    """


set_shape_error(ShapesError.of)


class DeadlineExceededError(OpError, TimeoutError):
    """Error for an operation that did not complete before its deadline."""

    code = 4


class NotFoundError(OpError, FileNotFoundError):
    """Error for a file, or a name in a checkpoint, that does not exist."""

    code = 5


class AlreadyExistsError(OpError, FileExistsError):
    """Error for an object, such as a file, that should be created but already exists."""

    code = 6


class PermissionDeniedError(OpError, PermissionError):
    """Error for an operation for which the caller lacks permission."""

    code = 7


class ResourceExhaustedError(OpError, MemoryError):
    """Error for memory or another resource that is exhausted."""

    code = 8


class FailedPreconditionError(OpError, RuntimeError):
    """Error for an operation that the current state does not allow, as with an uninitialized variable."""

    code = 9


class AbortedError(OpError):
    """Error for an operation that was aborted."""

    code = 10


class OutOfRangeError(OpError, IndexError):
    """Error for an iteration or an index that went past the end."""

    code = 11


class UnimplementedError(OpError, NotImplementedError):
    """Error for a request that an operation does not support."""

    code = 12


class InternalError(OpError, RuntimeError):
    """Error for a bug in the library: an internal invariant is broken."""

    code = 13


class UnavailableError(OpError, ConnectionError):
    """Error for a service that is currently unavailable."""

    code = 14


class DataLossError(OpError):
    """Error for data that is lost or corrupted."""

    code = 15


class UnauthenticatedError(OpError):
    """Error for a caller that is not authenticated."""

    code = 16


class TracedValueError(ContextError, NotImplementedError, AttributeError):
    """Error for `numpy()` of a traced tensor, which has no value yet."""


class MissingNameError(MirroredError, AttributeError):
    """Error for a name of TensorFlow that `mirrored.tf` does not provide."""
