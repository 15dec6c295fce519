"""The state of one pass over a dataset that a function of another dataset makes, as in `flat_map`."""

from __future__ import annotations

import dataclasses
from typing import Any

from mirrored.data.pipeline.nodes import Node, Run, nodes, random_step_ids, seeded
from mirrored.data.pipeline.seeds import DrawnSeed, derived, is_older


def inner_run(node: Node, run: Run, number: int, outer: Any) -> Run:
    """Returns the `Run` for iterating over a dataset that a user function returns, as in `flat_map`.

    A position does not contain such a dataset, and the function is called again when it is restored. Where the steps
    have drawn their seeds, the run replaces them by seeds that depend only on those of the outer step. A dataset that
    the function makes gets other seeds in every call. One older than the outer step keeps its seeds in all calls. A
    given seed is replaced by that of a restored position (`InnerDatasets`).

    Args:
        node: The inner dataset.
        run: The run of the outer step.
        number: The index of the inner dataset.
        outer: The outer step, which has a `seed`.

    Raises:
        ArgumentError: The dataset does not fit the restored position.
    """
    seed, steps = run.seeds.get(id(outer), outer.seed), seeded(node)
    drawn = {
        id(step): derived(seed, *([] if is_older(step.seed, outer.seed) else [number]), place)
        for place, step in enumerate(steps)
        if isinstance(step.seed, DrawnSeed)
    }
    makers = (*run.makers, id(outer))
    if run.used_makers is not None and drawn:
        # A step that makes datasets uses its seed only for them, unless a cache has their elements already.
        keeps = any(step.keeps_elements for step in nodes(node))
        if any(id(step) in drawn and (keeps or not step.makes_datasets) for step in steps):
            run.used_makers.update(makers)
    if run.inner is not None:
        drawn.update(run.inner.seeds(node, run, number, outer))
    for step in reversed(list(nodes(node))):
        drawn.update(step.kept_seeds())
    places = {**run.places, **random_step_ids(node, run.places.get(id(outer), ()))}
    seeds = {**run.seeds, **drawn}
    return dataclasses.replace(run, path=(*run.key, number), epochs=(), seeds=seeds, places=places, makers=makers)
