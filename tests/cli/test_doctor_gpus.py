"""`mirrored doctor` on machines with GPUs, from what nvidia-smi of such a machine prints."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mirrored.cli.doctor import checkup
from mirrored.cli.doctor.facts import Facts
from mirrored.cli.doctor.findings import findings
from mirrored.cli.doctor.gpus import Gpu, GpuFacts, describe, gpu_facts, gpu_findings, preallocation, unverified

H200 = "NVIDIA H200, 580.159.04, 143771, Disabled\n"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
GOOD = GpuFacts(
    gpus=(Gpu("NVIDIA H200", "580.159.04", 143771, False),),
    visible=1,
    jaxlib="0.11.2",
    plugin="0.11.2",
    pjrt="0.11.2",
    cuda=13,
    nccl="2.28.9",
    cudnn="9.15.1.9",
    settings={},
)


def nvidia_smi(folder: Path, output: str, code: int = 0) -> dict[str, str]:
    """An environment whose PATH has an nvidia-smi that prints this, if it is asked what it should be."""
    tool = folder / "nvidia-smi"
    query = "--query-gpu=name,driver_version,memory.total,mig.mode.current --format=csv,noheader,nounits"
    (folder / "output").write_text(output)
    tool.write_text(f'#!/bin/bash\n[[ "$*" == "{query}" ]] || exit 6\ncat {folder}/output\nexit {code}\n')
    tool.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder on sys.path that says which packages are installed."""
    site = tmp_path / "site"

    def install(**versions: str) -> None:
        for name, version in versions.items():
            folder = site / f"{name}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    monkeypatch.syspath_prepend(str(site))
    return install


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    def put(output: str, code: int = 0) -> None:
        monkeypatch.setenv("PATH", nvidia_smi(tmp_path, output, code)["PATH"])

    return put


def test_a_machine_without_a_gpu_has_no_such_section(on_path, capsys):
    on_path(NO_DRIVER, code=9)
    assert gpu_facts(0) is None
    assert gpu_facts(0, {"PATH": "/nonexistent"}) is None
    console = Console(file=io.StringIO())
    checkup._print_gpus(console, [Facts("host", {}, "CPU", 1, 2)])
    assert console.file.getvalue() == ""


def test_what_the_machine_and_its_packages_say(on_path, packages, monkeypatch):
    on_path(H200 + "NVIDIA A2, 580.159.04, [N/A], [N/A]\n")
    versions = {"jax_cuda13_plugin": "0.11.2", "jax_cuda13_pjrt": "0.11.1", "nvidia_nccl_cu13": "2.28.9"}
    packages(**versions, nvidia_cudnn_cu13="9.15.1.9", nvidia_nccl_cu12="2.20.0")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    facts = gpu_facts(2)
    assert facts.gpus == (
        Gpu("NVIDIA H200", "580.159.04", 143771, False),
        Gpu("NVIDIA A2", "580.159.04", None, None),
    )
    assert (facts.plugin, facts.pjrt, facts.cuda) == ("0.11.2", "0.11.1", 13)
    assert (facts.nccl, facts.cudnn) == ("2.28.9", "9.15.1.9")
    assert facts.settings["XLA_FLAGS"] == "--xla_gpu_deterministic_ops=true"
    assert facts.settings["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.9"
    assert GpuFacts.from_json(dataclasses.asdict(facts)) == facts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        (
            {"plugin": "0.11.1"},
            "jax-cuda13-plugin is 0.11.1, jaxlib 0.11.2: install the same version of both, "
            "pip install 'jax[cuda13]==0.11.2'",
        ),
        ({"gpus": (Gpu("NVIDIA H200", "570.86.10", 1, False),)}, "its driver is 570.86.10, CUDA 13 needs 580 or newer"),
        ({"gpus": (Gpu("NVIDIA H200", "570.86.10", 1, False),), "cuda": 12}, None),
        (
            {"visible": 0, "plugin": None, "pjrt": None, "cuda": None},
            "it has 1 NVIDIA H200, and JAX has no CUDA plugin: pip install 'jax[cuda13]' "
            "(or 'jax[cuda12]' for drivers before 580)",
        ),
        ({"visible": 0}, "it has 1 NVIDIA H200, and JAX uses none of them: see the errors JAX logs"),
        ({"visible": 0, "settings": {"JAX_PLATFORMS": "cpu"}}, None),
        (
            {"settings": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "90"}},
            "XLA_PYTHON_CLIENT_MEM_FRACTION=90 is not a fraction of the memory between 0 and 1",
        ),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    found = gpu_findings(dataclasses.replace(GOOD, **changes))
    assert found == ([] if message is None else [message])


def test_another_driver_than_on_worker_0_is_named():
    first = Facts("host0", {}, "GPU", 1, 16, gpus=GOOD)
    other = dataclasses.replace(GOOD, gpus=(Gpu("NVIDIA H200", "590.10", 143771, False),))
    second = dataclasses.replace(first, host="host1", gpus=other)
    assert findings([first, second], []) == ["worker 1 (host1): its GPU driver is 590.10, on worker 0 580.159.04"]
    assert Facts.from_json(second.to_json()) == second


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "75% of the memory when JAX starts"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, "50% of the memory when JAX starts"),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "none: memory is allocated on demand, up to 75% of the memory"),
        (
            {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
            "none: every array is allocated by the driver (XLA_PYTHON_CLIENT_ALLOCATOR=platform, slow)",
        ),
    ],
)
def test_how_memory_is_taken(settings, words):
    assert preallocation(settings) == words


def test_what_one_gpu_cannot_verify_is_labelled():
    assert unverified([None]) == []
    assert unverified([GOOD]) == ["NCCL between several GPUs, and peer access: JAX uses fewer than two GPUs here"]
    assert unverified([GOOD, GOOD]) == ["peer access: whether copies between GPUs go through the host"]


def test_multi_instance_mode_and_flags_are_told():
    facts = dataclasses.replace(
        GOOD, gpus=(Gpu("NVIDIA H200", "580.1", 1, True),), settings={"XLA_FLAGS": "--a", "NCCL_DEBUG": "INFO"}
    )
    assert describe(facts) == [
        "CUDA 13 plugin 0.11.2 for jaxlib 0.11.2, NCCL 2.28.9, cuDNN 9.15.1.9; JAX uses 1 of 1 GPU",
        "preallocation: 75% of the memory when JAX starts",
        "XLA_FLAGS: --a",
        "set: NCCL_DEBUG=INFO",
        "MIG is on: a process uses one instance, and instances cannot all-reduce with each other by NCCL",
    ]


@pytest.mark.multiprocess
@pytest.mark.long
def test_the_command_prints_the_section(tmp_path):
    """On a machine with a GPU of which JAX, told to take the CPU, makes no use."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= nvidia_smi(tmp_path, H200)
    command = [sys.executable, "-m", "mirrored.cli", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if "NVIDIA H200" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]][1:] == ["NVIDIA H200", "580.159.04", "140 GiB", "off"]
    assert "JAX uses 0 of 1 GPU" in done.stdout
    assert "unverified: NCCL between several GPUs" in done.stdout
