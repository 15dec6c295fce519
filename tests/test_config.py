from __future__ import annotations

import jax
import pytest

from fresh_process import run_python
from mirrored import config
from mirrored.errors import ArgumentError, ContextError


@pytest.mark.long
def test_makes_virtual_devices():
    done = run_python("import mirrored.config as c; c.set_virtual_devices(3); import jax; print(len(jax.devices()))")
    assert done.stdout == "3\n", done.stderr


@pytest.mark.long
def test_environment_variable_makes_virtual_devices():
    program = "import mirrored.config as c, jax; print(len(jax.devices()), c.virtual_kind())"
    done = run_python(program, MIRRORED_VIRTUAL_DEVICES="5", MIRRORED_VIRTUAL_KIND="gpu")
    assert done.stdout == "5 GPU\n", done.stderr


@pytest.mark.long
def test_virtual_devices_take_precedence_over_xla_flags():
    program = "import mirrored.config as c; c.set_virtual_devices(3); import jax; print(len(jax.devices()))"
    done = run_python(program, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert done.stdout == "3\n", done.stderr


@pytest.mark.parametrize("value", ["four", "0", "-1", "2.5"])
def test_environment_variable_out_of_rule_names_itself(value):
    done = run_python("import mirrored.config", MIRRORED_VIRTUAL_DEVICES=value)
    assert done.returncode == 1
    assert f"ArgumentError: MIRRORED_VIRTUAL_DEVICES={value}: " in done.stderr
    assert "must be an int, 1 or more" in done.stderr


def test_unknown_kind_in_the_environment_names_the_kinds():
    done = run_python("import mirrored.config", MIRRORED_VIRTUAL_KIND="NPU")
    assert "ArgumentError: MIRRORED_VIRTUAL_KIND=NPU: its value is 'NPU'" in done.stderr
    assert "CPU, GPU, TPU" in done.stderr


@pytest.mark.long
def test_environment_variable_too_late_says_so():
    program = "import jax; jax.devices(); import mirrored.config"
    done = run_python(program, MIRRORED_VIRTUAL_DEVICES="4")
    assert "ContextError: MIRRORED_VIRTUAL_DEVICES=4: JAX has started already, with 1 CPU device\n" in done.stderr


def test_too_late_says_what_to_do():
    assert len(jax.devices()) == 8
    with pytest.raises(ContextError, match=r"has started already, with 8 CPU devices[\s\S]*MIRRORED_VIRTUAL_DEVICES=3"):
        config.set_virtual_devices(3)
    assert len(jax.devices()) == 8


def test_too_late_is_fine_when_the_number_matches():
    jax.devices()
    config.set_virtual_devices(8)
    assert config.virtual_kind() == "CPU"


@pytest.mark.parametrize("n", [0, -2, True, 2.0, "4", None])
def test_a_number_that_is_no_count_is_refused(n):
    with pytest.raises(ArgumentError, match=r"(?s)set_virtual_devices\(.*an int, 1 or more"):
        config.set_virtual_devices(n)


@pytest.mark.parametrize("kind", ["FPGA", "", 3])
def test_an_unknown_kind_is_refused_and_changes_nothing(kind):
    with pytest.raises(ArgumentError, match="CPU, GPU, TPU"):
        config.set_virtual_devices(8, kind=kind)
    assert config.virtual_kind() == "CPU"
