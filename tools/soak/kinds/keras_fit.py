"""Programs that train with `Model.fit`, compared with plain JAX."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from soak import models, reference
from soak.kinds import text
from soak.program import Program

VARIANTS: Final = ("fit", "train_on_batch", "steps_per_execution")
_BODY: Final = """
from mirrored.integrations.keras import keras
BATCH = {batch}

def train(devices, replicas):
    strategy = make_strategy(devices, replicas)
    units = [shape[1] for shape in SHAPES.values() if len(shape) == 2]
    with strategy.scope():
        layers = [keras.layers.Dense(n, "tanh" if n != units[-1] else None) for n in units]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile(keras.optimizers.SGD(0.05, momentum={momentum}), "mse", {options})
    model.set_weights(list(start({seed}, SHAPES).values()))
{fit}
    return {{
        "weights": dict(zip(SHAPES, model.get_weights(), strict=True)),
        "predicted": model.predict(X, batch_size=BATCH, verbose=0),
        "evaluated": float(model.evaluate(X, Y, batch_size=BATCH, verbose=0)),
    }}

def program():
    record = train({devices}, {replicas})
    found = {{bits(train(devices, {replicas})) for devices in {layouts}}} | {{bits(record)}}
    record["bits"] = sorted(found) if len(found) > 1 else "equal"
    record["weights"] = {{name: numbers(value) for name, value in record["weights"].items()}}
    record["predicted"] = numbers(record["predicted"])
    return record
"""
_FIT: Final = "model.fit(X, Y, batch_size=BATCH, epochs={epochs}, shuffle=False, verbose=0)"
_ON_BATCH: Final = """
for _ in range({epochs}):
    for at in range(0, len(X), BATCH):
        model.train_on_batch(X[at:at + BATCH], Y[at:at + BATCH])
"""


def body(program: Program) -> str:
    """Returns the text of a program with `fit`."""
    fit = _ON_BATCH if program.variant == "train_on_batch" else _FIT
    return text.header(
        program,
        _BODY.format(
            batch=program.batch,
            momentum=0.9 if program.optimizer == "momentum" else 0.0,
            options="steps_per_execution=2" if program.variant == "steps_per_execution" else "",
            seed=program.seed,
            fit=text.indented(fit.format(epochs=program.epochs), 1),
            devices=program.devices,
            replicas=program.replicas,
            layouts=program.layouts,
        ),
    )


def expected(program: Program, record: dict[str, Any]) -> dict[str, Any]:
    """Returns weights, predictions and the mean loss after training on one device."""
    trained = reference.train(program, reference.orders_of(program))
    x, y, _, _ = models.data(program.seed, program.examples)
    predicted = np.asarray(models.MODELS[program.model](trained["weights"], x))
    return {
        "weights": trained["weights"],
        "predicted": predicted,
        "evaluated": float(((predicted - y) ** 2).mean()),
        "bits": "equal",
    }


def refusals(program: Program) -> tuple[str, ...]:
    """Returns no allowed errors: every program must run."""
    return ()
