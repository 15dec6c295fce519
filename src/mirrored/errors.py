"""The exceptions of mirrored.

    MirroredError
    ├── ContextError (RuntimeError)        called in the wrong context: replica, cross-replica, scope, thread
    │   └── MergeError                     replicas did not meet at the same merge, or cannot meet here
    ├── DeviceError (ValueError)           a device that does not exist, twice, of mixed kinds; a layout that does not
    fit ├── StructureError (ValueError)        structures, shapes or dtypes that do not agree
    ├── ArgumentError (ValueError)         any other argument outside its rule
    │   └── SignatureError (TypeError)     arguments that do not fit the `input_signature` of a function
    ├── ArgumentTypeError (TypeError)      an argument of a kind that cannot be used there
    ├── SynchronyError (ValueError)        a mirrored value that would differ between replicas
    ├── VariableError (ValueError)         an assignment or read that the variable's rules refuse
    │   ├── NotSupportedError (NotImplementedError)  an operation that has no meaning for such a variable
    │   └── LostStateError (RuntimeError)  the variable's buffer went with a failed step
    ├── TransformError (TypeError)         a variable read or written under a JAX transform that cannot see it
    ├── TapeError (RuntimeError)           a tape used outside its rules
    ├── ValuesError (TypeError)            a per-replica value used as if it were one array
    ├── InputError (RuntimeError)          an input pipeline that failed, stalled or was used after it was closed
    │   ├── DataFileError (OSError)        a data file that is missing, truncated or damaged
    │   ├── EndOfDataError (IndexError)    asked for an element after the last one
    │   └── TransformationError (AttributeError)  a distributed dataset asked for another transformation
    ├── CheckpointError (RuntimeError)     a checkpoint that could not be written
    │   ├── MissingCheckpointError (FileNotFoundError)  there is no checkpoint at the path
    │   ├── DamagedCheckpointError (ValueError)         a checkpoint that is not as it was written
    │   └── CheckpointMismatchError (ValueError, AssertionError)  a checkpoint that does not fit the program
    ├── ClusterError (ValueError)          a description of a cluster that is malformed or does not hold together
    │   ├── ClusterKeyError (KeyError)     a task described twice
    │   ├── AllocationError (RuntimeError)  what Slurm or Kubernetes has assigned does not do
    │   └── RendezvousError (TimeoutError)  the coordinator cannot be reached
    ├── DisagreementError (RuntimeError)   the workers of a job are at different places, or have different values
    │   └── AbsentWorkerError (TimeoutError)  a worker has not come to where the others wait
    └── MissingExtraError (ImportError)    an optional dependency that is not installed

`IndependentProcessesWarning` is a category of warnings: several processes that train independent models.
`DivergingStateWarning` is another: several replicas that do. `LossScaleWarning`: a step that is N times too large.
`OutOfScopeWarning`: a variable that compiled replicas update once, and eager ones in turn.

Every message says what was called, what was found, the rule, and the remedy.
"""

from __future__ import annotations


class MirroredError(Exception):
    """Base of all errors raised by mirrored.

    Args:
        called: What was called, as the user wrote it: ``"Strategy.run"``.
        found: What was found, with names, shapes and values. Left out, as are the rest, where a framework makes an
            error of the same class from a text of its own: then `called` is the whole message.
        rule: The rule that it breaks.
        remedy: What to write instead.
    """

    def __init__(self, called: str, *, found: str = "", rule: str = "", remedy: str = "") -> None:
        self.called = called
        self.found = found
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{called}: {found}\n  rule:   {rule}\n  remedy: {remedy}" if found else called)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles by parts, so that an error crosses process borders whole."""
        return _rebuild, (type(self), self.called, self.found, self.rule, self.remedy)


def _rebuild(cls: type[MirroredError], called: str, found: str, rule: str, remedy: str) -> MirroredError:
    return cls(called, found=found, rule=rule, remedy=remedy)


class ContextError(MirroredError, RuntimeError):
    """Something was called in a context that does not allow it."""


class MergeError(ContextError):
    """Replicas did not meet at the same merge, or called one where they cannot meet."""


class DeviceError(MirroredError, ValueError):
    """A device that does not exist, is named twice, is of another kind, or a layout that does not fit."""


class StructureError(MirroredError, ValueError):
    """Structures, shapes or dtypes that do not agree."""


class ArgumentError(MirroredError, ValueError):
    """An argument outside its rule."""


class SignatureError(ArgumentError, TypeError):
    """Arguments that do not fit the `input_signature` of a compiled function."""


class ArgumentTypeError(MirroredError, TypeError):
    """An argument of a kind that cannot be used there."""


class ReplicaDivergenceError(MirroredError, ValueError):
    """A mirrored value that would differ between replicas."""


class VariableError(MirroredError, ValueError):
    """An assignment or read that the variable's rules refuse."""


class NotSupportedError(VariableError, NotImplementedError):
    """The variable's rules leave no meaning to the operation."""


class LostStateError(VariableError, RuntimeError):
    """The variable's buffer was donated to a step that then failed."""


class TransformError(MirroredError, TypeError):
    """A variable was read or written under a JAX transform that cannot see it."""


class TapeError(MirroredError, RuntimeError):
    """A tape was used outside its rules."""


class ValuesError(MirroredError, TypeError):
    """A per-replica value was used as if it were one array."""


class InputError(MirroredError, RuntimeError):
    """An input pipeline failed, stalled or was used after it was closed."""


class DataFileError(InputError, OSError):
    """A data file is missing, truncated or damaged."""


class EndOfDataError(InputError, IndexError):
    """An element was asked for after the last one."""


class TransformationError(InputError, AttributeError):
    """A distributed dataset was asked for another transformation."""


class CheckpointError(MirroredError, RuntimeError):
    """A checkpoint could not be written."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at the path."""

    def __str__(self) -> str:
        return str(self.args[0])


class DamagedCheckpointError(CheckpointError, ValueError):
    """A checkpoint is not as it was written."""


class CheckpointMismatchError(CheckpointError, ValueError, AssertionError):
    """A checkpoint does not fit the program: other names, shapes, dtypes or kinds of state."""


class ClusterError(MirroredError, ValueError):
    """A description of a cluster is malformed or does not hold together."""


class ClusterKeyError(ClusterError, KeyError):
    """A task of a cluster is described twice."""

    def __str__(self) -> str:
        return str(self.args[0])


class AllocationError(ClusterError, RuntimeError):
    """What Slurm or Kubernetes has assigned does not do for what was asked, or is not there yet."""


class RendezvousError(ClusterError, TimeoutError):
    """The coordinator of a cluster cannot be reached."""


class DisagreementError(MirroredError, RuntimeError):
    """The workers of a job are at different places of the program, or have different values for one thing."""


class AbsentWorkerError(DisagreementError, TimeoutError):
    """A worker has not come to where the others wait."""


class MissingExtraError(MirroredError, ImportError):
    """An optional dependency is not installed."""


class IndependentProcessesWarning(UserWarning):
    """Several processes were started together, and each trains a model of its own."""


class DivergingStateWarning(UserWarning):
    """Per-replica results are fed back as state: each replica trains a model of its own."""


class OutOfScopeWarning(UserWarning):
    """Replicas assign a variable that was made outside of `strategy.scope()`: once if compiled, else in turn."""


class LossScaleWarning(UserWarning):
    """A loss is averaged over the examples of one replica, and its gradients are summed over replicas.

    Compiled steps emit it, since it is found in their program. An eager run has no program to examine: compile the step
    once with `mirrored.function` to have it checked.
    """
