"""The eager tape, per operation, forward plus backward, over a chain of 200 scalar operations."""

from __future__ import annotations

from contextlib import ExitStack

from processes import ContenderError, Process

from sections.options import Figures, Options, say
from sections.rounds import Entrant, contest

_CONTENDERS = ("mirrored_compiled", "mirrored_eager", "jax_hand_written", "tensorflow_mirrored", "torch_ddp")


def measure(options: Options) -> Figures:
    """Returns seconds per operation, round by round."""
    say("eager tape")
    with ExitStack() as stack:
        entrants = []
        for name in _CONTENDERS if options.peers else _CONTENDERS[:3]:
            try:
                entrants.append(Entrant(name, stack.enter_context(Process(name, 1))))
            except ContenderError as error:
                say(f"  {error}")
        for entrant in entrants:
            entrant.prepare("eager_tape", "W1")
            entrant.calls = 2 if entrant.name == "jax_hand_written" else 5
        contest(entrants, 6 if options.quick else 40)
        return {one.name: one.seconds for one in entrants if one.failure is None}
