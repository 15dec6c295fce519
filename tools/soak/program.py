"""The description of a drawn program: one value per decision, each with a simplest value to which it shrinks."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

COUNTS: Final = (1, 2, 3, 4, 6, 8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A program before its text is written. The defaults are the simplest program.

    Attributes:
        kind: The template of its text: a key of `soak.kinds.KINDS`.
        seed: The seed of its data and initial weights.
        model: A name in `soak.models.SHAPES`.
        update: How weights change: `mr.optimizers`, optax in `run`, `merge_call`, NNX, Equinox, Keras.
        optimizer: The update rule.
        clip: The gradient clipping of the optimizer: none, clipnorm, global_clipnorm, clipvalue.
        weighting: Whether examples have weights or a mask, and whether masked losses are NaN.
        source: The data source.
        examples: Examples per epoch.
        batch: Global batch size.
        epochs: Number of epochs.
        last_batch: How a smaller batch is handled: split, pad, drop.
        devices: Devices of the strategy.
        replicas: Replicas of the strategy, a multiple of `devices`.
        deterministic: The strategy's option.
        layouts: Further numbers of devices for the same replicas; results must be bit-identical.
        way: The execution mode: eager, compiled as a whole, compiled inside `run`, or several steps per call.
        event: What happens at step `event_step`: an interrupt, an exception in one replica, a restore with another
            device assignment, a reading thread.
        event_step: The number of steps before the event.
        restore_devices: Devices of the second device assignment.
        restore_replicas: Replicas of the second device assignment.
        overwrites: Whether the arrays from which variables were created are overwritten afterwards.
        variant: The variant of the kind; kinds other than training have some.
    """

    kind: str = "training"
    seed: int = 0
    model: str = "linear"
    update: str = "optimizer"
    optimizer: str = "sgd"
    clip: str = "none"
    weighting: str = "none"
    source: str = "batches"
    examples: int = 8
    batch: int = 4
    epochs: int = 1
    last_batch: str = "split"
    devices: int = 1
    replicas: int = 1
    deterministic: bool = False
    layouts: tuple[int, ...] = ()
    way: str = "eager"
    event: str = "none"
    event_step: int = 1
    restore_devices: int = 1
    restore_replicas: int = 1
    overwrites: bool = False
    variant: str = ""

    def as_json(self) -> str:
        """Returns the program as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Program:
        """Parses the result of `as_json`."""
        fields: dict[str, Any] = json.loads(text)
        return Program(**{**fields, "layouts": tuple(fields["layouts"])})

    def changes(self) -> dict[str, Any]:
        """Returns the decisions that differ from the simplest program."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def replace(self, **changes: Any) -> Program:
        """Returns the program with some values replaced."""
        return dataclasses.replace(self, **changes)

    @property
    def batch_sizes(self) -> list[int]:
        """Returns the size of each global batch of an epoch, after `last_batch`."""
        whole, rest = divmod(self.examples, self.batch)
        return [self.batch] * whole + [rest] * (rest > 0 and self.last_batch != "drop")

    @property
    def steps(self) -> int:
        """The number of training steps."""
        return len(self.batch_sizes) * self.epochs


_EVEN: Final = ("steps_per_call",)


def problem(program: Program) -> str | None:
    """Returns why the documentation does not allow a combination; None if it does."""
    checks = (
        (program.replicas % program.devices, "replicas are a multiple of devices"),
        (program.restore_replicas % program.restore_devices, "replicas are a multiple of devices"),
        (any(program.replicas % devices for devices in program.layouts), "each count of devices divides the replicas"),
        (program.layouts and not program.deterministic, "only deterministic=True guarantees bit-identical results"),
        (program.layouts and program.event in ("interrupt", "reader"), "timing decides"),
        (program.examples < program.batch, "there is one whole batch"),
        (_trains_alone(program) and program.steps < 2, "only state that is fed back shows that replicas train alone"),
        *_of_training(program),
    )
    return next((reason for wrong, reason in checks if wrong), None)


def _trains_alone(program: Program) -> bool:
    return program.kind == "functional" and program.replicas > 1 and "averaged" not in program.variant


def _of_training(program: Program) -> list[tuple[Any, str]]:
    if program.kind != "training":
        return []
    rest = program.examples % program.batch
    argument = program.source == "argument"
    frameworks = program.update in ("nnx", "equinox", "keras")
    several = program.way == "steps_per_call"
    return [
        (several and rest and program.last_batch == "split", "the steps of a call have one shape"),
        (several and program.batch % program.replicas, "the steps of a call have one shape"),
        (several and program.event == "restore" and program.batch % program.restore_replicas, "the same"),
        (several and program.steps % 2, "two steps per call"),
        (several and program.event in ("exception", "interrupt"), "an event belongs to one step"),
        (several and program.event == "restore" and program.event_step % 2, "a restore is between calls"),
        (several and program.event == "restore" and len(program.batch_sizes) % 2, "a restore is between calls"),
        (argument and (rest or program.batch % program.replicas), "replicas slice the argument themselves"),
        (argument and (program.last_batch != "split" or several), "there is no distributed dataset"),
        (argument and program.event == "restore" and program.batch % program.restore_replicas, "the same"),
        (program.source in ("batches", "reused") and program.event == "restore" and rest, "positions count batches"),
        (program.model == "two" and program.way != "eager", "Python branches on the replica"),
        (program.model == "two" and (program.update != "optimizer" or program.event == "restore"), "the same"),
        (program.model == "two" and (program.clip != "none" or program.optimizer == "adam"), "absent gradients"),
        (program.model == "embedding" and frameworks, "frameworks hold floating parameters"),
        (program.update == "keras" and program.model not in ("linear", "mlp"), "Keras has layers for these"),
        (program.update == "keras" and program.optimizer not in ("sgd", "momentum"), "Keras' Adam differs"),
        (program.update != "optimizer" and program.clip != "none", "clipping is an option of mr.optimizers"),
        (program.update == "assign" and program.optimizer != "sgd", "the update is written out"),
        (program.update == "merge_call" and program.optimizer != "sgd", "the update is written out"),
        (program.event == "exception" and program.way == "steps_per_call", "an event belongs to one step"),
        (program.event in ("restore", "reader") and program.update == "keras", "covered by the kind keras_fit"),
        (program.update == "optax" and program.optimizer == "sgd", "its state has no array to mirror"),
        (program.overwrites and frameworks, "frameworks make their own arrays"),
        (program.event != "none" and program.event_step >= program.steps, "the event comes before the last step"),
        (program.weighting.startswith("nan") and program.last_batch == "pad", "one mask at a time"),
        (program.update == "keras" and program.last_batch == "pad", "one loop at a time"),
    ]
