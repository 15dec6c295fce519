"""`ClusterSpec`."""

from __future__ import annotations

import pytest

from mirrored.cluster import ClusterSpec
from mirrored.errors import ArgumentTypeError, ClusterError


@pytest.fixture
def spec():
    return ClusterSpec({"worker": ["a:1", "b:1"], "ps": {0: "c:1", 2: "d:1"}})


def test_questions(spec):
    assert sorted(spec.jobs) == ["ps", "worker"]
    assert (spec.num_tasks("worker"), spec.num_tasks("ps")) == (2, 2)
    assert spec.task_indices("ps") == [0, 2]
    assert spec.task_address("ps", 2) == "d:1"
    assert spec.job_tasks("worker") == ["a:1", "b:1"]
    assert spec.job_tasks("ps") == ["c:1", None, "d:1"]
    assert spec.as_dict() == {"worker": ["a:1", "b:1"], "ps": {0: "c:1", 2: "d:1"}}


def test_equality_truth_and_text(spec):
    assert spec == ClusterSpec(spec) == ClusterSpec(spec.as_dict())
    assert hash(spec) == hash(ClusterSpec(spec))
    assert spec != ClusterSpec({})
    assert spec != "spec"
    assert not ClusterSpec({})
    assert repr(ClusterSpec({"worker": ["a:1"]})) == "ClusterSpec({'worker': ['a:1']})"


def test_the_list_of_jobs(spec):
    listed = spec.as_cluster_def()
    assert [(job.name, job.tasks) for job in listed.job] == [
        ("ps", {0: "c:1", 2: "d:1"}),
        ("worker", {0: "a:1", 1: "b:1"}),
    ]
    assert ClusterSpec(listed) == spec
    assert str(ClusterSpec({"worker": ["a:1"]}).as_cluster_def()) == (
        'job {\n  name: "worker"\n  tasks {\n    key: 0\n    value: "a:1"\n  }\n}\n'
    )


def test_dense_dict_is_a_list():
    assert ClusterSpec({"worker": {1: "b:1", 0: "a:1"}}).as_dict() == {"worker": ["a:1", "b:1"]}


def test_what_is_not_there(spec):
    with pytest.raises(ClusterError, match="No task with index 5 in job 'worker'"):
        spec.task_address("worker", 5)
    with pytest.raises(ValueError, match="No such job in cluster: 'chief'"):
        spec.num_tasks("chief")


@pytest.mark.parametrize("wrong", [["a:1"], {"worker": "a:1"}, {"worker": [1]}, {3: ["a:1"]}, {"w": {"0": "a"}}, None])
def test_wrong_kinds(wrong):
    with pytest.raises(ArgumentTypeError, match="lists of addresses"):
        ClusterSpec(wrong)


def test_negative_index():
    with pytest.raises(ClusterError, match="a task has the index -1"):
        ClusterSpec({"worker": {-1: "a:1"}})
