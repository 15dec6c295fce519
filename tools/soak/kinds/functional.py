"""Programs with functional state: `run` calls a training step, and its result is the input of the next call."""

from __future__ import annotations

from typing import Any, Final

from soak import reference
from soak.kinds import text
from soak.kinds.updates import OPTAX
from soak.program import Program

VARIANTS: Final = ("alone", "averaged", "linen", "linen_averaged", "declared", "averaged_declared")
_BODY: Final = """
BATCH = {batch}

def train(devices, replicas):
    strategy = make_strategy(devices, replicas)
    transform = {optax}
    initial = {{name: jnp.asarray(value) for name, value in start({seed}, SHAPES).items()}}
    {state}

    def train_step(state, x, y):
        params = {params}
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean(({model}(p, x) - y)[:, 0] ** 2))(params)
{averaged}
{apply}

    train_step = {jitted}
    losses = []
    batches = [(X[at:at + BATCH], Y[at:at + BATCH]) for at in range(0, len(X), BATCH)] * {epochs}
    for x, y in strategy.experimental_distribute_dataset(batches):
        state, loss = strategy.run(train_step, args=(state, x, y){declared})
        losses.append(strategy.reduce("MEAN", loss, axis=None))
    weights = {{}}
    for name, value in ({result}).items():
        parts = [np.asarray(part) for part in strategy.local_results(value)]
        same = all(np.array_equal(part, parts[0]) for part in parts)
        weights[name] = parts[0].tolist() if same else "differs between replicas"
    return {{"losses": [float(loss) for loss in losses], "weights": weights}}

def program():
    return train({devices}, {replicas})
"""
_DECLARED: Final = ', out_specs=(jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("replica"))'
_PLAIN: Final = """
updates, slots = transform.update(gradients, state[1], params)
return (optax.apply_updates(params, updates), slots), loss
"""


def body(program: Program) -> str:
    """Returns the text of a functional program."""
    linen = program.variant.startswith("linen")
    averaged = "averaged" in program.variant
    state = "state = (initial, transform.init(initial))"
    if linen:
        state = (
            "from flax.training.train_state import TrainState\n"
            "    state = TrainState.create(apply_fn=None, params=initial, tx=transform)"
        )
    apply = "return state.apply_gradients(grads=gradients), loss" if linen else _PLAIN
    mean = 'gradients = mr.get_replica_context().all_reduce("MEAN", gradients)'
    main = _BODY.format(
        batch=program.batch,
        optax=OPTAX[program.optimizer],
        seed=program.seed,
        state=state,
        params="state.params" if linen else "state[0]",
        model=program.model,
        averaged=text.indented(mean if averaged else "", 2),
        apply=text.indented(apply, 2),
        jitted="train_step"
        if program.way == "eager"
        else "mr.function(train_step)"
        if averaged
        else "jax.jit(train_step)",
        declared=_DECLARED if "declared" in program.variant else "",
        epochs=program.epochs,
        result="state.params" if linen else "state[0]",
        devices=program.devices,
        replicas=program.replicas,
    )
    return text.header(program, main)


def expected(program: Program, record: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of training on whole batches on one device."""
    return reference.train(program, reference.orders_of(program))


def refusals(program: Program) -> tuple[str, ...]:
    """Returns the allowed errors and warnings: any about replicas that train alone.

    Averaged gradients keep the state equal on all replicas, so those programs must train, also if they declare it.
    """
    return ("",) if program.replicas > 1 and "averaged" not in program.variant else ()
