"""The exceptions and warning categories of mirrored.

    MirroredError
    ├── ContextError (RuntimeError)        a call in the wrong context: replica, cross-replica, scope, thread
    │   └── MergeError                     replicas that call different merges, or a merge that is not supported there
    ├── DeviceError (ValueError)           a list of devices or a number of replicas that is invalid
    ├── StructureError (ValueError)        structures, shapes or dtypes that do not match
    ├── ArgumentError (ValueError)         any other argument with an invalid value
    │   ├── SignatureError (TypeError)     arguments that do not match the `input_signature` of a function
    │   └── UnsupportedOptionError (NotImplementedError)  an option that the called method does not have
    ├── ArgumentTypeError (TypeError)      an argument of a type that is not supported there
    ├── ReplicaDivergenceError (ValueError)  a mirrored value that would differ between replicas
    ├── VariableError (ValueError)         an assignment or read that the variable's rules do not allow
    │   ├── NotSupportedError (NotImplementedError)  an operation that is not defined for such a variable
    │   └── LostStateError (RuntimeError)  a variable whose new value a failed step was to compute
    ├── TransformError (TypeError)         a variable read or assigned under a JAX transform that cannot capture it
    ├── TapeError (RuntimeError)           an invalid use of a tape
    ├── ValuesError (TypeError, ValueError) a per-replica value used as one array, or by another strategy
    ├── InputError (RuntimeError)          an input pipeline that failed, stalled or was used after it was closed
    │   ├── DataFileError (OSError)        a data file that is missing, truncated or damaged
    │   ├── EndOfDataError (IndexError)    a request for an element after the last one
    │   └── TransformationError (AttributeError)  a transformation of a dataset that is already distributed
    ├── CheckpointError (RuntimeError)     a checkpoint that could not be written
    │   ├── MissingCheckpointError (FileNotFoundError)  a path without a checkpoint
    │   ├── DamagedCheckpointError (ValueError)         a checkpoint that is damaged
    │   └── CheckpointMismatchError (ValueError, AssertionError)  a checkpoint that does not match the program
    ├── ClusterError (ValueError)          a cluster description that is malformed or inconsistent
    │   ├── ClusterKeyError (KeyError)     a task that is described twice
    │   ├── AllocationError (RuntimeError)  a Slurm or Kubernetes allocation that does not match the request
    │   └── RendezvousError (TimeoutError)  a coordinator that cannot be reached
    ├── DisagreementError (RuntimeError)   workers at different points of the program, or with different values
    │   └── AbsentWorkerError (TimeoutError)  a worker that has not reached the barrier where the others wait
    └── MissingExtraError (ImportError)    an optional dependency that is not installed

Warning categories:

    IndependentProcessesWarning            several processes train independent models
    DivergingStateWarning                  several replicas train independent models
    OutOfScopeWarning                      replicas assign a variable that was created outside of the scope
    LossScaleWarning                       gradients that are N times too large or too small, for N replicas
    WorkerStateWarning                     state that differs between workers, of which a checkpoint has one value

Every error message states what was called, what was found, the rule, and the remedy. Each class has a page in
``docs/errors`` with a wrong program, its message, and the right program.
"""

from __future__ import annotations


class MirroredError(Exception):
    """Base class of all errors raised by mirrored.

    Args:
        called: What was called, as the user wrote it: ``"Strategy.run"``.
        found: What was found, with names, shapes and values. It is empty, as are `rule` and `remedy`, if a framework
            constructs an error of the same class from its own text. Then `called` is the whole message.
        rule: The rule that the call violates.
        remedy: What to write instead.
    """

    def __init__(self, called: str, *, found: str = "", rule: str = "", remedy: str = "") -> None:
        self.called = called
        self.found = found
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{called}: {found}\n  rule:   {rule}\n  remedy: {remedy}" if found else called)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles `called`, `found`, `rule` and `remedy`, so that an unpickled error has these attributes."""
        return _rebuild, (type(self), self.called, self.found, self.rule, self.remedy)


def _rebuild(cls: type[MirroredError], called: str, found: str, rule: str, remedy: str) -> MirroredError:
    return cls(called, found=found, rule=rule, remedy=remedy)


class ContextError(MirroredError, RuntimeError):
    """Error raised when the context of a call (replica, cross-replica, trace) does not allow the called function."""


class MergeError(ContextError):
    """Error raised when replicas called different collectives, or called a collective where none is supported."""


class DeviceError(MirroredError, ValueError):
    """Error raised when devices do not exist, are repeated or of mixed kinds, or do not fit the number of replicas."""


class StructureError(MirroredError, ValueError):
    """Error raised when pytree structures, shapes or dtypes of several values do not match."""


