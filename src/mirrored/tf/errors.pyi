"""Type stub of `tf.errors`, written by tools/tf_stubs.py."""

from mirrored.tf._errors import AbortedError as AbortedError
from mirrored.tf._errors import AlreadyExistsError as AlreadyExistsError
from mirrored.tf._errors import CancelledError as CancelledError
from mirrored.tf._errors import DataLossError as DataLossError
from mirrored.tf._errors import DeadlineExceededError as DeadlineExceededError
from mirrored.tf._errors import FailedPreconditionError as FailedPreconditionError
from mirrored.tf._errors import InternalError as InternalError
from mirrored.tf._errors import InvalidArgumentError as InvalidArgumentError
from mirrored.tf._errors import NotFoundError as NotFoundError
from mirrored.tf._errors import OpError as OpError
from mirrored.tf._errors import OutOfRangeError as OutOfRangeError
from mirrored.tf._errors import PermissionDeniedError as PermissionDeniedError
from mirrored.tf._errors import ResourceExhaustedError as ResourceExhaustedError
from mirrored.tf._errors import ShapesError as ShapesError
from mirrored.tf._errors import UnauthenticatedError as UnauthenticatedError
from mirrored.tf._errors import UnavailableError as UnavailableError
from mirrored.tf._errors import UnimplementedError as UnimplementedError
from mirrored.tf._errors import UnknownError as UnknownError

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
SHAPES: int
UNAUTHENTICATED: int
UNAVAILABLE: int
UNIMPLEMENTED: int
UNKNOWN: int
