"""Plain datasets of which each worker reads its own batches, in Keras' loops."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from mirrored._jax import distributed
from mirrored.data import AutoShardPolicy, Dataset, DistributedDataset, Options, TextLineDataset
from mirrored.data.pipeline import dataset_source
from mirrored.errors import ArgumentError, StructureError
from mirrored.integrations.keras.own_data import own_or_same

_BOTH = [AutoShardPolicy.FILE, AutoShardPolicy.OFF]
_SAME = [AutoShardPolicy.AUTO, AutoShardPolicy.DATA, AutoShardPolicy.HINT]


@pytest.fixture(autouse=True)
def no_other_worker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange of the batch sizes returns the value of this process, which is the only one."""
    monkeypatch.setattr(dataset_source, "host_allgather", lambda called, question, value: [value])


def strategy() -> Any:
    """A strategy over two workers, of which this process is the first."""
    devices = [SimpleNamespace(process_index=process) for process in range(2)]
    slots = SimpleNamespace(first_on=lambda device: device, devices=2)
    assignment = SimpleNamespace(
        devices=devices, slots=slots, num_replicas=2, spans_processes=True, addressable_replicas=[0]
    )
    return SimpleNamespace(device_assignment=assignment)


def with_policy(dataset: Any, policy: AutoShardPolicy) -> Any:
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def lines(folder: Any) -> Any:
    for name in "ab":
        (folder / name).write_text("1\n2\n")
    return TextLineDataset([str(folder / name) for name in "ab"]).batch(2)


@pytest.mark.parametrize("policy", _SAME)
def test_all_workers_read_the_same_dataset(policy):
    dataset = with_policy(Dataset.range(8).batch(4), policy)
    assert own_or_same(dataset, strategy(), "keras.Model.fit") is dataset


@pytest.mark.parametrize("policy", _BOTH)
def test_one_worker_reads_all_of_the_dataset(policy):
    dataset = with_policy(Dataset.range(8).batch(4), policy)
    alone = SimpleNamespace(device_assignment=SimpleNamespace(spans_processes=False))
    default = SimpleNamespace(device_assignment=None)
    for one in (None, default, alone):
        assert own_or_same(dataset, one, "keras.Model.fit") is dataset


def test_a_dataset_is_distributed_once_for_the_devices_of_a_strategy(tmp_path):
    dataset = with_policy(lines(tmp_path), AutoShardPolicy.FILE)
    first, second = strategy(), strategy()
    distributed_dataset = own_or_same(dataset, first, "keras.Model.fit")
    assert isinstance(distributed_dataset, DistributedDataset)
    assert own_or_same(dataset, first, "keras.Model.evaluate") is distributed_dataset
    assert own_or_same(distributed_dataset, first, "keras.Model.fit") is distributed_dataset
    assert own_or_same(dataset, second, "keras.Model.fit") is not distributed_dataset
    for copied in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        again = own_or_same(copied, first, "keras.Model.fit")
        assert isinstance(again, DistributedDataset)
        assert again is not distributed_dataset


def test_a_policy_that_is_changed_in_place_applies_from_the_next_call(tmp_path):
    dataset, own = with_policy(lines(tmp_path), AutoShardPolicy.DATA), strategy()
    distribute = dataset.options().experimental_distribute
    assert own_or_same(dataset, own, "keras.Model.fit") is dataset
    distribute.auto_shard_policy = AutoShardPolicy.FILE
    by_files = own_or_same(dataset, own, "keras.Model.fit")
    assert isinstance(by_files, DistributedDataset)
    assert own_or_same(dataset, own, "keras.Model.fit") is by_files
    distribute.auto_shard_policy = AutoShardPolicy.DATA
    assert own_or_same(dataset, own, "keras.Model.fit") is dataset


@pytest.mark.parametrize("policy", _BOTH)
def test_an_elastic_job_refuses_the_dataset(policy, monkeypatch):
    monkeypatch.setattr(distributed, "is_elastic", lambda: True)
    words = rf"keras\.Model\.fit: the dataset has AutoShardPolicy\.{policy.name}, in a job of mirrored run --elastic"
    with pytest.raises(ArgumentError, match=words):
        own_or_same(with_policy(Dataset.range(8).batch(4), policy), strategy(), "keras.Model.fit")


@pytest.mark.parametrize("policy", _BOTH)
def test_errors_name_the_method(policy):
    with pytest.raises(StructureError, match=r"keras\.Model\.predict: the dataset is not batched"):
        own_or_same(with_policy(Dataset.range(8), policy), strategy(), "keras.Model.predict")


def test_each_worker_must_have_a_file(tmp_path):
    (tmp_path / "a").write_text("1\n2\n")
    dataset = with_policy(TextLineDataset(str(tmp_path / "a")).batch(2), AutoShardPolicy.FILE)
    with pytest.raises(ArgumentError, match=r"keras\.Model\.fit: AutoShardPolicy\.FILE for 2 workers, and .* 1 files"):
        own_or_same(dataset, strategy(), "keras.Model.fit")
