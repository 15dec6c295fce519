"""Saves a compiled function on all workers under one path, then each under its own: ``saving.py folder``."""

from __future__ import annotations

import json
import os
import sys

import mirrored.tf as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id


class Scale(tf.Module):
    def __init__(self):
        super().__init__()
        self.factor = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x):
        return self.factor * x


with strategy.scope():
    scale = Scale()

found = {"shared": [], "refused": [], "own": []}
for number in range(4):  # each replaces the program of the previous one
    scale.factor.assign(float(number))
    path = os.path.join(sys.argv[1], "shared")
    tf.saved_model.save(scale, path)
    with strategy.scope():
        loaded = tf.saved_model.load(path)
    found["shared"].append(float(loaded(tf.constant([2.0]))[0]))
own = os.path.join(sys.argv[1], f"of-worker-{worker}")
tf.saved_model.save(scale, own)
with strategy.scope():
    found["own"] = sorted(os.listdir(own))
taken = os.path.join(sys.argv[1], "taken")
if worker == 0:
    os.mkdir(taken)
    with open(os.path.join(taken, "programs"), "w") as file:
        file.write("something else")
tf.saved_model.save(scale, own)  # all workers wait for each other: the folder is there for all of them
try:
    tf.saved_model.save(scale, taken)
except ValueError as error:
    found["refused"].append(error.rule)
found["files"] = sorted(os.listdir(sys.argv[1]))
print("RESULT", json.dumps(found), flush=True)
