"""Names the bottleneck of a predicted training step, i.e. what limits scaling, and formats the prediction."""

from __future__ import annotations

from pathlib import Path

from mirrored.extras import load
from mirrored.perf_model.prediction import Prediction, ScalingPlan

# Plots a scaling plan: the parts of the step time, and the efficiency.

_PARTS = (("compute_seconds", "compute", "tab:blue"), ("exchange_seconds", "exchange", "tab:orange"))


def draw(plan: ScalingPlan, path: Path) -> None:
    """Plots the predicted step times and efficiencies of a scaling plan to a file.

    Args:
        plan: The plan.
        path: The file; its suffix determines the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    module = load("matplotlib.figure", called="mirrored plan --plot", extra="plot", otherwise="omit --plot")
    figure = module.Figure(figsize=(8, 3.6), layout="constrained")
    time, efficiency = figure.subplots(1, 2)
    counts = [str(one.replicas) for one in plan.predictions]
    below = [0.0] * len(counts)
    for name, label, colour in _PARTS:
        heights = [1e3 * getattr(one, name) for one in plan.predictions]
        time.bar(counts, heights, bottom=below, label=label, color=colour)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    host = [1e3 * one.host_seconds for one in plan.predictions]
    time.plot(counts, host, "k_", markersize=18, label="host (overlapped)")
    time.set(xlabel="replicas", ylabel="ms", title=f"step time (fixed {plan.keeps.replace('-', ' ')})")
    time.legend(fontsize=8)
    efficiency.plot(counts, [one.efficiency for one in plan.predictions], "o-")
    efficiency.set(xlabel="replicas", title="efficiency", ylim=(0, 1.05))
    efficiency.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


INPUT, DISPATCH, COMMUNICATION, BATCH, COMPUTE = (
    "input-bound",
    "dispatch-bound",
    "communication-bound",
    "too small a batch",
    "compute-bound",
)


def bottleneck(prediction: Prediction) -> str:
    """Returns the name of a predicted step's bottleneck, such as "input-bound" or "communication-bound".

    Args:
        prediction: The prediction for one number of replicas.

    Returns:
        ``"input-bound"`` or ``"dispatch-bound"`` if the device waits for Python; ``"communication-bound"`` if the
        exchange takes longer than the computation; ``"too small a batch"`` if most of a replica's work does not depend
        on the batch; else ``"compute-bound"``, the desired state.
    """
    if prediction.step_seconds <= prediction.host_seconds:  # the devices wait for Python
        return INPUT if prediction.input_seconds > prediction.dispatch_seconds else DISPATCH
    if prediction.exchange_seconds > prediction.compute_seconds:
        return COMMUNICATION
    if prediction.fixed_seconds > prediction.compute_seconds / 2:
        return BATCH
    return COMPUTE


def breakdown(prediction: Prediction) -> dict[str, float]:
    """Returns a dict with the fractions of the predicted step time: compute, all-reduce, dispatch and input.

    Args:
        prediction: The prediction for one number of replicas.

    Returns:
        ``compute``, ``exchange``, ``dispatch`` and ``input``, each in units of the step time. Compute and exchange
        are sequential; dispatch and input overlap with them where the host runs ahead of the device. So the parts that
        determine the step time add up to 1, and the overlapped parts come in addition.
    """
    seconds = {
        "compute": prediction.compute_seconds,
        "exchange": prediction.exchange_seconds,
        "dispatch": prediction.dispatch_seconds,
        "input": prediction.input_seconds,
    }
    return {name: part / max(prediction.step_seconds, 1e-12) for name, part in seconds.items()}


def summary(prediction: Prediction) -> str:
    """Formats the fractions of the predicted step time, as in ``compute 80%, exchange 20% (overlapped: input 30%)``."""
    parts = breakdown(prediction)
    sequential = ["compute", "exchange", "dispatch"] if prediction.shared else ["compute", "exchange"]
    if prediction.host_seconds >= prediction.step_seconds:
        sequential = ["dispatch", "input"]
    overlapped = [name for name in parts if name not in sequential and parts[name] >= 0.005]
    text = ", ".join(f"{name} {parts[name]:.0%}" for name in sequential)
    return text + (f" (overlapped: {', '.join(f'{name} {parts[name]:.0%}' for name in overlapped)})" * bool(overlapped))


def explanation(plan: ScalingPlan, prediction: Prediction) -> str:
    """Formats the fractions of the predicted step time, the reason for the bottleneck, and a remedy."""
    return f"{summary(prediction)}; {_reason(plan, prediction)}"


def _reason(plan: ScalingPlan, prediction: Prediction) -> str:
    found = bottleneck(prediction)
    examples = f"{prediction.share} example{'s' * (prediction.share != 1)}"
    if found == INPUT:
        hidden = prediction.device_seconds - (0 if prediction.shared else prediction.dispatch_seconds)
        remedy = "Prefetched input"
        if hidden > 0:
            remedy = f"Input that is {prediction.input_seconds / hidden:.1f} times faster, or prefetched,"
        return (
            f"the device finishes {_ms(prediction.device_seconds)} after a step begins, but Python needs "
            f"{_ms(prediction.dispatch_seconds)} to start the step, and the next batch "
            f"{_ms(prediction.input_seconds)}. {remedy} would be hidden."
        )
    if found == DISPATCH:
        return (
            f"Python takes {_ms(prediction.dispatch_seconds)} to start a step that the device finishes in "
            f"{_ms(prediction.device_seconds)}. More steps per execution (function(steps_per_call=10)) or a larger "
            "batch would help."
        )
    if found == COMMUNICATION:
        return (
            f"summing gradients takes {_ms(prediction.exchange_seconds)}, computing them from {examples} "
            f"{_ms(prediction.compute_seconds)}. {_balance(prediction)}, or {_faster(prediction)}, would balance them."
        )
    if found == BATCH:
        part = prediction.fixed_seconds / prediction.compute_seconds
        return (
            f"with {examples} on each replica, {part:.0%} of its work does not depend on the batch (reading, updating "
            f"and writing weights). {_larger(plan)}"
        )
    return "the devices compute most of the time: only faster devices, less work per example or lower precision help."


def _balance(prediction: Prediction) -> str:
    per_example = (prediction.compute_seconds - prediction.fixed_seconds) / prediction.share
    if per_example <= 0:
        return "A larger batch"
    wanted = (prediction.exchange_seconds - prediction.fixed_seconds) / per_example
    return f"{max(prediction.share + 1, round(wanted))} examples on each replica (or as many accumulated)"


def _faster(prediction: Prediction) -> str:
    return "devices that do not share cores" if prediction.shared else "a faster network"


def _larger(plan: ScalingPlan) -> str:
    if plan.keeps == "global-batch":
        return "A global batch that grows with the number of replicas (weak scaling) would keep them busy."
    return "A larger batch on each replica would keep it busy."


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
