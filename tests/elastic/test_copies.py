"""Copies in shared memory: bits are kept, and a process that is killed while it writes leaves one whole copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mirrored._jax import recovery
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.saved import Saved
from mirrored.elastic import copies
from mirrored.elastic.copies import SharedCopies


@pytest.fixture
def memory() -> Iterator[tuple[int, ...]]:
    made = copies.create()
    yield made
    for descriptor in made:
        os.close(descriptor)


def manifest(step: int, size: int = 5) -> Manifest:
    leaves = {
        "w": Saved("array", (size,), "float32", np.full(size, step, np.float32)),
        "b": Saved("array", (), "float64", np.float64(step) / 3),
        "step": Saved("number", value=step),
    }
    return Manifest(leaves, {}, {})


def content(copy: tuple[int, Manifest] | None) -> Any:
    if copy is None:
        return None
    step, found = copy
    return step, found.leaves["w"].value.tolist(), float(found.leaves["b"].value), found.leaves["step"].value


def expected(step: int, size: int = 5) -> Any:
    return step, [float(step)] * size, step / 3, step


def test_the_newest_copy_is_read_by_another_process_of_the_job(memory):
    assert SharedCopies(memory).newest() is None
    for step, size in ((0, 5), (10, 50_000), (20, 3), (30, 7)):
        SharedCopies(memory).write(step, manifest(step, size))
        assert content(SharedCopies(memory).newest()) == expected(step, size)


def test_without_shared_memory_there_are_no_copies():
    SharedCopies(()).write(1, manifest(1))
    assert SharedCopies(()).newest() is None


class Killed(BaseException):
    """In place of a signal."""


def test_a_writer_that_is_killed_at_any_moment_leaves_the_previous_copy_or_the_new_one(memory, monkeypatch):
    write, seen = os.pwrite, set()

    def interrupt_at(moment: int) -> None:
        calls = 0

        def pwrite(descriptor: int, data: Any, at: int) -> int:
            nonlocal calls
            calls += 1
            if calls > moment // 2:
                if moment % 2:  # in the middle of a call
                    write(descriptor, data[: len(data) // 2], at)
                raise Killed
            return write(descriptor, data, at)

        monkeypatch.setattr(os, "pwrite", pwrite)

    step = 10
    SharedCopies(memory).write(0, manifest(0))
    SharedCopies(memory).write(step, manifest(step))
    for moment in range(12):
        interrupt_at(moment)
        try:
            SharedCopies(memory).write(step + 10, manifest(step + 10))
        except Killed:
            pass
        monkeypatch.setattr(os, "pwrite", write)
        found = SharedCopies(memory).newest()
        assert found is not None
        assert content(found) == expected(found[0])
        assert found[0] in (step, step + 10)
        seen.add(found[0] - step)
        step = found[0]
    assert seen == {0, 10}


@pytest.mark.parametrize(
    ("platform", "flags", "variables", "reason"),
    [
        ("cpu", "", "", None),
        ("tpu", "", "", "collectives of tpu devices"),
        ("gpu", "", "1", "NCCL cannot abort a collective without --xla_gpu_nccl_terminate_on_error=false"),
        ("gpu", " ".join(recovery._ABORT_FLAGS), "", "NCCL cannot abort a collective without XLA_PYTHON_CLIENT_ABORT"),
        ("gpu", " ".join(recovery._ABORT_FLAGS), "1", None),
    ],
)
def test_backends_whose_collectives_cannot_be_aborted(monkeypatch, platform, flags, variables, reason):
    monkeypatch.setattr(recovery.jax, "default_backend", lambda: platform)
    monkeypatch.setenv("XLA_FLAGS", flags)
    for name in recovery._ABORT_VARIABLES:
        monkeypatch.setenv(name, variables)
    found = recovery.why_processes_must_restart()
    assert found is None if reason is None else found is not None and found.startswith(reason)
