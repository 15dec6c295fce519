"""Operations of a transformer's training step, and how much of the device's rate they take."""

from __future__ import annotations

from spec import workload

from gpu.machine import peak_of


def operations_per_token(name: str) -> float:
    """Forward and backward pass: 6 N + 12 L T d, with N the parameters that are multiplied.

    Look-up tables are read, not multiplied, so they are not counted; the output layer is. Source: A. Chowdhery et al.,
    "PaLM: Scaling Language Modeling with Pathways", JMLR 24 (2023), appendix B.
    """
    network = workload(name).network
    multiplied = 12 * network.layers * network.width**2 + network.width * network.vocabulary
    return float(6 * multiplied + 12 * network.layers * network.length * network.width)


def tokens_and_mfu(name: str, batch: int, seconds: float, device: str) -> tuple[float, float | None]:
    """Tokens a second, and the model's operations over the device's rate; None if the rate is not known."""
    tokens = batch * workload(name).network.length / seconds
    peak = peak_of(device)
    return tokens, None if peak is None else tokens * operations_per_token(name) / peak
