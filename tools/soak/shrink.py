"""Shrinks a failing program: makes it simpler as long as it fails in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from soak.program import COUNTS, Program, problem


def shrink(program: Program, fails: Callable[[Program], bool], trials: int = 60) -> Program:
    """Returns the simplest program found that still fails.

    Args:
        program: A failing program.
        fails: Runs a program and returns whether it fails in the same way.
        trials: Maximum number of runs.

    Returns:
        A program that fails, while no simpler neighbor does; or the simplest one after all trials.
    """
    tried = {program}
    while True:
        for simpler in simplifications(program):
            if simpler in tried:
                continue
            if trials == 0:
                return program
            tried.add(simpler)
            trials -= 1
            if fails(simpler):
                program = simpler
                break
        else:
            return program


def simplifications(program: Program) -> Iterator[Program]:
    """Yields programs with one decision less, largest steps first; only those that the documentation allows."""
    for simpler in (*_defaults(program), *_fewer_replicas(program), *_less_data(program)):
        if simpler != program and problem(simpler) is None:
            yield simpler


def _defaults(program: Program) -> Iterator[Program]:
    """Yields programs with one decision, or all decisions about one topic, at the simplest value."""
    yield program.replace(event="none", event_step=1, restore_devices=1, restore_replicas=1)
    yield program.replace(devices=1, replicas=1, layouts=())
    yield program.replace(layouts=(), deterministic=False)
    for field in dataclasses.fields(program):
        if field.name in ("kind", "variant", "seed", "examples", "batch"):
            continue
        if getattr(program, field.name) != field.default:
            yield program.replace(**{field.name: field.default})


def _fewer_replicas(program: Program) -> Iterator[Program]:
    for count in COUNTS:
        if count < program.replicas:
            yield program.replace(replicas=count, devices=min(count, program.devices))
        if count < program.devices:
            yield program.replace(devices=count)
    if program.layouts:
        yield program.replace(layouts=program.layouts[:1])


def _less_data(program: Program) -> Iterator[Program]:
    for batch in (2, 4):
        if batch < program.batch:
            yield program.replace(batch=batch, examples=min(program.examples, 2 * batch))
    for examples in (program.batch, 2 * program.batch, program.examples // 2, program.examples - 1):
        if 0 < examples < program.examples:
            yield program.replace(examples=examples)
    if program.event_step > 1:
        yield program.replace(event_step=1)
    if program.epochs > 2:
        yield program.replace(epochs=2)
