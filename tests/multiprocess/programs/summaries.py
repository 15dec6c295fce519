"""`tf.summary` with several workers: ``summaries.py FOLDER``; gives what the event files of each worker contain."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event

import mirrored as mr
import mirrored.tf as tf


def _written(folder: Path) -> list[tuple[str, int, float]]:
    records = [record for file in sorted(folder.glob("events*")) for record in mr.data.TFRecordDataset(str(file))]
    events = [Event.FromString(bytes(one) if isinstance(one, bytes) else one.item()) for one in records]
    return [(one.tag, event.step, one.simple_value) for event in events for one in event.summary.value]


def outcome(strategy: Any, folder: Path) -> dict[str, Any]:
    def replica(at: Any) -> None:
        index = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        tf.summary.scalar("id", index, step=at)

    def step(at: Any) -> None:
        strategy.run(replica, args=(at,))
        tf.summary.scalar("outside", 1.0, step=at)

    found = {}
    for way, run in (("eager", step), ("compiled", tf.function(step))):
        writer = tf.summary.create_file_writer(folder / way)
        with writer.as_default():
            for at in range(2):
                run(tf.constant(at))
        writer.close()
        found[way] = _written(folder / way)
    return found


if __name__ == "__main__":
    made = tf.distribute.MultiWorkerMirroredStrategy()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else os.getpid()
    print("RESULT", json.dumps(outcome(made, Path(sys.argv[1]) / str(index))), flush=True)
