"""Draws random programs. The same seed gives the same programs in the same order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from soak import models
from soak.kinds import functional, functions, keras_fit
from soak.kinds.sources import NAMES, WITH_POSITION
from soak.program import Program, problem

T = TypeVar("T")
_LAYOUTS: Final = ((1, 1), (1, 2), (2, 2), (1, 3), (3, 3), (2, 4), (4, 4), (1, 4), (4, 8), (8, 8), (2, 6), (6, 6))


def programs(seed: int) -> Iterator[Program]:
    """Yields an endless sequence of programs that the documentation allows.

    Kinds and their variants are drawn without replacement, so a short run has all of them.
    """
    rng = random.Random(seed)
    kinds = _deck(rng, [kind for kind, weight in zip(_KINDS, _WEIGHTS, strict=True) for _ in range(weight)])
    variants = {kind: _deck(rng, names) for kind, names in _VARIANTS.items()}
    for kind in kinds:
        variant = next(variants[kind])
        program = _KINDS[kind](rng).replace(variant=variant)
        while problem(program) is not None:
            program = _KINDS[kind](rng).replace(variant=variant)
        yield program


def _deck(rng: random.Random, cards: Sequence[str]) -> Iterator[str]:
    """Yields all cards in random order, then all of them in another order, and so on."""
    while True:
        yield from rng.sample(cards, len(cards))


def _training(rng: random.Random) -> Program:
    devices, replicas = rng.choice(_LAYOUTS)
    batch = rng.choice([2, 4, 6, 8, 12])
    deterministic = rng.random() < 0.4
    event = rng.choices(["none", "restore", "exception", "interrupt", "reader"], [8, 4, 2, 2, 1])[0]
    restore_devices, restore_replicas = rng.choice(_LAYOUTS)
    drawn = Program(
        seed=rng.randrange(2**31),
        model=rng.choices(list(models.SHAPES), [4, 3, 2, 2, 1, 1, 2])[0],
        update=_one(rng, "optimizer", ["optax", "assign", "merge_call", "nnx", "equinox", "keras"], 0.5),
        optimizer=rng.choice(["sgd", "momentum", "adam", "schedule"]),
        clip=_one(rng, "none", ["clipnorm", "global_clipnorm", "clipvalue"], 0.7),
        weighting=rng.choice(["none", "weights", "mask", "nan_argument", "nan_closure"]),
        source=rng.choice(WITH_POSITION if event == "restore" else NAMES),
        examples=batch * rng.randint(1, 3) + rng.choice([0, 0, 0, 1, rng.randrange(batch)]),
        batch=batch,
        epochs=rng.choice([1, 1, 2, 3]),
        last_batch=rng.choice(["split", "split", "pad", "drop"]),
        devices=devices,
        replicas=replicas,
        deterministic=deterministic,
        layouts=_other_layouts(rng, devices, replicas) if deterministic and rng.random() < 0.5 else (),
        way=rng.choices(["eager", "compiled", "inner", "steps_per_call"], [3, 5, 1, 2])[0],
        event=event,
        event_step=rng.randint(0 if event == "exception" else 1, 8),
        restore_devices=restore_devices if event == "restore" else 1,
        restore_replicas=restore_replicas if event == "restore" else 1,
        overwrites=rng.random() < 0.2,
    )
    return _adapted(drawn, rng)


def _adapted(program: Program, rng: random.Random) -> Program:
    """Adapts a program so that its decisions are compatible; random draws alone rarely produce these combinations."""
    if program.model == "two":
        program = program.replace(update="optimizer", way="eager", optimizer="sgd", clip="none")
    if program.source == "argument":
        batch = program.replicas * rng.choice([1, 2])
        way = "compiled" if program.way == "steps_per_call" else program.way
        program = program.replace(batch=batch, examples=batch * rng.randint(1, 4), last_batch="split", way=way)
    if program.way == "steps_per_call":
        batch = program.replicas * rng.choice([1, 2])
        program = program.replace(batch=batch, examples=batch * rng.choice([2, 3, 4]), epochs=2)
    if program.update == "keras":
        model, optimizer = rng.choice(["linear", "mlp"]), rng.choice(["sgd", "momentum"])
        program = program.replace(model=model, optimizer=optimizer, last_batch="split")
    if program.update in ("assign", "merge_call"):
        program = program.replace(optimizer="sgd")
    if program.update in ("nnx", "equinox", "keras"):
        program = program.replace(overwrites=False)
    if program.event == "restore" and program.source == "shuffled" and program.way != "steps_per_call":
        # The second of three epochs: the position must determine the order of the third one.
        steps = len(program.batch_sizes)
        program = program.replace(epochs=3, event_step=steps + rng.randint(1, max(steps, 1)))
    if program.event != "none":
        program = program.replace(event_step=min(program.event_step, max(program.steps - 1, 0)))
    return program if program.update == "optimizer" else program.replace(clip="none")


def _functional(rng: random.Random) -> Program:
    devices, replicas = rng.choice(_LAYOUTS)
    batch = replicas * rng.choice([1, 2])
    return Program(
        kind="functional",
        seed=rng.randrange(2**31),
        model=rng.choice(["linear", "mlp"]),
        optimizer=rng.choice(["sgd", "momentum", "adam"]),
        batch=batch,
        examples=batch * rng.randint(1, 3),
        epochs=rng.choice([1, 2]),
        devices=devices,
        replicas=replicas,
        way=rng.choice(["eager", "compiled"]),
    )


def _functions(rng: random.Random) -> Program:
    devices, replicas = rng.choice(_LAYOUTS)
    return Program(
        kind="functions",
        seed=rng.randrange(2**31),
        examples=rng.randint(4, 9),
        devices=1 if rng.random() < 0.5 else devices,
        replicas=replicas,
        way=rng.choice(["eager", "compiled", "inner"]),
    )


def _keras_fit(rng: random.Random) -> Program:
    devices, replicas = rng.choice(_LAYOUTS)
    batch = rng.choice([4, 8, 12])
    deterministic = rng.random() < 0.7
    return Program(
        kind="keras_fit",
        seed=rng.randrange(2**31),
        model=rng.choice(["linear", "mlp"]),
        optimizer=rng.choice(["sgd", "momentum"]),
        batch=batch,
        examples=batch * rng.randint(1, 3) + rng.choice([0, 0, rng.randrange(batch)]),
        epochs=rng.choice([1, 2]),
        devices=devices,
        replicas=replicas,
        deterministic=deterministic,
        layouts=_other_layouts(rng, devices, replicas) if deterministic else (),
    )


_KINDS: Final = {"training": _training, "functional": _functional, "functions": _functions, "keras_fit": _keras_fit}
_WEIGHTS: Final = (14, 1, 2, 1)
_VARIANTS: Final[dict[str, Sequence[str]]] = {
    "training": ("",),
    "functional": functional.VARIANTS,
    "functions": functions.VARIANTS,
    "keras_fit": keras_fit.VARIANTS,
}


def _one(rng: random.Random, usual: T, others: Sequence[T], share: float) -> T:
    return usual if rng.random() < share else rng.choice(others)


def _other_layouts(rng: random.Random, devices: int, replicas: int) -> tuple[int, ...]:
    others = [count for count in range(1, replicas + 1) if replicas % count == 0 and count != devices]
    return tuple(sorted(rng.sample(others, min(len(others), 2))))
