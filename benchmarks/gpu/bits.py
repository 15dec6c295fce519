"""Bit-identity of `deterministic=True`, as far as one device can show it.

A training of 8 replicas on D devices has K = 8 / D virtual replicas on each. One device stands for all D of them, one
after another: a program of K replicas runs on each group of shares, and the groups' sums are added by the tree that the
collectives follow. The gradients have to be the same bits for K = 8, 4, 2 and 1. That fails where the compiler treats
the same replica's operations differently in a larger program, or where an operation is not reproducible by itself;
`again` runs one program twice to tell these apart. A strategy with one replica in total calls the function without the
boundaries of a run, so K = 1 adds the run to the program as a strategy with several does (`run_compiled`). Each result
is recorded as identical or different; different is no failure of the piece. Processes are compared in the summary, by
hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from contenders import jax_ops as ops
from contenders import mirrored_training
from spec import Workload, workload

import mirrored as mr
from gpu.contest import TINY
from gpu.recording import Recorder
from mirrored.collectives.summation import tree_sum
from mirrored.runtime.ambient import within
from mirrored.strategies.compiled import run_compiled
from mirrored.strategies.declared_results import OutSpecs

COUNTS = (4, 1) if TINY else (8, 4, 2, 1)
"""Virtual replicas on one device; the first is the number of all replicas."""
_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """What is compared.

    Attributes:
        title: In words.
        work: The network and its examples.
        precision: Of float32 products.
        compiled: Whether the run is compiled.
    """

    title: str
    work: Workload
    precision: str = "highest"
    compiled: bool = True


def measure(recorder: Recorder, which: str) -> None:
    """Compiled networks with counts of replicas that are ``falling`` or ``rising``; or ``others``, see `others`."""
    counts = COUNTS[::-1] if which == "rising" else COUNTS
    for case in others() if which == "others" else networks():
        with recorder.variant(case.title) as figures, jax.default_matmul_precision(case.precision):
            figures |= compared(case, counts)


def networks() -> Iterator[Case]:
    """Three kinds of layers, with and without TF32."""
    names = {"dense layers": "W2", "convolutions": "W3", "attention, written out": "W4"}
    if TINY:
        names = {"dense layers": "W1"}
    for title, name in names.items():
        yield Case(f"{title}, TF32 off", workload(name))
    for title, name in names.items():
        yield Case(f"{title}, TF32 on", workload(name), "tensorfloat32")


def others() -> Iterator[Case]:
    """Fused attention, by cuDNN on a GPU and in bfloat16, and eager runs."""
    plain = workload("W4")
    network = dataclasses.replace(plain.network, fused=True, dtype="bfloat16")
    yield Case("fused attention, bfloat16", dataclasses.replace(plain, network=network))
    yield Case("dense layers, eager", workload("W1" if TINY else "W2"), compiled=False)
    if not TINY:
        yield Case("convolutions, eager", workload("W3"), compiled=False)
        yield Case("attention, written out, eager", plain, compiled=False)


def compared(case: Case, counts: Sequence[int]) -> dict[str, Any]:
    """Whether all counts give the gradients of 8 replicas on one device, bit for bit; and hashes of what came out."""
    found = {count: gradients(case, count) for count in counts}
    expected, again = found[COUNTS[0]]
    return {
        "again": difference(again, expected),
        **{f"K = {count}": difference(found[count][0], expected) for count in COUNTS[1:]},
        "gradients": digest(expected),
        "training": digest(trained(case)),
    }


def gradients(case: Case, count: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The gradients of the global batch, with `count` replicas on each device: computed twice."""
    work = case.work
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=count, deterministic=True)
    with strategy.scope():
        params = {k: mr.Variable(p, name=k) for k, p in work.parameters().items()}

    def replica_gradients(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            values = {k: p.read_value() for k, p in params.items()}
            loss = ops.loss(work.network.logits(ops, values, x), y) / work.terms
        return mr.get_replica_context().all_reduce(mr.ReduceOp.SUM, tape.gradient(loss, list(params.values())))

    def step(x: Any, y: Any) -> Any:
        if count == 1 and case.compiled:
            with within(strategies=(strategy,)):
                return run_compiled(strategy, replica_gradients, (x, y), {}, OutSpecs(None))
        return strategy.run(replica_gradients, args=(x, y))

    gradients_of = mr.function(step) if case.compiled else step
    share = work.batch // COUNTS[0]

    def shares(values: np.ndarray, device: int) -> Any:
        first = device * count
        return strategy.distribute_values_from_function(
            lambda c: values[(first + c.replica_id_in_sync_group) * share :][:share]
        )

    inputs = [[shares(values, device) for values in work.examples()] for device in range(COUNTS[0] // count)]

    def total() -> dict[str, np.ndarray]:
        sums = [[np.asarray(strategy.local_results(g)[0]) for g in gradients_of(*arguments)] for arguments in inputs]
        return {k: tree_sum(parts) for k, parts in zip(params, zip(*sums, strict=True), strict=True)}

    return total(), total()


def trained(case: Case) -> dict[str, np.ndarray]:
    """The weights after some steps on 8 virtual replicas."""
    job = mirrored_training.train(case.work, 1, replicas=COUNTS[0], deterministic=True, compiled=case.compiled)
    for _ in range(_STEPS):
        job.call()
    return {k: np.asarray(value) for k, value in job.weights().items()}


def difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> str:
    """``identical``, or how many elements differ, where first and by how much of the norm."""
    unequal = {k: int((bits(one[k]) != bits(other[k])).sum()) for k in other}
    differing = [k for k, count in unequal.items() if count]
    if not differing:
        return "identical"
    first = differing[0]
    relative = np.linalg.norm(one[first] - other[first]) / (np.linalg.norm(other[first]) or 1.0)
    total = sum(value.size for value in other.values())
    return f"different: {sum(unequal.values())} of {total} elements, {first} by {relative:.1e} of its norm"


def bits(values: np.ndarray) -> np.ndarray:
    """Float32 as integers."""
    return np.ascontiguousarray(values).view(np.uint32)


def digest(values: dict[str, np.ndarray]) -> str:
    """A hash of all bits."""
    hashed = hashlib.sha256()
    for k in sorted(values):
        hashed.update(np.ascontiguousarray(values[k]).tobytes())
    return hashed.hexdigest()[:16]
