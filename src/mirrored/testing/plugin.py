"""The pytest plugin: simulated devices, and every way of running as a parametrised fixture.

Fixtures:
    way: A `mirrored.testing.Way`, over (eager, compiled, folded) x (1, 2, 4, 8 replicas).
    strategy: `way.strategy`.

Marker:
    ways(modes=..., replicas=...): Only these: ``@pytest.mark.ways(modes=("compiled",), replicas=(2, 4))``.

Ini option:
    mirrored_devices: How many CPU devices to simulate, before any test module is imported. When it is not given, 8 are
        made once a collected test uses `way` or `strategy`.

No device is made and no strategy is loaded unless one of these is used: other projects' sessions are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mirrored.config import set_virtual_devices

if TYPE_CHECKING:
    from mirrored.testing.ways import Way

_DEFAULT_DEVICES = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the ini option."""
    parser.addini("mirrored_devices", "how many CPU devices to simulate (default: 8 if a test needs them)", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker, and makes the devices before test modules are imported."""
    config.addinivalue_line("markers", "ways(modes, replicas): restrict the fixture `way` of mirrored")
    wanted = config.getini("mirrored_devices")
    if wanted:
        try:
            set_virtual_devices(int(wanted))
        except ValueError as error:
            raise pytest.UsageError(f"mirrored_devices = {wanted}: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrises `way` over the ways that the marker leaves."""
    if "way" not in metafunc.fixturenames:
        return
    from mirrored.testing.ways import select_ways

    marker = metafunc.definition.get_closest_marker("ways")
    specs = select_ways(**(marker.kwargs if marker else {}), called="pytest.mark.ways")
    metafunc.parametrize("way", specs, ids=[spec.id for spec in specs], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Makes the devices if a test needs them and the ini option is silent."""
    if not config.getini("mirrored_devices") and any("way" in getattr(item, "fixturenames", ()) for item in items):
        set_virtual_devices(_DEFAULT_DEVICES)


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Way:
    """A way of running a replica program, with a strategy made for it."""
    opened: Way = request.param.open()
    return opened


@pytest.fixture
def strategy(way: Way) -> object:
    """The strategy of `way`."""
    return way.strategy
