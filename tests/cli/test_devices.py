from __future__ import annotations

import pytest
from click.testing import CliRunner

from mirrored import config
from mirrored.cli import main


def run(*arguments: str):
    return CliRunner().invoke(main, ["devices", *arguments], env={"COLUMNS": "80"})


@pytest.fixture
def real_kind():
    yield
    config.set_virtual_devices(8)


def row(output: str, device: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if line.startswith(f"│ {device} ")]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_shows_every_device_with_its_replica():
    done = run()
    assert done.exit_code == 0, done.output
    assert row(done.output, "CPU:3") == ["CPU:3", "CPU", "cpu", "-", "3"]
    assert "8 replicas on 8 devices, one on each: MirroredStrategy([" in done.output


def test_shows_folded_replicas_and_the_devices_left_out():
    done = run("CPU:1", "/cpu:4", "--replicas", "6")
    assert row(done.output, "CPU:1")[4] == "0 1 2"
    assert row(done.output, "CPU:4")[4] == "3 4 5"
    assert row(done.output, "CPU:0")[4] == "-"
    assert '3 on each: MirroredStrategy(["CPU:1", "CPU:4"], num_replicas=6)' in done.output


def test_shows_replicas_that_the_devices_do_not_divide():
    done = run("CPU:0", "CPU:1", "CPU:2", "--replicas", "8")
    assert [row(done.output, f"CPU:{i}")[4] for i in range(3)] == ["0 1 2", "3 4 5", "6 7"]
    assert "8 replicas on 3 devices, 2 or 3 on each: MirroredStrategy([" in done.output


def test_virtual_devices_stand_for_gpus(real_kind):
    done = run("--virtual", "8", "--kind", "gpu", "GPU:2")
    assert row(done.output, "GPU:2")[:2] == ["GPU:2", "GPU (virtual)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CPU:64",), "'CPU:64' is not on this machine"),
        (("CPU:0", "cpu:0"), "CPU:0 is named twice"),
        (("CPU:0", "CPU:1", "--replicas", "1"), "num_replicas=1 on 2 devices"),
        (("--virtual", "0"), "the number of virtual devices must be an int, 1 or more"),
    ],
)
def test_wrong_requests_end_with_the_error_and_no_traceback(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert "remedy:" in done.output
    assert "Traceback" not in done.output
