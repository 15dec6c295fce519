"""The report of a run, also of a partial one: targets with what was measured, then every piece."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ratios import Ratio, ratio
from report import table
from spec import WORKLOADS

from gpu.flops import tokens_and_mfu
from gpu.pieces import PIECES

Results = dict[str, Any]
_NOT_MEASURED = "not measured"
_STEPS = ("W1", "W2", "W3", "W4")
_OURS, _HAND, _EAGER_TORCH, _TORCH = "mirrored", "hand-written JAX", "PyTorch, eager", "torch.compile"
_METHOD = (
    "Contenders are timed in interleaved rounds; a ratio is the median of the rounds' ratios with a 95 % interval by "
    "ranks. MFU counts 6 N + 12 L T d operations for a token, N without the two look-up tables, over the device's "
    "dense bfloat16 rate. Unverified on one GPU: NCCL between several ranks, peer access, the time of an all-reduce."
)


def write_summary(results: Results, path: Path) -> Path:
    """Writes the report as Markdown."""
    machine = results.get("machine", {})
    lines = [f"# {machine.get('device', 'unknown device')}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}", ""]
    lines += [_described(machine), "", _METHOD]
    if machine.get("platform") == "cpu":
        lines += ["", "**Dry run on a CPU at tiny sizes: the figures mean nothing.**"]
    found = Found(results)
    for section in (_targets, _gpt2, _steps, _identity, _profile, _other, _pieces, _failures):
        lines += ["", *section(found)]
    path.write_text("\n".join(lines) + "\n")
    return path


class Found:
    """Figures by piece and variant.

    Attributes:
        results: All of them.
        device: The device's kind.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        self.device = str(results.get("machine", {}).get("device", ""))

    def records(self, piece: str) -> list[dict[str, Any]]:
        """The records of a piece."""
        return list(self.results["pieces"].get(piece, {}).get("records", ()))

    def figures(self, piece: str, variant: str) -> dict[str, Any]:
        """The newest figures of a variant that ended well; {} if there are none."""
        told = [one["figures"] for one in self.records(piece) if one["variant"] == variant and one["status"] == "ok"]
        return told[-1] if told else {}

    def ratio(self, piece: str, ours: str, theirs: str, way: str) -> Ratio | None:
        """Of two variants' rounds."""
        both = [self.figures(piece, variant).get(way) for variant in (ours, theirs)]
        return ratio(*both) if all(both) else None  # type: ignore[arg-type]

    def tokens(self, piece: str, variant: str, workload: str) -> tuple[float, float | None] | None:
        """Tokens a second, and the part of the device's rate."""
        figures = self.figures(piece, variant)
        if not figures.get("stream"):
            return None
        batch = figures.get("batch") or WORKLOADS[workload].batch
        return tokens_and_mfu(workload, batch, statistics.median(figures["stream"]), self.device)


