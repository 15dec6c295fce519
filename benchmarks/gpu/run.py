"""All pieces, each in a process with a time limit; results and report in one folder. See README.md.

benchmarks/gpu/run.sh [--only PIECE[,PIECE]] [--dry-run] [--out FOLDER] [--previous results.json]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from spec import ATTENTION_VARIABLE, TINY_VARIABLE

from gpu.contest import XLA_ATTENTION
from gpu.fitting import SCRATCH_VARIABLE
from gpu.machine import machine_facts
from gpu.pieces import DEADLINE_SECONDS, PIECES, Piece
from gpu.recording import read_records, say
from gpu.summary import write_summary

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Results = dict[str, Any]
_GRACE_SECONDS, _REPORT_SECONDS = 4.0, 8.0
_QUICK_COMPILER = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_LEAST_SECONDS = 10.0
_DRY_PATIENCE = 5
"""How many times as long pieces may take in the dry run, on machines that do other work as well."""
_LOG_BYTES, _FILE_BYTES = 900_000, 15 * 2**20


def main() -> int:
    """Runs what was asked for; 1 if a variant failed or a piece was cut off, also in an earlier run that is given."""
    arguments = parsed()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = before(arguments.previous or [arguments.out / "results.json"], arguments.dry_run)
    if not arguments.report_only:
        run = Run(arguments, results)
        signal.signal(signal.SIGTERM, _interrupted)
        try:
            run.all()
        except KeyboardInterrupt:
            say("interrupted: what has been found is kept")
        finally:
            run.close()
    say(f"report: {write_summary(results, arguments.out / 'report.md')}")
    pieces = results["pieces"].values()
    cut_off = any(piece["status"] not in ("done", "no time left") for piece in pieces)
    return int(cut_off or any(one["status"] == "failed" for piece in pieces for one in piece["records"]))


def parsed() -> argparse.Namespace:
    """The command line."""
    names = [piece.name for piece in PIECES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(names), help=f"of {','.join(names)}")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or HERE.parent / ".results" / "gpu"))
    parser.add_argument("--previous", type=Path, action="append", help="results.json of an earlier run, taken over")
    parser.add_argument("--seconds", type=float, help=f"when everything has to have ended [{DEADLINE_SECONDS:.0f}]")
    parser.add_argument("--report-only", action="store_true", help="make the report of earlier results")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    arguments.seconds = arguments.seconds or DEADLINE_SECONDS * (_DRY_PATIENCE if arguments.dry_run else 1)
    unknown = sorted(set(arguments.only) - set(names))
    if unknown:
        parser.error(f"no such piece: {', '.join(unknown)}; there are {', '.join(names)}")
    return arguments


def before(paths: Iterable[Path], dry: bool) -> Results:
    """Results of earlier runs; of a piece in several, those of the last one. Dry runs and real ones do not mix."""
    results: Results = {"dry_run": dry, "pieces": {}}
    for path in paths:
        told = json.loads(path.read_text()) if path.exists() else {}
        if told.get("dry_run") is dry:
            results = {**results, **told, "pieces": {**results["pieces"], **told["pieces"]}}
    return results


class Run:
    """One run of some pieces.

    Args:
        arguments: The command line.
        results: Of earlier runs; changed.
    """

    def __init__(self, arguments: argparse.Namespace, results: Results) -> None:
        self._out: Path = arguments.out
        self._pieces = [piece for piece in PIECES if piece.name in arguments.only]
        self._end = time.monotonic() + arguments.seconds - _REPORT_SECONDS
        self._dry = arguments.dry_run
        self._results = results
        self._scratch = Path(tempfile.mkdtemp(prefix="mirrored-gpu-"))
        self._running: list[Running] = []

    def all(self) -> None:
        """The pieces that run at once, then the others one by one."""
        self._results["machine"] = machine_facts(self._environment(PIECES[0]))
        beside = max(2, (os.cpu_count() or 1) // 2)
        together = [piece for piece in self._pieces if piece.together]
        while together or self._running:
            while together and len(self._running) < beside:
                self._start(together.pop(0))
            self._wait()
        for piece in self._pieces:
            if not piece.together:
                self._start(piece)
                while self._running:
                    self._wait()

    def close(self) -> None:
        """Ends what still runs, and keeps everything that was found."""
        for one in self._running:
            one.kill()
            self._keep(one, "interrupted")
        self._running = []
        logs = [path.read_bytes()[-_LOG_BYTES:] for path in sorted(self._scratch.glob("*.log"))]
        (self._out / "log.txt").write_bytes(b"\n".join(logs))
        trace = self._scratch / "trace.json.gz"
        if trace.exists() and trace.stat().st_size < _FILE_BYTES:
            shutil.copy(trace, self._out / trace.name)
        for folder in (self._scratch, os.environ.get("GPU_BENCHMARK_SITE")):
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _start(self, piece: Piece) -> None:
        left = self._end - time.monotonic()
        limit = min(left, piece.limit * (_DRY_PATIENCE if self._dry else 1))
        if left < _LEAST_SECONDS:
            say(f"{piece.name}: left out, no time left")
            told = {"status": "no time left", "seconds": 0, "records": []}
            self._results["pieces"].setdefault(piece.name, told)
            self._write()
            return
        say(f"{piece.name}: {piece.title}")
        self._running.append(Running(piece, self._scratch, self._environment(piece), limit))

    def _wait(self) -> None:
        """Looks after what runs, a quarter of a second long."""
        time.sleep(0.25)
        for one in list(self._running):
            status = one.status()
            self._keep(one, status)
            if status != "running":
                self._running.remove(one)
                say(f"{one.piece.name}: {status} after {one.seconds:.0f} s")

    def _keep(self, one: Running, status: str) -> None:
        told = {"status": status, "seconds": round(one.seconds, 1), "records": read_records(one.records)}
        told["when"] = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}"
        known = self._results["pieces"].get(one.piece.name)
        if known is None or known["status"] != status or known["records"] != told["records"]:
            self._results["pieces"][one.piece.name] = told
            self._write()

    def _write(self) -> None:
        new = self._out / "results.json.new"
        new.write_text(json.dumps(self._results, indent=1))
        new.replace(self._out / "results.json")

    def _environment(self, piece: Piece) -> dict[str, str]:
        environment = {**os.environ, **piece.environment, SCRATCH_VARIABLE: str(self._scratch)}
        flags = [
            os.environ.get("XLA_FLAGS", ""),
            _QUICK_COMPILER if self._dry else "",
            piece.environment.get("XLA_FLAGS", ""),
        ]
        environment["XLA_FLAGS"] = " ".join(filter(None, flags))
        paths = [str(ROOT / "src"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment |= {"PYTHONUNBUFFERED": "1", "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "2"}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self._scratch / "inductor")
        environment["TRITON_CACHE_DIR"] = str(self._scratch / "triton")
        if "BENCH_TORCH" not in environment and importlib.util.find_spec("torch") is not None:
            environment["BENCH_TORCH"] = sys.executable
        # What has failed with cuDNN's attention in this piece would fail in the others too.
        if any(XLA_ATTENTION in one["variant"] for one in self._results["pieces"].get("w5", {}).get("records", ())):
            environment[ATTENTION_VARIABLE] = "xla"
        if piece.cached or self._dry:
            environment["JAX_COMPILATION_CACHE_DIR"] = str(self._scratch / "programs")
            environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        else:
            environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        if self._dry:
            environment |= {"JAX_PLATFORMS": "cpu", TINY_VARIABLE: "1"}
        return environment


class Running:
    """A piece's process, its file of records and its log."""

    def __init__(self, piece: Piece, scratch: Path, environment: Mapping[str, str], limit: float) -> None:
        self.piece = piece
        self.records = scratch / f"{piece.name}.jsonl"
        self.seconds = 0.0
        self._limit = limit
        self._start = time.monotonic()
        command: Sequence[str] = [sys.executable, str(HERE / "piece.py"), piece.name, str(self.records)]
        with open(scratch / f"{piece.name}.log", "wb") as log:
            log.write(f"==== {piece.name} ====\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def status(self) -> str:
        """``running``, or how it has ended; one that is over its limit is killed."""
        self.seconds = time.monotonic() - self._start
        code = self._process.poll()
        if code is None and self.seconds < self._limit:
            return "running"
        self.kill()  # what it has started, too
        if code is None:
            return f"killed at its limit of {self._limit:.0f} s"
        return "done" if code == 0 else f"ended with {code}"

    def kill(self) -> None:
        """Ends the process and those that it has started."""
        for number, patience in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 10.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
