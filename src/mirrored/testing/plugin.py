"""The pytest plugin: simulates devices, and runs a test eagerly and compiled, with 1 to 8 replicas.

Fixtures:
    way: A `mirrored.testing.Way`, parametrized over (eager, compiled, folded) x (1, 2, 4, 8 replicas), and 4 replicas
        on 3 devices (uneven).
    strategy: `way.strategy`.

Marker:
    ways(modes=..., replicas=...): Restricts `way`: ``@pytest.mark.ways(modes=("compiled",), replicas=(2, 4))``.

Ini option:
    mirrored_devices: The number of CPU devices to simulate, set before any test module is imported. By default, 8
        devices are simulated if a collected test uses `way` or `strategy`.

Unless one of these is used, the plugin creates no device and imports no strategy, so it does not affect other projects'
test sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mirrored.config import set_virtual_devices
from mirrored.errors import ArgumentError

if TYPE_CHECKING:
    from mirrored.testing.ways import Way

_DEFAULT_DEVICES = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the pytest ini option `mirrored_devices`, the number of simulated devices."""
    parser.addini("mirrored_devices", "number of CPU devices to simulate (default: 8 if a test needs them)", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker that selects execution modes, and simulates devices before test modules are imported."""
    config.addinivalue_line("markers", "ways(modes, replicas): restrict the fixture `way` of mirrored")
    wanted = config.getini("mirrored_devices")
    if wanted:
        try:
            set_virtual_devices(int(wanted))
        except ValueError as error:
            raise pytest.UsageError(f"mirrored_devices = {wanted}: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrizes each test that uses the fixture `way` over execution modes and replica counts."""
    if "way" not in metafunc.fixturenames:
        return
    from mirrored.testing.ways import select_ways

    marker = metafunc.definition.get_closest_marker("ways")
    if marker is not None and marker.args:
        raise ArgumentError(
            "pytest.mark.ways",
            found=f"the positional arguments {marker.args!r}",
            rule="the marker takes its arguments by name",
            remedy="pass modes=('compiled',), replicas=(2, 4), or one of them",
        )
    specs = select_ways(**(marker.kwargs if marker else {}), called="pytest.mark.ways")
    metafunc.parametrize("way", specs, ids=[spec.id for spec in specs], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Simulates devices if a collected test needs them and the ini option `mirrored_devices` is not set."""
    if not config.getini("mirrored_devices") and any("way" in getattr(item, "fixturenames", ()) for item in items):
        set_virtual_devices(_DEFAULT_DEVICES)


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Way:
    """A pytest fixture that returns the execution mode and the new strategy with which the test runs."""
    opened: Way = request.param.open()
    return opened


@pytest.fixture
def strategy(way: Way) -> object:
    """A pytest fixture that returns a new strategy for each test.

    It is `way.strategy`, for tests that need nothing else of the fixture `way`.
    """
    return way.strategy
