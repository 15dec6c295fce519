"""How fast a step would be on more replicas than there are, and why not faster: `mirrored plan`."""

from __future__ import annotations

from mirrored.perf_model.allreduce_benchmark import Sums as Sums
from mirrored.perf_model.allreduce_benchmark import measure_sums as measure_sums
from mirrored.perf_model.compute_benchmark import Rehearsal as Rehearsal
from mirrored.perf_model.compute_benchmark import rehearse as rehearse
from mirrored.perf_model.exchange import Exchange as Exchange
from mirrored.perf_model.exchange import Network as Network
from mirrored.perf_model.machine import Machine as Machine
from mirrored.perf_model.machine import measure_machine as measure_machine
from mirrored.perf_model.measurement import Instruments as Instruments
from mirrored.perf_model.prediction import Plan as Plan
from mirrored.perf_model.prediction import Prediction as Prediction
from mirrored.perf_model.prediction import make_plan as make_plan
from mirrored.perf_model.step_cost import Step as Step
from mirrored.perf_model.step_cost import Work as Work
from mirrored.perf_model.step_detection import Observation as Observation
from mirrored.perf_model.step_detection import observe as observe

for _public in (Exchange, Network, Machine, measure_machine, Instruments, Observation, observe, Plan, Prediction,
                make_plan, Rehearsal, rehearse, Sums, measure_sums, Step, Work):  # fmt: skip
    _public.__module__ = __name__