def _described(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
    smi = f" ({machine['nvidia_smi']})" if machine.get("nvidia_smi") else ""
    return f"{machine.get('device')}{smi}, {machine.get('cores')} cores, Python {machine.get('python')}; {versions}."


def _targets(found: Found) -> list[str]:
    rows = [
        [f"{w}: {_OURS} / {_HAND}", f"at most {WORKLOADS[w].target:.2f}",
         *_judged(found.ratio("steps", f"{w}, {_OURS}", f"{w}, {_HAND}", "stream"), WORKLOADS[w].target)]
        for w in _STEPS
    ]  # fmt: skip
    rows.append(
        [f"W5: {_OURS} / {_HAND}", "at most 1.02",
         *_judged(found.ratio("w5", f"W5, {_OURS}", f"W5, {_HAND}", "stream"), 1.02)]
    )  # fmt: skip
    speed = found.ratio("w5", f"W5, {_TORCH}", f"W5, {_OURS}", "stream")
    rows.append([f"W5: tokens/s of {_OURS} / {_TORCH}", "at least 0.95", *_judged(speed, 0.95, at_least=True)])
    rows += [_public(found, _HAND, 1 / 1.02), _public(found, _TORCH, 0.95)]
    failed = [one["variant"] for one in found.records("suite") if one["status"] == "failed"]
    suite = found.results["pieces"].get("suite")
    told = _NOT_MEASURED if suite is None else f"{len(failed)} failed of {len(suite['records'])}"
    done = suite is not None and suite["status"] == "done" and bool(suite["records"])
    rows.append(["tests marked gpu", "none fails", told, ("no" if failed else "yes") if done or failed else ""])
    return ["## Targets", "", *table(["", "target", "measured", "met"], rows)]


def _public(found: Found, theirs: str, target: float) -> list[str]:
    one, other = (found.tokens("w5-public", f"W5p, {name}", "W5p") for name in (_OURS, theirs))
    label = [f"W5 at the public setting: tokens/s of {_OURS} / {theirs}", f"at least {target:.2f}"]
    if one is None or other is None:
        return [*label, _NOT_MEASURED, ""]
    return [*label, f"{one[0] / other[0]:.3f}", "yes" if one[0] / other[0] >= target else "no"]


def _judged(measured: Ratio | None, target: float, *, at_least: bool = False) -> tuple[str, str]:
    if measured is None:
        return _NOT_MEASURED, ""
    if at_least:  # judged as what is at most minus the target
        return str(measured), Ratio(-measured.median, -measured.high, -measured.low).met(-target)
    return str(measured), measured.met(target)


def _gpt2(found: Found) -> list[str]:
    rows = []
    pieces = (("w5", "W5"), ("w5-public", "W5p"), ("w5-variants", "W5"))
    variants = [
        (piece, one["variant"], workload)
        for piece, workload in pieces
        for one in _without_first_steps(found.records(piece))
    ]
    for piece, variant, workload in variants:
        told = found.tokens(piece, variant, workload)
        if told is None:
            continue
        figures = found.figures(piece, variant)
        program = {**figures, **found.figures(piece, f"{variant}, program")}
        mib = program.get("program_mib") or program.get("peak_mib")
        rows.append(
            [variant, str(figures.get("batch") or WORKLOADS[workload].batch), f"{told[0]:,.0f}",
             "" if told[1] is None else f"{100 * told[1]:.1f} %", "" if mib is None else f"{mib / 1024:.2f}",
             f"{1e3 * statistics.median(figures['stream']):.2f}", f"{figures['first_seconds']:.1f}",
             f"{figures['first_loss']:.4f}"]
        )  # fmt: skip
    head = ["", "batch", "tokens/s", "MFU", "peak GiB", "ms a step", "first step s", "first loss"]
    note = (
        "Peak: of JAX the compiled program's own count (arguments, results, temporaries); of PyTorch its allocator's."
    )
    fitting = found.figures("w5-public", "largest batch")
    fitted = f" Largest batch: {fitting}" if fitting else ""
    return ["## GPT-2 124M", "", note + fitted, "", *(table(head, rows) if rows else [_NOT_MEASURED])]


def _without_first_steps(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    newest = {one["variant"]: one for one in records if "first step" not in one["variant"]}
    return list(newest.values())


def _steps(found: Found) -> list[str]:
    rows = []
    for w in _STEPS:
        for name in (_OURS, _HAND, _EAGER_TORCH, _TORCH):
            figures = found.figures("steps", f"{w}, {name}")
            if not figures.get("stream"):
                continue
            against = found.ratio("steps", f"{w}, {_OURS}", f"{w}, {name}", "stream") if name != _OURS else None
            rows.append(
                [w, name, *(f"{1e6 * statistics.median(figures[way]):.0f}" for way in ("stream", "measure")),
                 _micro(figures.get("dispatch_seconds")), f"{figures['first_seconds']:.2f}", str(against or "")]
            )  # fmt: skip
    head = ["", "", "us a step, in a row", "us a step, each waited for", "dispatch us", "first step s"]
    text = "The ratio is mirrored over the row's contender, of steps in a row."
    return ["## W1 to W4", "", text, "", *(table([*head, "ratio"], rows) if rows else [_NOT_MEASURED])]


def _micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:.0f}"


def _identity(found: Found) -> list[str]:
    """Cases by XLA flags; hashes compared between two processes."""
    names = [piece.name for piece in PIECES if piece.module == "bits"]
    rows = []
    for name in names:
        for one in found.records(name):
            if one["status"] == "ok":
                told = one["figures"]
                rows.append(
                    [name, one["variant"], *(told.get(key, "") for key in ("again", "K = 4", "K = 2", "K = 1"))]
                )
    if not rows:
        return ["## Bit-identity of deterministic=True", "", _NOT_MEASURED]
    twice = []
    for one in found.records("bits"):
        other = found.figures("bits-again", one["variant"])
        if one["status"] == "ok" and other:
            same = [one["figures"][key] == other[key] for key in ("gradients", "training")]
            twice.append([one["variant"], *("identical" if equal else "different" for equal in same)])
    titles = "; ".join(f"`{piece.name}`: {piece.title}" for piece in PIECES if piece.module == "bits")
    return [
        "## Bit-identity of deterministic=True",
        "",
        f"8 replicas on 8 / K devices, the devices one after another on this one. {titles}.",
        "",
        *table(["", "case", "same program again", "K = 4", "K = 2", "K = 1"], rows),
        *(["", "Two processes:", "", *table(["case", "gradients", "weights after 3 steps"], twice)] if twice else []),
    ]


def _profile(found: Found) -> list[str]:
    rows, longest = [], []
    for one in found.records("profile"):
        if one["status"] == "ok":
            told = one["figures"]
            keys = ("span_ms", "kernels_ms", "copies_ms", "gaps_ms", "kernels")
            rows.append([one["variant"], *(f"{told[key]:.3g}" for key in keys)])
            parts = ", ".join(f"`{name}` {100 * part:.1f} %" for name, part in told["longest"].items())
            longest += ["", f"{one['variant']}, of the kernels' time: {parts}."]
    head = ["", "ms a step", "in kernels", "in copies", "in gaps", "kernels a step"]
    return ["## Profile", "", *(table(head, rows) if rows else [_NOT_MEASURED]), *longest]


def _other(found: Found) -> list[str]:
    rows: list[Sequence[str]] = []
    for one in found.records("first-step"):
        if one["status"] == "ok":
            told = one["figures"]
            rows.append([f"first step, {one['variant']}", f"{told['first_seconds']:.2f} s"])
    for name in (_OURS, "mirrored, jnp functions", _HAND, _EAGER_TORCH):
        seconds = found.figures("eager", f"eager tape, {name}").get("measure")
        if seconds:
            label = "un-jitted jax.grad" if name == _HAND else name
            rows.append([f"eager tape per operation, {label}", f"{1e6 * statistics.median(seconds):.1f} us"])
    against = found.ratio("eager", f"eager tape, {_OURS}", f"eager tape, {_EAGER_TORCH}", "measure")
    if against is not None:
        rows.append(["eager tape, mirrored / PyTorch", str(against)])
    overlap = found.figures("input", "overlap")
    if overlap:
        told = f"{overlap['step_share']:.3f} (hand-written loop {overlap['hand_written_step_share']:.3f})"
        rows.append([f"input: steps alone / steps over a dataset, {overlap['batch_mib']:.0f} MiB a batch", told])
    return ["## Others", "", *(table(["", "measured"], rows) if rows else [_NOT_MEASURED])]


def _pieces(found: Found) -> list[str]:
    rows = []
    for piece in PIECES:
        told = found.results["pieces"].get(piece.name)
        records = told["records"] if told else []
        counts = [sum(one["status"] == status for one in records) for status in ("ok", "failed", "left out")]
        ended = [told["status"], f"{told['seconds']:.0f}"] if told else ["not run", ""]
        rows.append([piece.name, *ended, str(piece.expected), str(piece.limit), *map(str, counts)])
    head = ["piece", "ended", "seconds", "expected", "limit", "ok", "failed", "left out"]
    return ["## Pieces", "", *table(head, rows)]


def _failures(found: Found) -> list[str]:
    lines = ["## What failed or was left out", ""]
    for piece in PIECES:
        for one in found.records(piece.name):
            if one["status"] == "left out":
                lines += [f"- {piece.name}, {one['variant']}: left out: {one['reason']}"]
            elif one["status"] == "failed":
                text = one["traceback"].strip().splitlines()
                lines += [f"- {piece.name}, {one['variant']}: failed", "", "  ```"]
                lines += [f"  {line}" for line in text[-25:]]
                lines += ["  ```", ""]
    return lines if len(lines) > 2 else [*lines, "Nothing."]
