"""The performance model of `mirrored plan`: predicts how a training step scales, and names its bottleneck."""

from __future__ import annotations

from mirrored.perf_model.allreduce_benchmark import AllReduceBenchmark as AllReduceBenchmark
from mirrored.perf_model.allreduce_benchmark import benchmark_allreduce as benchmark_allreduce
from mirrored.perf_model.compute_benchmark import ComputeBenchmark as ComputeBenchmark
from mirrored.perf_model.compute_benchmark import benchmark_compute as benchmark_compute
from mirrored.perf_model.exchange import Exchange as Exchange
from mirrored.perf_model.exchange import Network as Network
from mirrored.perf_model.measurement import Instruments as Instruments
from mirrored.perf_model.prediction import Prediction as Prediction
from mirrored.perf_model.prediction import ScalingPlan as ScalingPlan
from mirrored.perf_model.prediction import make_plan as make_plan
from mirrored.perf_model.step_cost import StepCost as StepCost
from mirrored.perf_model.step_cost import TracedStep as TracedStep
from mirrored.perf_model.step_detection import DetectedStep as DetectedStep
from mirrored.perf_model.step_detection import detect_step as detect_step
from mirrored.perf_model.timing import Machine as Machine
from mirrored.perf_model.timing import measure_machine as measure_machine

for _public in (
    AllReduceBenchmark,
    ComputeBenchmark,
    DetectedStep,
    Exchange,
    Instruments,
    Machine,
    Network,
    Prediction,
    ScalingPlan,
    StepCost,
    TracedStep,
    benchmark_allreduce,
    benchmark_compute,
    detect_step,
    make_plan,
    measure_machine,
):
    _public.__module__ = __name__
