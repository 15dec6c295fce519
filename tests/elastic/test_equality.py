"""A worker that could compute other bits than the workers of the job is refused, and the difference is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirrored.cluster import equality, joining
from mirrored.elastic.equality import description, refusal


@pytest.fixture
def cpu_info(tmp_path: Path) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\nflags\t\t: other\n")
    return path


def test_equal_workers_are_accepted(cpu_info):
    assert refusal(description({}, cpu_info), description({}, cpu_info)) is None


def test_the_cpu_flags_are_those_of_the_first_processor(cpu_info):
    assert description({}, cpu_info)[equality.FLAGS] == "avx2 avx512f fpu"


def test_the_flags_of_this_machine_are_found():
    assert description()[equality.FLAGS]
    assert int(description({})[equality.THREADS]) == len(os.sched_getaffinity(0))


def test_another_cpu_is_refused_and_its_flags_are_named(cpu_info, tmp_path):
    other = tmp_path / "other"
    other.write_text("flags\t\t: fpu avx2 amx\n")
    assert refusal(description({}, cpu_info), description({}, other)) == (
        "its CPU differs from that of the workers of the job: it lacks avx512f and has also amx"
    )


def test_many_flags_are_counted(tmp_path, cpu_info):
    other = tmp_path / "other"
    other.write_text(f"flags\t\t: fpu avx2 avx512f {' '.join(f'x{number:02}' for number in range(20))}\n")
    words = refusal(description({}, cpu_info), description({}, other))
    assert words is not None
    assert words.endswith("has also x00, x01, x02, x03, x04, x05, x06, x07 and 12 more")


@pytest.mark.parametrize("name", ["NPROC", "PJRT_NPROC"])
def test_another_number_of_threads_is_refused(cpu_info, name):
    ours, theirs = description({"NPROC": "4"}, cpu_info), description({name: "3"}, cpu_info)
    expected = "the number of XLA's threads is '4' on the workers of the job, and '3' on this one"
    assert refusal(ours, theirs) == expected


def test_pjrt_nproc_comes_before_nproc(cpu_info):
    assert description({"NPROC": "4", "PJRT_NPROC": "2"}, cpu_info)[equality.THREADS] == "2"


def test_other_xla_flags_are_refused(cpu_info):
    ours, theirs = description({}, cpu_info), description({"XLA_FLAGS": "--xla_cpu_max_isa=AVX"}, cpu_info)
    expected = "XLA_FLAGS is '' on the workers of the job, and '--xla_cpu_max_isa=AVX' on this one"
    assert refusal(ours, theirs) == expected


def test_another_jaxlib_is_refused(cpu_info, monkeypatch):
    ours = description({}, cpu_info)
    version = joining.version
    monkeypatch.setattr(joining, "version", lambda name: "9.9" if name == "jaxlib" else version(name))
    words = refusal(ours, description({}, cpu_info))
    assert words is not None
    assert words.startswith("the version of jaxlib is '")
    assert words.endswith("and '9.9' on this one")
