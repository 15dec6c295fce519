"""The performance model of `mirrored plan`: predicts how a training step scales, and names its bottleneck."""

from __future__ import annotations

from mirrored.perf_model.allreduce_benchmark import AllReduceBenchmark as AllReduceBenchmark
from mirrored.perf_model.allreduce_benchmark import benchmark_allreduce as benchmark_allreduce
from mirrored.perf_model.compute_benchmark import ComputeBenchmark as ComputeBenchmark
from mirrored.perf_model.compute_benchmark import benchmark_compute as benchmark_compute
from mirrored.perf_model.exchange import Exchange as Exchange
from mirrored.perf_model.exchange import Network as Network
from mirrored.perf_model.goodput import FailureCosts as FailureCosts
from mirrored.perf_model.goodput import Goodput as Goodput
from mirrored.perf_model.goodput import best_interval as best_interval
from mirrored.perf_model.goodput import goodput_of as goodput_of
from mirrored.perf_model.goodput import measure_failure_costs as measure_failure_costs
from mirrored.perf_model.goodput import predict_goodput as predict_goodput
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
    FailureCosts,
    Goodput,
    Instruments,
    Machine,
    Network,
    Prediction,
    ScalingPlan,
    StepCost,
    TracedStep,
    benchmark_allreduce,
    benchmark_compute,
    best_interval,
    detect_step,
    goodput_of,
    make_plan,
    measure_failure_costs,
    measure_machine,
    predict_goodput,
):
    _public.__module__ = __name__
