"""A control task: a policy learns to swing up a pendulum, by gradients through the simulation of its physics.

Each replica simulates its own start positions for 100 time steps with `jax.lax.scan`; the tape differentiates through
the scan. The motor is too weak to lift the pendulum directly. Trains on 4 replicas.

    python examples/pendulum_control.py
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import mirrored as mr

matplotlib.use("Agg")
PICTURE = pathlib.Path(__file__).parent / "pictures" / "pendulum_control.png"
SECONDS_PER_STEP, TIME_STEPS, STARTS, TORQUE, WIDTH = 0.05, 100, 64, 6.0, 32


def make_parameters(seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "first": jax.random.normal(keys[0], (3, WIDTH)),
        "bias": jnp.zeros(WIDTH),
        "second": jax.random.normal(keys[1], (WIDTH, WIDTH)) / np.sqrt(WIDTH),
        "out": 0.1 * jax.random.normal(keys[2], (WIDTH, 1)),
    }


def torque_of(policy, angle, speed):
    """The torque f32[batch] in [-TORQUE, TORQUE]; the angle is 0 where the pendulum stands upright."""
    seen = jnp.stack([jnp.cos(angle), jnp.sin(angle), speed / 4], -1)
    hidden = jnp.tanh(jnp.tanh(seen @ policy["first"] + policy["bias"]) @ policy["second"])
    return TORQUE * jnp.tanh(hidden @ policy["out"])[:, 0]


def simulate(policy, angle, speed):
    """The angles, speeds and torques f32[time, batch] of a simulation from the given start."""

    def advance(state, _):
        angle, speed = state
        torque = torque_of(policy, angle, speed)
        speed = speed + SECONDS_PER_STEP * (9.8 * jnp.sin(angle) + torque - 0.1 * speed)
        angle = angle + SECONDS_PER_STEP * speed
        return (angle, speed), (angle, speed, torque)

    return jax.lax.scan(advance, (angle, speed), None, length=TIME_STEPS)[1]


def costs_of(policy, angle, speed):
    """The mean cost over time of each start, f32[batch]: for low positions, for speed while up, and for torque."""
    angles, speeds, torques = simulate(policy, angle, speed)
    height = jnp.cos(angles)
    return jnp.mean(1 - height + 0.05 * speeds**2 * (1 + height) + 1e-3 * torques**2, axis=0)


def starts(count, seed):
    """Angles near the hanging position, and speeds."""
    rng = np.random.default_rng(seed)
    return rng.uniform(np.pi - 1, np.pi + 1, count).astype(np.float32), rng.normal(size=count).astype(np.float32)


def train(steps, strategy):
    """Trains; returns the mean cost of each step and the policy."""
    with strategy.scope():
        policy = mr.mirror(make_parameters())
        optimizer = mr.optimizers.Adam(1e-2, global_clipnorm=1.0)

    def replica_step(angle, speed):
        with mr.GradientTape() as tape:
            cost = mr.losses.average_loss(costs_of(mr.unmirror(policy), angle, speed))
        optimizer.apply(tape.gradient(cost, policy), policy)
        return cost

    @mr.function
    def step(angle, speed):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(angle, speed)), axis=None)

    data = strategy.distribute_dataset([starts(STARTS, seed) for seed in range(1, steps + 1)])
    return [float(step(*batch)) for batch in data], policy


def upright_of(policy, count=200):
    """The share of new starts from which the pendulum stands upright during the last second."""
    angles, *_ = jax.jit(simulate)(mr.unmirror(policy), *starts(count, seed=10**6))
    return float((jnp.cos(angles[-20:]) > 0.9).all(axis=0).mean())


def draw(costs, policy, path=PICTURE):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.8), dpi=70)
    axes[0].plot(costs)
    axes[0].set(title="mean cost", xlabel="step")
    for name, one, color in (("before", make_parameters(), "lightgray"), ("after training", policy, "tab:blue")):
        angles, *_ = simulate(mr.unmirror(one), *starts(8, seed=3))
        lines = axes[1].plot(np.arange(TIME_STEPS) * SECONDS_PER_STEP, np.cos(angles), color=color, linewidth=1)
        lines[0].set_label(name)
    axes[1].set(title="height of the pendulum, 8 starts", xlabel="seconds")
    axes[1].legend(loc="center right", fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    mr.config.set_virtual_devices(options.replicas)
    costs, policy = train(options.steps, mr.MirroredStrategy())
    print(f"cost {costs[0]:.3f} -> {np.mean(costs[-10:]):.3f}, upright from {upright_of(policy):.0%} of the starts")
    draw(costs, policy)


if __name__ == "__main__":
    main()
