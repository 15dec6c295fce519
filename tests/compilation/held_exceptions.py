"""Raises at many calls within a step and holds on to the exceptions, as Jupyter holds the newest traceback.

A held traceback keeps alive the frames it passed, and with them context managers that were left open.

python held_exceptions.py DEVICES compiled|eager
"""

from __future__ import annotations

import sys
import warnings

import jax
import jax.numpy as jnp

import mirrored as mr


class Interrupt(BaseException):
    """What is raised."""


def raising_at(place: int):
    """A profile function that raises once, at a call or return with that number."""
    calls = 0

    def profile(frame, kind, argument):
        nonlocal calls
        calls += kind in ("call", "return", "c_return")
        # Python delivers nothing between the `__enter__` of a lock and the block.
        if calls > place and not (kind == "c_return" and argument.__name__ == "__enter__"):
            sys.setprofile(None)
            raise Interrupt

    return profile


def main(devices: int, way: str) -> None:
    mr.config.set_virtual_devices(devices)
    strategy = mr.MirroredStrategy(jax.devices()[:devices])
    with strategy.scope():
        v = mr.Variable(jnp.zeros(3))

    def step():
        return strategy.run(lambda: v.assign_add(jnp.ones(3)))

    kept: list[BaseException] = []
    for place in range(1, 3000, 67):
        try:
            sys.setprofile(raising_at(place))
            (mr.function(step) if way == "compiled" else step)()
        except (Interrupt, ValueError) as error:  # JAX makes a ValueError of what is raised in a comparison of keys
            kept.append(error)
        finally:
            sys.setprofile(None)
        before = float(v.numpy()[0])
        mr.function(step)()
        step()
        assert v.tolist() == [before + 2.0] * 3, f"call {place}: the step after it is not whole"
    assert all("Interrupt" in repr(error) + str(error) for error in kept), kept
    assert kept
    print(f"whole after {len(kept)} exceptions")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), sys.argv[2])
