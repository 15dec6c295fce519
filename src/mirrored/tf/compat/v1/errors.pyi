"""Type stub of `tf.compat.v1.errors`, written by tools/tf_stubs.py."""

from mirrored.tf.errors import AbortedError as AbortedError
from mirrored.tf.errors import AlreadyExistsError as AlreadyExistsError
from mirrored.tf.errors import CancelledError as CancelledError
from mirrored.tf.errors import DataLossError as DataLossError
from mirrored.tf.errors import DeadlineExceededError as DeadlineExceededError
from mirrored.tf.errors import FailedPreconditionError as FailedPreconditionError
from mirrored.tf.errors import InternalError as InternalError
from mirrored.tf.errors import InvalidArgumentError as InvalidArgumentError
from mirrored.tf.errors import NotFoundError as NotFoundError
from mirrored.tf.errors import OpError as OpError
from mirrored.tf.errors import OutOfRangeError as OutOfRangeError
from mirrored.tf.errors import PermissionDeniedError as PermissionDeniedError
from mirrored.tf.errors import ResourceExhaustedError as ResourceExhaustedError
from mirrored.tf.errors import UnauthenticatedError as UnauthenticatedError
from mirrored.tf.errors import UnavailableError as UnavailableError
from mirrored.tf.errors import UnimplementedError as UnimplementedError
from mirrored.tf.errors import UnknownError as UnknownError

ABORTED: int
ALREADY_EXISTS: int
CANCELLED: int
DATA_LOSS: int
DEADLINE_EXCEEDED: int
FAILED_PRECONDITION: int
INTERNAL: int
INVALID_ARGUMENT: int
NOT_FOUND: int
OUT_OF_RANGE: int
PERMISSION_DENIED: int
RESOURCE_EXHAUSTED: int
UNAUTHENTICATED: int
UNAVAILABLE: int
UNIMPLEMENTED: int
UNKNOWN: int
