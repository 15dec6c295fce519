"""`tf.saved_model.save` on several workers: a program is written once."""

from __future__ import annotations

import pytest

from cluster.jobs import run

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


@pytest.mark.long
def test_workers_save_a_program_once_under_a_shared_path_and_each_under_its_own(tmp_path):
    """All workers wrote the same files at a time, and removed each other's."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for found in run("saving", [1, 1], tmp_path, str(folder)):
        assert found["shared"] == [0.0, 2.0, 4.0, 6.0]
        assert found["own"] == ["programs", "saved_model.json", "variables"]
        assert found["refused"] == ["a saved program can replace only another saved program"]
        assert found["files"] == ["of-worker-0", "of-worker-1", "shared", "taken"]
