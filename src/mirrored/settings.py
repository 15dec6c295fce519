"""The environment variables that mirrored reads: names, types, defaults and accepted values.

All of them are defined here. A value outside its rule raises an `ArgumentError` that names the variable, when mirrored
is imported and again where the setting is read, for programs that change `os.environ` later. This module does not
import JAX.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from mirrored.errors import ArgumentError

T = TypeVar("T")
PREFIX: Final = "MIRRORED_"
KINDS: Final = ("CPU", "GPU", "TPU")
# Timeouts in milliseconds fit into 32 bits.
_MOST_SECONDS: Final = 2_000_000
LEAST_SECRET_BYTES: Final = 16


@dataclasses.dataclass(frozen=True)
class Setting(Generic[T]):
    """Description of one environment variable of mirrored: name, default, accepted values and parser.

    Attributes:
        name: The name of the environment variable.
        meaning: The description for the documentation.
        default: The value if the variable is not set or empty.
        rule: The accepted values.
        parse: Converts the variable's text to the value; raises ValueError for a text outside the rule.
        example: A value inside the rule.
        internal: Whether mirrored sets it for its own processes, and users do not.
        hidden: Whether messages must not show its value.
    """

    name: str
    meaning: str
    default: T
    rule: str
    parse: Callable[[str], T]
    example: str
    internal: bool = False
    hidden: bool = False

    def read(self, environment: Mapping[str, str] | None = None) -> T:
        """Returns the parsed value of this environment variable, or its default if it is not set.

        Args:
            environment: Read instead of `os.environ`.

        Raises:
            ArgumentError: The variable's text is outside the rule.
        """
        text = (os.environ if environment is None else environment).get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise ArgumentError(
                f"{self.name}={'...' if self.hidden else text}",
                found=f"its value has {len(text)} characters" if self.hidden else f"its value is {text!r}",
                rule=f"{self.name} must be {self.rule}",
                remedy=f"set it to, for example, {self.example}, or unset it",
            ) from None

    def is_set(self, environment: Mapping[str, str] | None = None) -> bool:
        """Returns whether this environment variable is set and not empty."""
        return bool((os.environ if environment is None else environment).get(self.name, "").strip())


def _seconds(text: str) -> float:
    return positive_seconds(float(text))


def positive_seconds(seconds: float) -> float:
    """Returns `seconds` unchanged, or raises ValueError if it is not a valid timeout duration.

    Raises:
        ValueError: It is not finite, not positive, or too large.
    """
    if not (math.isfinite(seconds) and 0 < seconds <= _MOST_SECONDS):
        raise ValueError(seconds)
    return seconds


def _whole_seconds(text: str) -> int:
    return int(positive_seconds(_count(text)))


def _count(text: str) -> int:
    return _at_least(1, text)


def _number(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    # `int` alone would also accept "1_000" and digits of other scripts.
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise ValueError(text)
    return int(text)


def _kind(text: str) -> str:
    if text.upper() not in KINDS:
        raise ValueError(text)
    return text.upper()


def _recovery(text: str) -> str:
    if text not in ("auto", "restart"):
        raise ValueError(text)
    return text


def _secret(text: str) -> str:
    if len(text.encode(errors="surrogateescape")) < LEAST_SECRET_BYTES:
        raise ValueError
    return text


def _path(text: str) -> str:
    if not os.path.isabs(text):
        raise ValueError(text)
    return text


SECONDS_RULE: Final = f"a number of seconds, more than 0 and at most {_MOST_SECONDS}"
_WHOLE_SECONDS_RULE: Final = f"a whole number of seconds, 1 to {_MOST_SECONDS}"

VIRTUAL_DEVICES: Final = Setting[int | None](
    "MIRRORED_VIRTUAL_DEVICES",
    "The number of CPU devices of this process; see `mirrored.config.set_virtual_devices`.",
    None,
    "an int, 1 or more",
    _count,
    "4",
)
VIRTUAL_KIND: Final = Setting(
    "MIRRORED_VIRTUAL_KIND",
    'The kind of device that virtual devices simulate: with GPU, the names "GPU:0", "GPU:1", ... resolve to them.',
    "CPU",
    f"one of {', '.join(KINDS)}",
    _kind,
    "GPU",
)
WATCHDOG_SECONDS: Final = Setting(
    "MIRRORED_WATCHDOG_SECONDS",
    "The time without progress of any worker after which the job counts as deadlocked and ends; "
    "`mirrored.config.set_watchdog_seconds` takes precedence.",
    600.0,
    SECONDS_RULE,
    _seconds,
    "600",
)
AGREEMENT_SECONDS: Final = Setting(
    "MIRRORED_AGREEMENT_SECONDS",
    "How long a worker waits for the others outside of compiled steps: at the creation of variables, eager "
    "collectives, input and checkpoints, and after SIGTERM.",
    600.0,
    SECONDS_RULE,
    _seconds,
    "600",
)
HEARTBEAT_SECONDS: Final = Setting(
    "MIRRORED_HEARTBEAT_SECONDS",
    "The time without a heartbeat after which a worker counts as dead.",
    30,
    _WHOLE_SECONDS_RULE,
    _whole_seconds,
    "30",
)
RENDEZVOUS_SECONDS: Final = Setting(
    "MIRRORED_RENDEZVOUS_SECONDS",
    "The timeout of the rendezvous: how long a worker waits at the start for the others to join the job; in elastic "
    "jobs also how long workers wait for one that does not reach the training function.",
    300,
    _WHOLE_SECONDS_RULE,
    _whole_seconds,
    "300",
)
NODES: Final = Setting[int | None](
    "MIRRORED_NODES",
    "The number of pods of the indexed Kubernetes job, for `mirrored run`.",
    None,
    "an int, 1 or more",
    _count,
    "4",
)
SECRET: Final = Setting[str | None](
    "MIRRORED_SECRET",
    "The secret with which the launchers and workers of a job authenticate each other.",
    None,
    f"a text of {LEAST_SECRET_BYTES} bytes or more",
    _secret,
    "the output of: openssl rand -hex 32",
    hidden=True,
)
SECRET_FILE: Final = Setting[str | None](
    "MIRRORED_SECRET_FILE",
    "A file that contains the secret, by default `mirrored/secret` in `XDG_CONFIG_HOME`, which is generated.",
    None,
    "the absolute path of a file that only this user can read",
    _path,
    "/etc/mirrored/secret",
)
RESTART: Final = Setting[int | None](
    "MIRRORED_RESTART",
    "How many times `mirrored run` has restarted the workers; set by `mirrored run`.",
    None,
    "an int, 0 or more",
    _number,
    "0",
    internal=True,
)
LAUNCHER_FD: Final = Setting[int | None](
    "MIRRORED_LAUNCHER_FD",
    "The file descriptor of a worker's connection to its launcher; set by `mirrored run`.",
    None,
    "an int, 0 or more",
    _number,
    "3",
    internal=True,
)

ELASTIC: Final = Setting[int | None](
    "MIRRORED_ELASTIC",
    "The number of this worker's place in an elastic job; set by `mirrored run --elastic`.",
    None,
    "an int, 0 or more",
    _number,
    "1",
    internal=True,
)

ELASTIC_RECOVERY: Final = Setting(
    "MIRRORED_ELASTIC_RECOVERY",
    "How an elastic job recovers: with `restart`, its processes restart from a copy of the state in shared memory; "
    "with `auto`, they do so only where their collectives cannot be aborted.",
    "auto",
    "auto or restart",
    _recovery,
    "restart",
)
COPY_FDS: Final = Setting[tuple[int, ...]](
    "MIRRORED_COPY_FDS",
    "The file descriptors of the shared memory for copies of the state; set by `mirrored run --elastic`.",
    (),
    "ints, 0 or more, separated by commas",
    lambda text: tuple(_number(part) for part in text.split(",")),
    "4,5",
    internal=True,
)

# `Any`: their values have different types, and `Setting` is invariant.
ALL: Final[tuple[Setting[Any], ...]] = (
    VIRTUAL_DEVICES,
    VIRTUAL_KIND,
    WATCHDOG_SECONDS,
    AGREEMENT_SECONDS,
    HEARTBEAT_SECONDS,
    RENDEZVOUS_SECONDS,
    NODES,
    SECRET,
    SECRET_FILE,
    RESTART,
    LAUNCHER_FD,
    ELASTIC,
    ELASTIC_RECOVERY,
    COPY_FDS,
)

# Variables of other programs that mirrored reads or sets, and how it uses them.
FOREIGN: Final[Mapping[str, str]] = {
    "TF_CONFIG": "The cluster, and which of its tasks this process is; `mirrored run` and elastic jobs set it.",
    "KERAS_BACKEND": "Set to `jax` by `import mirrored` if Keras is not imported yet and the variable is not set.",
    "JAX_PLATFORMS": "Determines the kinds of devices the launcher looks for, and whether `tf.config` lists GPUs.",
    "XLA_FLAGS": "Compared between workers; `tf.config` adds flags to it.",
    "CUDA_VISIBLE_DEVICES": "The GPUs of this process; `mirrored run` and the Slurm resolver set it for each worker.",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "Set by `tf.config.experimental.set_memory_growth`.",
    "TF_CPP_MIN_LOG_LEVEL": "The lowest level that XLA logs; restored after deterministic programs are compiled.",
    "SLURM_*": "The place of this process in a Slurm job step.",
    "OMPI_*": "The place of this process under Open MPI's `mpirun`.",
    "PMI_*": "Shows that MPICH or Intel MPI has started other processes.",
    "MV2_*": "Shows that MVAPICH has started other processes.",
    "WORLD_SIZE": "Shows that torchrun has started other processes.",
    "RANK": "Shows that torchrun has started other processes.",
    "JAX_COORDINATOR_*": "The coordinator's address, or its port, where JAX detects the cluster.",
    "KUBERNETES_SERVICE_HOST": "Shows that `mirrored run` runs in Kubernetes.",
    "JAX_COMPILATION_CACHE_DIR": "Where `mirrored run` keeps compiled programs.",
    "XDG_CACHE_HOME": "Where `mirrored run` keeps compiled programs by default.",
    "XDG_CONFIG_HOME": "The folder that contains this user's secret, by default `~/.config`.",
    "HOME": "The default parent of these folders.",
    "JOB_COMPLETION_INDEX": "The index of this pod in an indexed Kubernetes job.",
}


def check(environment: Mapping[str, str] | None = None) -> None:
    """Checks the values of all of mirrored's environment variables, and warns of names that are probably misspelled.

    Args:
        environment: Read instead of `os.environ`.

    Raises:
        ArgumentError: A value is outside its rule.

    Warns:
        UserWarning: A variable has almost the name of a variable of mirrored, and therefore no effect.
    """
    environment = os.environ if environment is None else environment
    for setting in ALL:
        setting.read(environment)
    known = [setting.name for setting in ALL]
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near:
            warnings.warn(
                f"the environment variable {name} is unknown and has no effect\n"
                f"  rule:   the variables of mirrored are {', '.join(known)}\n"
                f"  remedy: did you mean {near[0]}?",
                stacklevel=2,
            )
