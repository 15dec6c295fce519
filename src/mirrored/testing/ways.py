"""The execution modes of the fixture `way`: eager, or compiled with 1, 2 or a varying number of replicas per device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar, cast

import jax

from mirrored.compilation import function
from mirrored.errors import ArgumentError, DeviceError
from mirrored.strategies import MirroredStrategy

F = TypeVar("F", bound=Callable[..., Any])
Mode = Literal["eager", "compiled", "folded", "uneven"]
MODES: Final[tuple[Mode, ...]] = ("eager", "compiled", "folded", "uneven")
REPLICA_COUNTS: Final = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class WaySpec:
    """An execution mode, such as ``"eager"``, with a number of replicas; `open` creates a matching strategy.

    Attributes:
        mode: ``"eager"``: replicas run in Python, one after another. ``"compiled"``: inside `mirrored.function`, one
            replica per device. ``"folded"``: inside `mirrored.function`, two virtual replicas per device.
            ``"uneven"``: inside `mirrored.function`, 4 replicas on 3 devices, of which one has two virtual replicas.
        num_replicas: The number of replicas.

    Example:
        >>> way = WaySpec("folded", 4)
        >>> way.id, way.num_replicas, way.num_devices
        ('folded-4', 4, 2)
    """

    mode: Mode
    num_replicas: int

    @property
    def num_devices(self) -> int:
        """The number of devices that the execution mode uses for this number of replicas."""
        if self.mode == "uneven":
            return self.num_replicas - 1
        return self.num_replicas // 2 if self.mode == "folded" else self.num_replicas

    @property
    def id(self) -> str:
        """The part of a test's name for this execution mode and number of replicas, such as ``"compiled-4"``."""
        return f"{self.mode}-{self.num_replicas}"

    def open(self, **options: Any) -> Way:
        """Creates a strategy for this execution mode and number of replicas, on the first devices of the machine.

        Args:
            **options: Options of `MirroredStrategy`, such as ``deterministic=True``.

        Raises:
            DeviceError: The machine has fewer devices than the way needs.
        """
        devices = jax.devices()
        if len(devices) < self.num_devices:
            raise DeviceError(
                f"the execution mode {self.id} of mirrored.testing",
                found=f"the machine has {len(devices)} device{'s' * (len(devices) != 1)}",
                rule=f"{self.num_replicas} replicas in the mode {self.mode!r} need at least {self.num_devices}",
                remedy="set the ini option mirrored_devices = 8, and access no JAX device during test collection",
            )
        strategy = MirroredStrategy(devices[: self.num_devices], num_replicas=self.num_replicas, **options)
        return Way(self, strategy)


@dataclasses.dataclass(frozen=True)
class Way:
    """The value of the fixture `way`: the execution mode of the test, and a strategy created for the test.

    Attributes:
        spec: The mode and the replica count.
        strategy: The strategy created for it.

    Example:
        >>> import mirrored as mr
        >>> way = WaySpec("compiled", 1).open()
        >>> @way.compile
        ... def step():
        ...     return way.strategy.run(lambda: mr.get_replica_context().all_reduce("SUM", 1.0))
        >>> float(way.strategy.experimental_local_results(step())[0]) == way.num_replicas
        True
    """

    spec: WaySpec
    strategy: MirroredStrategy

    @property
    def mode(self) -> Mode:
        """How replicas run: ``"eager"``, ``"compiled"``, ``"folded"`` or ``"uneven"``, which `WaySpec` describes."""
        return self.spec.mode

    @property
    def num_replicas(self) -> int:
        """The number of replicas of the strategy."""
        return self.spec.num_replicas

    @property
    def num_devices(self) -> int:
        """The number of devices on which the strategy's replicas run."""
        return self.spec.num_devices

    @property
    def is_eager(self) -> bool:
        """Whether functions passed to `strategy.run` run eagerly in Python, for one replica after another."""
        return self.mode == "eager"

    def compile(self, f: F, **options: Any) -> F:
        """Compiles `f` with `mirrored.function(f, **options)`; in eager mode, returns `f` unchanged."""
        if self.is_eager:
            return f
        return cast(F, function(f, **options))


WAYS: Final = tuple(
    WaySpec(mode, count)
    for mode in MODES
    for count in REPLICA_COUNTS
    if not (mode == "folded" and count == 1) and not (mode == "uneven" and count != 4)
)
"""All execution modes on 1, 2, 4 and 8 replicas, a `WaySpec` each: the parameters of the fixture `way`."""


def select_ways(
    *, modes: Sequence[str] = MODES, replicas: Sequence[int] = REPLICA_COUNTS, called: str = "select_ways"
) -> list[WaySpec]:
    """Returns the pairs of execution mode and replica count, filtered by the given modes and counts.

    Raises:
        ArgumentError: A mode is unknown, or no way matches.

    Example:
        >>> [way.id for way in select_ways(modes=["eager", "folded"], replicas=[4])]
        ['eager-4', 'folded-4']
    """
    modes = (modes,) if isinstance(modes, str) else modes
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise ArgumentError(
            called,
            found=f"modes={modes!r} has the unknown mode {unknown[0]!r}",
            rule=f"each mode must be one of {', '.join(MODES)}",
            remedy="correct the name of the mode",
        )
    chosen = [spec for spec in WAYS if spec.mode in modes and spec.num_replicas in replicas]
    if not chosen:
        raise ArgumentError(
            called,
            found=f"modes={modes!r} and replicas={replicas!r} select no execution mode",
            rule=f"at least one of {', '.join(spec.id for spec in WAYS)} must be selected",
            remedy="choose a mode and a replica count that occur together in this list",
        )
    return chosen
