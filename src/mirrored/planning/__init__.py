"""How fast a step would be on more replicas than there are, and why not faster: `mirrored plan`."""

from __future__ import annotations

from mirrored.planning.exchange import Exchange as Exchange
from mirrored.planning.exchange import Network as Network
from mirrored.planning.machine import Machine as Machine
from mirrored.planning.machine import measure_machine as measure_machine
from mirrored.planning.measuring import Instruments as Instruments
from mirrored.planning.observing import Observation as Observation
from mirrored.planning.observing import observe as observe
from mirrored.planning.predicting import Plan as Plan
from mirrored.planning.predicting import Prediction as Prediction
from mirrored.planning.predicting import make_plan as make_plan
from mirrored.planning.rehearsing import Rehearsal as Rehearsal
from mirrored.planning.rehearsing import rehearse as rehearse
from mirrored.planning.sums import Sums as Sums
from mirrored.planning.sums import measure_sums as measure_sums
from mirrored.planning.work import Step as Step
from mirrored.planning.work import Work as Work

for _public in (Exchange, Network, Machine, measure_machine, Instruments, Observation, observe, Plan, Prediction,
                make_plan, Rehearsal, rehearse, Sums, measure_sums, Step, Work):  # fmt: skip
    _public.__module__ = __name__
