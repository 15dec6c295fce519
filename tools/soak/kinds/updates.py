"""Update paths: the text of `build(strategy)`, which creates parameters, optimizer and `replica_step`."""

from __future__ import annotations

from typing import Final

from soak.kinds.text import indented
from soak.program import Program

_MR: Final = {
    "sgd": "mr.optimizers.SGD(0.05{clip})",
    "momentum": "mr.optimizers.SGD(0.05, momentum=0.9{clip})",
    "adam": "mr.optimizers.Adam(0.05, epsilon=1e-3{clip})",
    "schedule": "mr.optimizers.SGD(lambda count: 0.05 / (1.0 + count){clip})",
}
_CLIP: Final = {
    "none": "",
    "clipvalue": ", clipvalue=0.2",
    "global_clipnorm": ", global_clipnorm=0.5",
    "clipnorm": ", clipnorm=0.5",
}
OPTAX: Final = {
    "sgd": "optax.sgd(0.05)",
    "momentum": "optax.sgd(0.05, 0.9)",
    "adam": "optax.adam(0.05, eps=1e-3)",
    "schedule": "optax.sgd(lambda count: 0.05 / (1.0 + count))",
}
_KERAS: Final = {
    "sgd": "keras.optimizers.SGD(0.05)",
    "momentum": "keras.optimizers.SGD(0.05, momentum=0.9)",
}
_VARIABLES: Final = "params = {name: mr.Variable(value, name=name) for name, value in initial.items()}"

# What the scope creates; then, in a replica, the `gradients` of `loss` and how they are applied.
_MADE: Final = {
    "optimizer": _VARIABLES + "\noptimizer = MR",
    "assign": _VARIABLES,
    "merge_call": _VARIABLES,
    "optax": "params = mr.mirror(initial)\ntransform = OPTAX\nstate = mr.mirror(transform.init(mr.unmirror(params)))",
    "nnx": """
        class Model(nnx.Module):
            def __init__(self):
                for name, value in initial.items():
                    setattr(self, name, nnx.Param(jnp.asarray(value)))
        model = Model()
        optimizer = nnx.Optimizer(model, OPTAX, wrt=nnx.Param)
    """,
    "equinox": """
        class Model(equinox.Module):
            p: dict
        model = mr.mirror(Model({name: jnp.asarray(value) for name, value in initial.items()}))
        optimizer = mr.optimizers.Optimizer(OPTAX)
    """,
    "keras": """
        units = [shape[1] for shape in SHAPES.values() if len(shape) == 2]
        layers = [keras.layers.Dense(n, "tanh" if n != units[-1] else None) for n in units]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.set_weights(list(initial.values()))
        optimizer = KERAS
        optimizer.build(model.trainable_variables)
    """,
}
_HOLDS: Final = {
    "nnx": "p = {name: getattr(model, name)[...] for name in SHAPES}",
    "equinox": "p = model.p",
    "keras": "p = None",
}
_SOURCES: Final = {
    "nnx": "nnx.state(model, nnx.Param)",
    "equinox": "model",
    "keras": "model.trainable_variables",
    "optax": "params",
}
_APPLY: Final = {
    "optimizer": "optimizer.apply_gradients(zip(gradients, params.values(), strict=True))",
    "assign": """
        gradients = mr.get_replica_context().all_reduce("SUM", gradients)
        for variable, gradient in zip(params.values(), gradients, strict=True):
            variable.assign(variable - 0.05 * gradient)
    """,
    "merge_call": """
        def merged(strategy, gradients):
            gradients = [strategy.reduce("SUM", one, axis=None) if isinstance(one, mr.PerReplica) else one
                         for one in gradients]
            for variable, gradient in zip(params.values(), gradients, strict=True):
                strategy.extended.update(variable, lambda v, g: v.assign_sub(0.05 * g), args=(gradient,))
        mr.get_replica_context().merge_call(merged, args=(gradients,))
    """,
    "optax": """
        gradients = mr.get_replica_context().all_reduce("SUM", gradients)
        before = mr.unmirror(params)
        updates, after = transform.update(gradients, mr.unmirror(state), before)
        mr.assign(params, optax.apply_updates(before, updates))
        mr.assign(state, after)
    """,
    "nnx": "optimizer.update(model, gradients)",
    "equinox": "optimizer.apply_gradients([(gradients, model)])",
    "keras": "optimizer.apply_gradients(zip(gradients, model.trainable_variables))",
}
_READ: Final = {
    "nnx": "{name: np.asarray(getattr(mr.unmirror(model), name)[...]) for name in SHAPES}",
    "equinox": "{name: variable.numpy() for name, variable in model.p.items()}",
    "keras": "dict(zip(SHAPES, model.get_weights(), strict=True))",
}
_COPIES: Final = {
    "nnx": "[]",
    "equinox": "list(model.p.values())",
    "keras": "[]",
}
_STATE: Final = {
    "optimizer": "dict(params=params, optimizer=optimizer, count=count)",
    "optax": "dict(params=params, state=state, count=count)",
    "nnx": "dict(model=model, optimizer=optimizer, count=count)",
    "equinox": "dict(model=model.p, optimizer=optimizer, count=count)",
    "keras": "dict(model=model, optimizer=optimizer, count=count)",
}
_WEIGHT: Final = {
    "none": "None",
    "weights": "w",
    "mask": "i % 3 != 0",
    "nan_argument": "i % 3 != 0",
    "nan_closure": "valid",
}

