"""W5 on 8 virtual replicas, and with 8 accumulated micro-batches."""

from __future__ import annotations

from gpu.contest import NAMES, TINY, VIRTUAL, Entrant, Pool
from gpu.recording import Recorder

_VARIANTS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("1 replica", "mirrored_compiled", {}),
    ("8 micro-batches", "mirrored_compiled", {"micro_batches": 8}),
    ("8 micro-batches", "jax_hand_written", {"micro_batches": 8}),
    (f"{VIRTUAL} virtual replicas", "mirrored_compiled", {"replicas": VIRTUAL}),
)
_ROUNDS = 2 if TINY else 5


def measure(recorder: Recorder) -> None:
    """Each is made in turn and timed in rounds of all; the one that compiles longest comes last."""
    with Pool() as pool:
        ready = []
        for variant, name, more in _VARIANTS:
            label = f"W5, {variant}, {NAMES[name]}"
            with recorder.variant(f"{label}, first step") as figures:
                entrant = Entrant(pool.process(name), name, label)
                entrant.prepare("W5", **more)
                figures |= entrant.figures
                ready.append(entrant)
            # Three trainings have been timed by now, should the next one not be compiled in time.
            if len(ready) == len(_VARIANTS) - 1:
                _timed(recorder, ready)
        _timed(recorder, ready)


def _timed(recorder: Recorder, entrants: list[Entrant]) -> None:
    for entrant in entrants:
        entrant.figures.pop("stream", None)
    for _ in range(_ROUNDS):
        for entrant in entrants:
            entrant.time("stream")
    for entrant in entrants:
        with recorder.variant(entrant.key) as figures:
            if entrant.failure is not None:
                raise entrant.failure
            figures |= {**entrant.figures, **entrant.process.ask("device")}
