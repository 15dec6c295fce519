"""A strategy over real processes: what one process does with as many replicas, several do."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from cluster.jobs import job, module_of, run
from mirrored.checkpoint import Checkpoint, CheckpointReader

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


def expected(*ways: str, deterministic: bool, replicas: int = 4, devices: int = 4) -> dict[str, Any]:
    """What one process does."""
    names = [f"CPU:{index}" for index in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=deterministic)
    outcomes: dict[str, Any] = module_of("training").outcomes(strategy, *ways)
    return outcomes


def check_training(found: list[Any], alone: dict[str, Any], *, same_bits: bool) -> None:
    for way, outcome in alone.items():
        for worker in found:
            np.testing.assert_allclose(worker[way]["losses"], outcome["losses"], rtol=2e-5)
            assert worker[way]["seen"] == outcome["seen"] == (37.0 if way == "eager" else 74.0)
            assert worker[way]["bits"] == found[0][way]["bits"], "copies that differ between workers"
        if same_bits:
            assert (found[0][way]["bits"], found[0][way]["losses"]) == (outcome["bits"], outcome["losses"]), way


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", ["merge", "variables", "sum", "mean", "gather", "constant", "average"])
def test_tapes_around_collectives_in_eager_replicas(part, tmp_path):
    """A target that does not depend on a recorded collective, and a tape around a tape, raised errors."""
    strategy = mr.MirroredStrategy([f"CPU:{index}" for index in range(4)], deterministic=True)
    alone = module_of("tapes").outcomes(strategy, part)
    for found in run("tapes", [2, 2], tmp_path, part, seconds=100):
        assert found.keys() == alone.keys()
        for name, values in alone.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, err_msg=name)


@pytest.mark.long
def test_everything_on_two_workers_with_two_devices_each(tmp_path):
    first, second = run("everything", [2, 2], tmp_path, str(tmp_path / "checkpoints"))
    for index, found in enumerate((first, second)):
        ids = [2.0 * index, 2.0 * index + 1]
        assert (found["replicas"], found["task"]) == (4, ["worker", index])
        assert found["devices"] == [f"/job:worker/replica:0/task:{index}/device:CPU:{device}" for device in range(2)]
        assert found["chief"] is (index == 0)
        assert found["drawn"] == first["drawn"]
        assert found["ids"] == ids
        for way, v, count in (("eager", 11.5, 4.0), ("compiled", 13.0, 8.0)):
            seen = found[way]
            assert seen["total"] == [12.0, 12.0]
            assert seen["mean"] == [1.5, 1.5]
            assert seen["all"] == [[0.0, 1.0, 2.0, 3.0]] * 2
            assert set(seen["merged"]) == {6.0}
            assert seen["gradient"] == [8.0 * replica for replica in ids]
            assert (seen["x"], seen["sum"], seen["mean over rows"]) == (ids, 6.0, 1.5)
            assert (seen["v"], seen["count"]) == (v, count)
            assert seen["gathered"] == [0.0, 1.0, 2.0, 3.0] * 4
        assert found["own"] == [2 * index, 2 * index + 1]
        assert (found["largest"], found["largest id"]) == (3.0, 3.0)
        assert found["ragged"] == [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
        assert found["ragged, compiled"] == [2.0, 4.0, 4.0, 4.0, 4.0, 4.0]
        assert found["refused gather"] == "axis=0 for components of shapes (1, 1), (1, 1), (1, 2), (1, 2)"
        assert found["ragged mean"] == pytest.approx(11 / 6)
        assert "the value for variable 'v' on worker 1" in found["refused"]
        assert found["v"] == 5.0
        assert "mirrored variable 'drawn' on worker 1" in found["refused in run"]
        value = np.asarray(found["drawn"], np.float32)
        np.testing.assert_allclose(found["outside run"], [3 * value**2, 6 * value], rtol=1e-5)
        assert all("eager run with replicas on several workers" in error for error in found["around run"])
        assert found["outside run, alone"] == (found["outside run"] if index == 1 else None)
        assert found["two steps"] == [6.0, 6.0]
        assert (found["none yet"], found["restored"], found["as before"]) == (None, 3, True)
        assert found["kept"] == ["ckpt-2", "ckpt-3"]
        assert found["own folder"] == f"of-worker-{index}"
    # What was written once by several workers is read by one, and what a worker has written for itself too.
    saved = CheckpointReader(tmp_path / "checkpoints" / "ckpt-3")
    assert saved.read("own").tolist() == [0, 1, 2, 3]
    assert float(CheckpointReader(tmp_path / "checkpoints" / "of-worker-1").read("v")) == 8.0
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v, drawn = mr.Variable(0.0), mr.Variable(np.zeros(3))
    Checkpoint(v=v, drawn=drawn).restore(tmp_path / "checkpoints" / "ckpt-3").expect_partial()
    assert (float(v.numpy()), drawn.numpy().tolist()) == (8.0, first["drawn"])


@pytest.mark.long
def test_the_same_bits_on_two_workers_as_in_one_process(tmp_path):
    found = run("train", [2, 2], tmp_path, "deterministic", "0", "uneven")
    check_training(found, expected("uneven", deterministic=True), same_bits=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("devices", [[1, 1, 1, 1], [1, 3], [4, 4]], ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_losses_on_any_number_of_workers(tmp_path, devices, deterministic):
    found = run("train", devices, tmp_path, "deterministic" if deterministic else "any", "0")
    alone = expected(deterministic=deterministic, replicas=sum(devices), devices=sum(devices))
    check_training(found, alone, same_bits=deterministic)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_replicas_folded_on_the_devices_of_two_workers(tmp_path):
    found = run("train", [1, 1], tmp_path, "deterministic", "4")
    check_training(found, expected(deterministic=True, devices=1), same_bits=True)


@pytest.mark.long
def test_elements_of_values_are_those_of_the_worker_or_refused_and_are_restored(tmp_path):
    for index, found in enumerate(run("components", [2, 2], tmp_path, str(tmp_path / "checkpoint"))):
        own = [2.0 * index + 1, 2.0 * index + 2]
        assert found["outside"] == found["merged"] == own
        assert found["second, in a replica"] == [own[1]] * 2
        for way in ("function", "compiled run", "assigned"):
            assert found[way].startswith("a component of sync-on-read variable 'seen' is used in a compiled function")
        assert found["outside, after"] == own
        shares = [20.0 * index, 20.0 * index + 10]
        for kind in ("NumPy", "Python"):
            assert found[f"{kind}, eager"] == found[f"{kind}, compiled"] == [shares, 60.0]
            assert found[f"{kind}, reduced"] == 6.0
        assert found["gathered"] == [0.0, 1.0, 2.0, 3.0]
        assert found["mirrored"] == [3.0, 3.0]
        assert found["both"] == [2.0 * index + 1]
        assert found["both, traced"] == 3.0
        assert found["function of both"] == [[6.0 * index], [6.0 * index + 3]]
        tenths = [float(np.float32(one / 10)) for one in own]
        assert found["saved"] == found["restored"] == tenths


@pytest.mark.long
def test_sigterm_to_one_worker_ends_all_after_the_same_step_and_the_next_start_goes_on(tmp_path):
    folder = str(tmp_path / "checkpoints")
    with job("preempted", [1, 1], tmp_path, folder, "100000", "0.01") as started:
        started.wait_for(0, "STEP 10")
        started.workers[1].send_signal(signal.SIGTERM)
        ended = started.ends(20)
    assert [end.code for end in ended] == [0, 0]
    messages = [[line for line in end.output.splitlines() if "received SIGTERM" in line] for end in ended]
    assert messages[0] == messages[1]
    (message,) = messages[0]
    step = int(message.split("saved step ")[1].split()[0])
    assert step > 10
    found = run("preempted", [1, 1], tmp_path, folder, str(step + 3), "0")
    assert found == [[step, 2.0 * (step + 3)]] * 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_data_of_each_workers_own(tmp_path):
    for part, lines in enumerate(["0 1 2 3 4", "10 11 12", "5 6 7"]):
        (tmp_path / f"part-{part}.txt").write_text("".join(f"{line}\n" for line in lines.split()))
    first, second = run("reading", [2, 2], tmp_path, str(tmp_path))
    # Worker 0 reads files 0 and 2, worker 1 file 1, in halves of the global batches; it ends with empty ones.
    assert first["file"] == [[[0.0], [1.0]], [[2.0], [3.0]], [[4.0], [5.0]], [[6.0], [7.0]]]
    assert second["file"] == [[[10.0], [11.0]], [[12.0], []], [[], []], [[], []]]
    assert first["file sums"] == second["file sums"] == [22.0, 17.0, 9.0, 13.0]
    # All of worker 1's files are empty: it takes part with empty batches from the beginning.
    assert first["alone"] == [[[[0.0], [1.0]], [[2.0], [3.0]], [[4.0], []]], [1.0, 5.0, 4.0]]
    assert second["alone"] == [[[[], []]] * 3, [1.0, 5.0, 4.0]]
    assert first["off"] == second["off"] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert first["lengths"] == second["lengths"] == [2.0, 7.0, 9.0, 6.0]
    assert first["one order"] == second["one order"]
    assert sorted(first["one order"][0]) == list(range(16))
    for shares in zip(first["shards"], second["shards"], strict=True):  # of each pass, without a seed
        assert sorted(np.ravel(shares).tolist()) == list(range(16))
    assert (first["resumed"], second["resumed"]) == (True, True)
    assert (first["rest"], second["rest"]) == (first["file"][1:], second["file"][1:])


@pytest.mark.long
def test_a_position_after_the_end_of_one_workers_data(tmp_path):
    first, second = run("ended_data", [1, 1], tmp_path)
    for name, (rest, continued) in first.items():
        assert len(rest) == 2, name
        assert continued == rest, name
        assert [part[0] for batch in rest for part in batch] == [2] * sum(map(len, rest)), name
    for name, (rest, continued) in second.items():
        assert len(rest) == 2, name
        assert continued == rest, name
        assert [part[0] for batch in rest for part in batch] == [0] * sum(map(len, rest)), name


@pytest.mark.long
def test_a_worker_without_any_data(tmp_path):
    first, second = run("empty_data", [1, 1], tmp_path)
    for found in (first, second):
        assert found["elements of a known structure"] == [3.0, 3.0]
        assert found["batches of a known structure"] == [1.0, 2.0, 3.0]
        for unknown in ("elements of a list", "elements of an unknown structure", "batches of an unknown structure"):
            message, seconds = found[unknown]
            assert "the data of worker 1 is empty, and the other workers have data" in message
            assert seconds < 10
    assert (first["padded"], second["padded"]) == ([[True]] * 3, [[]] * 3)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("variables", "DisagreementError", "float32[2] on worker 0, float32[3] on worker 1"),
        (
            "chief_alone",
            "AbsentWorkerError",
            "worker 1 did not arrive within 5 s at: run chief_alone.<locals>.<lambda> eagerly",
        ),
        (
            "reads_alone",
            "AbsentWorkerError",
            "worker 1 did not arrive within 5 s at: read the sync-on-read variable 'counter' (at apart.py:",
        ),
        ("reads_apart", "DisagreementError", "worker 0 is at: read the sync-on-read variable 'counter' (at apart.py:"),
        ("elsewhere", "DisagreementError", "worker 1 is at: create variable 'other'"),
        ("arguments", "DisagreementError", "array 0 of its arguments on worker 1"),
        ("later_arguments", "DisagreementError", "array 0 of its arguments on worker 1"),
        ("taped_arguments", "DisagreementError", "array 0 of its arguments on worker 1"),
        ("captured", "DisagreementError", "captured array 0 on worker 1"),
        ("captured_inside", "DisagreementError", "captured array 0 on worker 1"),
        ("plain_variable", "DisagreementError", "variable 'own' on worker 1"),
        ("later_variable", "DisagreementError", "variable 'rate' on worker 1"),
        ("same_names", "DisagreementError", "mirrored variable 'w' on worker 1"),
        ("plain_same_names", "DisagreementError", "variable 'w' on worker 1"),
        ("other_variables", "DisagreementError", "worker 0 passed 1 variable named 'w', worker 1 passed 0"),
        ("updates_another", "DisagreementError", "worker 0 passed 1 variable named 'Variable', worker 1 passed 0"),
        (
            "creates_in_another_order",
            "DisagreementError",
            "worker 1 has created the variables named 'w' in another order than worker 0",
        ),
        ("assigns_another", "DisagreementError", "compare mirrored variable 'w (number 2 of this name)'"),
        ("returned_number", "DisagreementError", "['loss'] on worker 1"),
        ("returned_argument", "DisagreementError", "values differ from those of worker 0"),
        (
            "reduced_shapes",
            "DisagreementError",
            "array 1 of an all-reduce is float32[2] on worker 0 and float32[3] on worker 1",
        ),
        ("reduced_types_outside", "StructureError", "the components have the dtypes float32, int32"),
        ("reduced_sizes_outside", "StructureError", "the components have the shapes (2, 3), (3, 2)"),
        ("reduced_rows_outside", "StructureError", "the components have the shapes (3,), (2,)"),
        ("assigned_sizes", "StructureError", "the components have the shapes (4,), (2, 2)"),
        ("key", "DisagreementError", "array 0 of its arguments on worker 1"),
        ("batches", "DisagreementError", "element of the first batch on worker 1"),
        ("later_batches", "DisagreementError", "element of batch 8 on worker 1"),
    ],
)
def test_a_worker_that_goes_its_own_way_is_named(tmp_path, how, kind, words):
    with job("apart", [1, 1], tmp_path, how, MIRRORED_AGREEMENT_SECONDS="5") as started:
        started.wait_for(0, "RESULT", 30)
        found = [line for line in started.output(0).splitlines() if line.startswith("RESULT")]
    assert kind in found[0]
    assert words in found[0]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_eager_replicas_of_several_workers_may_do_different_things(tmp_path):
    alone = module_of("unlike_replicas").outcome(mr.MirroredStrategy(["CPU:0", "CPU:1"]))
    assert alone["gradients"] == [[1.0] * 3, [10.0] * 3, None]
    assert alone["updated"] == [0.5, -4.5, 1.0]
    assert alone["in another order"] == [-1.0, -19.0, -3.0]
    assert [len(keys) for keys in alone["keys"]] == [2, 3, 2, 3]
    assert alone["given"] == [3, True, 0.5]
    assert alone["unnamed"] == 18.0
    assert alone["sums"] == [5.0, 0.75]
    assert run("unlike_replicas", [1, 1], tmp_path, seconds=100) == [alone, alone]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_prng_keys_are_arguments_and_variables_of_several_workers(tmp_path):
    first, second = run("keys", [2, 2], tmp_path, str(tmp_path))
    assert first == second
    for way in ("argument", "eager argument", "captured", "variable", "aggregate"):
        assert first[way] == first["expected"], way
    assert first["restored"] == [True, True]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_thousand_steps_take_no_more_memory_or_descriptors(tmp_path):
    for found in run("enduring", [1, 1], tmp_path, str(tmp_path / "checkpoints"), seconds=280):
        (early_files, early_bytes, _), *_, (late_files, late_bytes, threads) = found
        assert late_files <= early_files, found
        assert late_bytes <= 1.03 * early_bytes, found
        assert threads <= found[0][2], found


@pytest.mark.parametrize("kind", ["deterministic", "ordinary"])
@pytest.mark.first(1)
@pytest.mark.long
def test_workers_with_other_numbers_of_threads_are_refused_or_warned_of(tmp_path, kind):
    for result in run("unequal", [1, 1], tmp_path, kind):
        assert "the number of XLA's threads is '1' on worker 0" in result[-1]
        assert len(result) == (2 if kind == "deterministic" else 1)


@pytest.mark.long
@pytest.mark.timeout(120)
def test_the_first_worker_writes_summaries_of_replica_0(tmp_path):
    """Eager code outside of `run` belongs to each worker, compiled code to all of them."""
    first, second = run("summaries", [1, 1], tmp_path, str(tmp_path), seconds=100)
    ids, outside = ([[tag, at, value] for at in range(2)] for tag, value in (("id", 0.0), ("outside", 1.0)))
    for written in first.values():
        assert sorted(written) == ids + outside
    assert second == {"eager": outside, "compiled": []}