class ArgumentError(MirroredError, ValueError):
    """Error raised when an argument has an invalid value."""


class SignatureError(ArgumentError, TypeError):
    """Error raised when arguments do not match the `input_signature` of a compiled function."""


class ArgumentTypeError(MirroredError, TypeError):
    """Error raised when an argument is of a type that is not supported."""


class UnsupportedOptionError(ArgumentError, NotImplementedError):
    """Error raised when an option is valid in general, but not for the called method."""


class ReplicaDivergenceError(MirroredError, ValueError):
    """Error raised when a value that must be equal on all replicas would differ between them."""


class VariableError(MirroredError, ValueError):
    """Error raised when a variable's settings do not allow an assignment, read or creation."""


class NotSupportedError(VariableError, NotImplementedError):
    """Error raised when a variable's `synchronization` and `aggregation` do not define the requested operation."""


class LostStateError(VariableError, RuntimeError):
    """Error raised when a variable has lost its value, because the step that was to compute it has failed."""


class TransformError(MirroredError, TypeError):
    """Error raised when a variable or `Strategy.run` was used under a JAX transform in which it is not supported."""


class TapeError(MirroredError, RuntimeError):
    """Error raised when a gradient tape was used in an invalid way."""


class ValuesError(MirroredError, TypeError, ValueError):
    """Error raised when a per-replica value was used as if it were one array, or was passed to another strategy."""


class InputError(MirroredError, RuntimeError):
    """Error raised when an input pipeline failed, stalled or was used after it was closed."""


class DataFileError(InputError, OSError):
    """Error raised when a data file is missing, truncated or damaged."""


class EndOfDataError(InputError, IndexError):
    """Error raised when an element beyond the end of a dataset was requested."""


class TransformationError(InputError, AttributeError):
    """Error raised when a dataset transformation was applied to a dataset that is already distributed."""


class CheckpointError(MirroredError, RuntimeError):
    """Error raised when a checkpoint could not be written."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """Error raised when a path does not contain a checkpoint."""

    def __str__(self) -> str:
        return str(self.args[0])


class DamagedCheckpointError(CheckpointError, ValueError):
    """Error raised when a checkpoint is damaged: its content differs from what was written."""


class CheckpointMismatchError(CheckpointError, ValueError, AssertionError):
    """Error raised when a checkpoint does not match the program in names, shapes, dtypes or kinds of state."""


class ClusterError(MirroredError, ValueError):
    """Error raised when a cluster description is malformed or inconsistent."""


class ClusterKeyError(ClusterError, KeyError):
    """Error raised when a task of a cluster is described twice."""

    def __str__(self) -> str:
        return str(self.args[0])


class AllocationError(ClusterError, RuntimeError):
    """Error raised when the Slurm or Kubernetes allocation does not match the request, or is not available yet."""


class RendezvousError(ClusterError, TimeoutError):
    """Error raised when the coordinator of a cluster cannot be reached."""


class DisagreementError(MirroredError, RuntimeError):
    """Error raised when workers are at different points of the program, or differ in a value that must be equal."""


class AbsentWorkerError(DisagreementError, TimeoutError):
    """Error raised when a worker has not reached the barrier where the other workers wait."""


class MissingExtraError(MirroredError, ImportError):
    """Error raised when an optional dependency is not installed."""


class IndependentProcessesWarning(UserWarning):
    """Warning issued when several processes were started together, but each one trains an independent model."""


class DivergingStateWarning(UserWarning):
    """Warning issued when per-replica results are passed back as model state, so each replica trains its own model."""


class OutOfScopeWarning(UserWarning):
    """Warning issued when replicas assign a variable that was created outside of `strategy.scope()`.

    A compiled run updates such a variable once. In an eager run the replicas update it one after another, without a
    warning, except that a Keras optimizer applies the sum of their gradients once and warns.
    """


class LossScaleWarning(UserWarning):
    """Warning issued when a loss is averaged over one replica's examples, but its gradients are summed over replicas.

    The gradients are then N times too large, for N replicas. So are gradients that are summed over replicas twice, by
    an `all_reduce` and by an optimizer. They are N times too small if `GradientAccumulator(reduction="mean")` gets
    those of a loss that is divided by the examples of all replicas.

    Only compiled steps emit this warning: the check analyzes their program, and an eager run has none. To check an
    eager step, compile it once with `mirrored.function`.
    """


class WorkerStateWarning(UserWarning):
    """Warning issued when a checkpoint is saved whose numbers, arrays or local variables differ between workers.

    The checkpoint has the values of one worker, which a restore gives to all workers. It has the positions of iterators
    and random generators, and the values of variables with `VariableSynchronization.ON_READ`, of each worker.
    """
