"""Why a step is not faster with more replicas, in words."""

from __future__ import annotations

from mirrored.perf_model.prediction import Prediction, ScalingPlan

INPUT, DISPATCH, COMMUNICATION, BATCH, COMPUTE = (
    "input-bound",
    "dispatch-bound",
    "communication-bound",
    "too small a batch",
    "compute-bound",
)


def bottleneck(prediction: Prediction) -> str:
    """What holds the step up most, in a word.

    Args:
        prediction: One number of replicas.

    Returns:
        ``"input-bound"`` or ``"dispatch-bound"`` if the device waits for Python; ``"communication-bound"`` if replicas
        wait for each other longer than they compute; ``"too small a batch"`` if most of a replica's work does not
        depend on the batch; else ``"compute-bound"``, which is as it should be.
    """
    if prediction.host_seconds > prediction.device_seconds:
        return INPUT if prediction.input_seconds > prediction.dispatch_seconds else DISPATCH
    if prediction.exchange_seconds > prediction.compute_seconds:
        return COMMUNICATION
    if prediction.fixed_seconds > prediction.compute_seconds / 2:
        return BATCH
    return COMPUTE


def breakdown(prediction: Prediction) -> dict[str, float]:
    """The parts of a step as fractions of its time.

    Args:
        prediction: One number of replicas.

    Returns:
        ``compute``, ``exchange``, ``dispatch`` and ``input``, each in units of the step time. Compute and exchange
        follow each other; dispatch and input overlap with them where the host runs ahead of the device. So the parts
        that determine the step time add up to 1, and the others come on top.
    """
    seconds = {
        "compute": prediction.compute_seconds,
        "exchange": prediction.exchange_seconds,
        "dispatch": prediction.dispatch_seconds,
        "input": prediction.input_seconds,
    }
    return {name: part / max(prediction.step_seconds, 1e-12) for name, part in seconds.items()}


def summary(prediction: Prediction) -> str:
    """The breakdown in words: the parts that determine the step time first, then those that overlap with them."""
    parts = breakdown(prediction)
    sequential = ["compute", "exchange", "dispatch"] if prediction.shared else ["compute", "exchange"]
    if prediction.host_seconds >= prediction.step_seconds:
        sequential = ["dispatch", "input"]
    overlapped = [name for name in parts if name not in sequential and parts[name] >= 0.005]
    text = ", ".join(f"{name} {parts[name]:.0%}" for name in sequential)
    return text + (f" (overlapped: {', '.join(f'{name} {parts[name]:.0%}' for name in overlapped)})" * bool(overlapped))


def explanation(plan: ScalingPlan, prediction: Prediction) -> str:
    """The breakdown of the step, why it is not faster with so many replicas, and what would help."""
    return f"{summary(prediction)}; {_reason(plan, prediction)}"


def _reason(plan: ScalingPlan, prediction: Prediction) -> str:
    found = bottleneck(prediction)
    share = f"{prediction.share} example{'s' * (prediction.share != 1)}"
    if found == INPUT:
        wanted = prediction.input_seconds / max(prediction.device_seconds, 1e-12)
        return (
            f"the device is done {_ms(prediction.device_seconds)} after a step begins, the next batch comes after "
            f"{_ms(prediction.input_seconds)}. Input that is {wanted:.1f} times faster, or prefetched, would hide."
        )
    if found == DISPATCH:
        return (
            f"Python takes {_ms(prediction.dispatch_seconds)} to start a step that the device finishes in "
            f"{_ms(prediction.device_seconds)}. Several steps per call (function(steps_per_call=10)) or a larger batch "
            "help."
        )
    if found == COMMUNICATION:
        return (
            f"summing gradients takes {_ms(prediction.exchange_seconds)}, computing them from {share} "
            f"{_ms(prediction.compute_seconds)}. {_balance(prediction)}, or {_faster(prediction)}, would make it even."
        )
    if found == BATCH:
        part = prediction.fixed_seconds / prediction.compute_seconds
        return (
            f"with {share} on each replica {part:.0%} of its work does not depend on the batch (weights are read, "
            f"updated and written all the same). {_larger(plan)}"
        )
    return "the devices compute most of the time: only faster devices, less work per example or lower precision help."


def _balance(prediction: Prediction) -> str:
    per_example = (prediction.compute_seconds - prediction.fixed_seconds) / prediction.share
    if per_example <= 0:
        return "A larger batch"
    wanted = (prediction.exchange_seconds - prediction.fixed_seconds) / per_example
    return f"{max(prediction.share + 1, round(wanted))} examples on each replica (or as many accumulated)"


def _faster(prediction: Prediction) -> str:
    return "devices with cores of their own" if prediction.shared else "a faster network"


def _larger(plan: ScalingPlan) -> str:
    if plan.keeps == "global-batch":
        return "A global batch that grows with the replicas would keep them busy."
    return "A larger batch on each replica would keep it busy."


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
