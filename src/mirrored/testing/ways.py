"""Every way of running a replica program: eager, compiled, folded, on 1 to 8 replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar, cast

import jax

from mirrored.compilation import function
from mirrored.errors import ArgumentError, DeviceError
from mirrored.strategies import MirroredStrategy

F = TypeVar("F", bound=Callable[..., Any])
Mode = Literal["eager", "compiled", "folded"]
MODES: Final[tuple[Mode, ...]] = ("eager", "compiled", "folded")
REPLICA_COUNTS: Final = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class WaySpec:
    """One way of running, before any device is touched.

    Attributes:
        mode: ``"eager"``: replicas really run one after the other. ``"compiled"``: inside `mirrored.function`, one
            replica per device. ``"folded"``: inside `mirrored.function`, two replicas per device.
        num_replicas: How many replicas.
    """

    mode: Mode
    num_replicas: int

    @property
    def num_devices(self) -> int:
        """How many devices hold the replicas."""
        return self.num_replicas // 2 if self.mode == "folded" else self.num_replicas

    @property
    def id(self) -> str:
        """``"compiled-4"``: what pytest prints."""
        return f"{self.mode}-{self.num_replicas}"

    def open(self, **options: Any) -> Way:
        """The way itself, on the first devices of the machine.

        Args:
            **options: Passed on to `MirroredStrategy`: ``deterministic=True``.

        Raises:
            DeviceError: There are fewer devices than it needs.
        """
        devices = jax.devices()
        if len(devices) < self.num_devices:
            raise DeviceError(
                f"mirrored.testing, way {self.id}",
                found=f"{len(devices)} device{'s' * (len(devices) != 1)}",
                rule=f"it needs {self.num_devices}",
                remedy="set the ini option mirrored_devices = 8, and touch no JAX device while tests are collected",
            )
        strategy = MirroredStrategy(devices[: self.num_devices], num_replicas=self.num_replicas, **options)
        return Way(self, strategy)


@dataclasses.dataclass(frozen=True)
class Way:
    """A way of running a replica program; what the fixture `way` gives.

    Attributes:
        spec: Which way it is.
        strategy: A strategy made for it.

    Example::

        def test_sum_of_ids(way):
            @way.compile
            def step():
                return way.strategy.run(lambda: mr.get_replica_context().all_reduce("sum", 1.0))

            assert way.strategy.local_results(step())[0] == way.num_replicas
    """

    spec: WaySpec
    strategy: MirroredStrategy

    @property
    def mode(self) -> Mode:
        """Eager, compiled or folded."""
        return self.spec.mode

    @property
    def num_replicas(self) -> int:
        """How many replicas."""
        return self.spec.num_replicas

    @property
    def num_devices(self) -> int:
        """How many devices hold them."""
        return self.spec.num_devices

    @property
    def is_eager(self) -> bool:
        """Whether replica functions really run, one after the other."""
        return self.mode == "eager"

    def compile(self, f: F, **options: Any) -> F:
        """`f` as this way runs it: itself if eager, else `mirrored.function(f, **options)`."""
        if self.is_eager:
            return f
        return cast(F, function(f, **options))


WAYS: Final = tuple(
    WaySpec(mode, count) for mode in MODES for count in REPLICA_COUNTS if not (mode == "folded" and count == 1)
)


def select_ways(
    *, modes: Sequence[str] = MODES, replicas: Sequence[int] = REPLICA_COUNTS, called: str = "select_ways"
) -> list[WaySpec]:
    """The ways with these modes and replica counts.

    Raises:
        ArgumentError: There is no such way.
    """
    chosen = [spec for spec in WAYS if spec.mode in modes and spec.num_replicas in replicas]
    if not chosen:
        raise ArgumentError(
            called,
            found=f"modes={modes!r}, replicas={replicas!r}",
            rule=f"a way is one of {', '.join(spec.id for spec in WAYS)}",
            remedy="choose modes and replica counts that occur together",
        )
    return chosen
