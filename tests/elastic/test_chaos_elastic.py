"""The tool that kills the workers of an elastic job: its plan, and a short run of it."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path

import chaos_elastic
import pytest

FAILURES = {"one": 1, "first": 1, "pair": 2, "reconfiguration": 2, "join": 2}


@pytest.mark.parametrize("kills", [1, 6, 30])
def test_as_many_failures_as_asked_for_of_all_kinds(kills):
    options = argparse.Namespace(kills=kills, stops=0, slow=0)
    kinds = chaos_elastic.planned(random.Random(0), options)
    assert kills <= sum(FAILURES[kind] for kind in kinds) <= kills + 1
    assert kills < 8 or set(kinds) == set(chaos_elastic.KINDS)


def test_stops_instead_of_kills():
    assert chaos_elastic.planned(random.Random(0), argparse.Namespace(kills=30, stops=3, slow=1)) == [
        *["stop"] * 3,
        "slow",
    ]


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_an_elastic_job_survives_failures_of_all_kinds_with_the_same_bits():
    tool = Path(chaos_elastic.__file__).with_name("chaos.py")
    ran = subprocess.run(
        [sys.executable, str(tool), "--elastic", "--kills", "8"], capture_output=True, text=True, timeout=580
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "bit-identical, same examples" in ran.stdout
