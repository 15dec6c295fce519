"""The options for machines of `mirrored run` and `mirrored doctor`: honoured, or refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mirrored.cli import main, options
from mirrored.launcher import Job

SLURM = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}


@pytest.mark.parametrize("command", [["run"], ["doctor"]])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_rank_of_a_machine_needs_the_number_of_machines(command, rank):
    """A scheduler's own rank took its place, silently."""
    program = [__file__] if command == ["run"] else []
    done = CliRunner().invoke(main, [*command, "--node-rank", rank, *program], env=SLURM)
    assert done.exit_code == 1
    assert f"mirrored {command[0]}: --node-rank {rank} was given without --nodes" in done.output


@pytest.mark.parametrize("command", [["run"], ["doctor"]])
def test_one_machine_is_not_replaced_by_those_of_a_scheduler(command):
    program = [__file__] if command == ["run"] else []
    done = CliRunner().invoke(main, [*command, "--nodes", "1", *program], env=SLURM)
    assert done.exit_code == 1
    assert "--nodes 1 was given, and Slurm has started 2 launchers, of which this is number 1" in done.output


def test_a_scheduler_gives_the_machines(monkeypatch):
    for name, text in SLURM.items():
        monkeypatch.setenv(name, text)
    found = options.with_scheduler_nodes(Job(program=__file__))
    assert (found.nodes, found.node_rank, found.coordinator) == (2, 1, "n1:10217")
    given = Job(program=__file__, nodes=3, node_rank=2, coordinator="h:1")
    assert options.with_scheduler_nodes(given) is given