_IMPORTS: Final = {
    "nnx": "from flax import nnx",
    "equinox": "import equinox",
    "keras": "from mirrored.integrations.keras import keras",
}

_BUILD: Final = """
{imports}

def build(strategy):
    initial = start({seed}, SHAPES)
    with strategy.scope():
{made}
        count = mr.Variable(0, trainable=False, name="count")
{overwritten}

    def replica_step({parameters}):
{shares}
        with mr.GradientTape() as tape:
{holds}
            losses = ({predicted} - y)[:, 0] ** 2
{masked}
            loss = mr.losses.average_loss(losses, {weight})
        gradients = tape.gradient(loss, {sources})
{apply}
        count.assign_add(1)
{failure}
        return loss, {ids}

{step}

    def weights():
        return {read}

    def copies():
        for variable in {copies}:
            values = [np.asarray(value).tobytes() for value in strategy.local_results(variable)]
            assert len(set(values)) == 1, f"the copies of {{variable.name}} differ"

    return SimpleNamespace(step=step, weights=weights, copies=copies, count=count, state={state}, single={single})
"""

_STEPS: Final = {
    "eager": "",
    "compiled": "step = mr.function(step)",
    "inner": "",
    "steps_per_call": "single = step\nstep = mr.function(step, steps_per_call=2)",
}


def text(program: Program) -> str:
    """Returns the text of `build`."""
    update, padded = program.update, program.last_batch == "pad"
    made = _MADE[update].replace("MR", _MR[program.optimizer].format(clip=_CLIP[program.clip]))
    made = made.replace("OPTAX", OPTAX[program.optimizer]).replace("KERAS", _KERAS.get(program.optimizer, ""))
    weight = _WEIGHT[program.weighting]
    if padded:
        weight = "mask" if weight == "None" else f"mask * ({weight})"
    return _BUILD.format(
        imports=_IMPORTS.get(update, ""),
        seed=program.seed,
        made=indented(made, 2),
        overwritten=indented("for value in initial.values():\n    value[...] = 1e6" if program.overwrites else "", 1),
        parameters=_parameters(program),
        shares=indented(_shares(program), 2),
        holds=indented(_HOLDS.get(update, _READS[program.model == "two"]), 3),
        predicted="model(x)" if update == "keras" else f"{program.model}(p, x)",
        masked=indented(_MASKED[program.weighting] if program.weighting in _MASKED else "", 3),
        weight=weight,
        sources=_SOURCES.get(update, "list(params.values())"),
        apply=indented(_APPLY[update], 2),
        failure=indented(_FAILURE if program.event == "exception" else "", 2),
        ids="jnp.where(mask, i, -1)" if padded else "i",
        step=indented(_step(program), 1),
        read=_READ.get(update, "{name: variable.numpy() for name, variable in params.items()}"),
        copies=_COPIES.get(update, "list(params.values())"),
        state=_STATE.get(update, "dict(params=params, count=count)"),
        single="single" if program.way == "steps_per_call" else "step",
    )


_READS: Final = (
    "p = params",
    "p = dict(params, replica=mr.get_replica_context().replica_id_in_sync_group)",
)
_MASKED: Final = {
    "nan_argument": "losses = jnp.where(i % 3 != 0, losses, jnp.nan)",
    "nan_closure": "valid = i % 3 != 0\nlosses = jnp.where(valid, losses, jnp.nan)",
}
_SHARES: Final = """
each = {each} // strategy.num_replicas_in_sync
begin = mr.get_replica_context().replica_id_in_sync_group * each
x, y, w, i = (jax.lax.dynamic_slice_in_dim(one, begin, each) for one in (x, y, w, i))
"""
_FAILURE: Final = """
if FAILS["now"] and mr.get_replica_context().num_replicas_in_sync - 1 == replica_number():
    raise RuntimeError("an exception in one replica")
"""


def _shares(program: Program) -> str:
    if program.last_batch == "pad":
        return "x, y, w, i = batch"
    return _SHARES.format(each=program.batch) if program.source == "argument" else ""


def _parameters(program: Program) -> str:
    return "batch, mask" if program.last_batch == "pad" else "x, y, w, i"


def _step(program: Program) -> str:
    inner = "mr.function(replica_step)" if program.way == "inner" else "replica_step"
    lines = [f"run_this = {inner}", f"def step({_parameters(program)}):"]
    lines.append(f"    loss, ids = strategy.run(run_this, args=({_parameters(program)}))")
    lines.append('    return strategy.reduce("SUM", loss, axis=None), ids')
    return "\n".join([*lines, _STEPS[program.way]])
