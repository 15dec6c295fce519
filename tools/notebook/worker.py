"""The process that runs one notebook: ``python -m notebook.worker NOTEBOOK SECONDS EXAMPLES [FRAMEWORK [DEVICES]]``.

Writes one line of JSON per cell to the file descriptor in ``NOTEBOOK_RESULTS``; the output of cells goes to stdout.
"""

from __future__ import annotations

import ast
import dataclasses
import faulthandler
import json
import linecache
import os
import re
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, Final

from notebook import stand_ins
from notebook.cells import Cell, names_of, read_cells
from notebook.observations import Recorder
from notebook.results import CellResult
from notebook.scope import reason_out

_GRACE_SECONDS: Final = 20.0  # for operations that Python cannot interrupt: compiling, a collective


class CellTimeoutError(Exception):
    """The cell exceeded its time limit."""


class ReplicaRunner:
    """Runs the cells of one notebook in one namespace.

    Args:
        seconds: The time limit of a cell.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._recorder = Recorder()
        self._module = types.ModuleType("__main__")
        self._module.__dict__.update(display=self._display, print=self._recorder.print)
        sys.modules["__main__"] = self._module
        self._blame: dict[str, str] = {}  # name -> why the cell that would have defined it is out of scope
        self._paths: dict[str, str] = {}  # name -> why the cell that defined it and failed is out of scope

    def run(self, cell: Cell) -> CellResult:
        """Runs one cell; does not raise the cell's errors."""
        if cell.only_shell:
            return CellResult(cell.number, "out of scope", reason="shell command")
        started = time.monotonic()
        error = self._error_of(cell)
        seconds = time.monotonic() - started
        _, defined = names_of(cell.source)
        observed = self._recorder.take(self._module.__dict__, defined)
        if error is None or cell.raises:
            for name in defined:
                self._blame.pop(name, None)
            return CellResult(cell.number, "passed", seconds, observed=observed)
        message = _described(error)
        trace = "".join(traceback.format_exception(error))
        reason = self._reason(cell, message)
        if reason is None:
            return CellResult(cell.number, "failed", seconds, error=message.partition("\n")[0], trace=trace)
        root = reason.removeprefix("needs a cell out of scope: ")
        self._paths.update(dict.fromkeys(defined & set(self._module.__dict__), root))
        for name in defined - set(self._module.__dict__):
            self._blame[name] = root
        return CellResult(cell.number, "out of scope", seconds, message.partition("\n")[0], reason, trace)

    def _reason(self, cell: Cell, message: str) -> str | None:
        reason = reason_out(cell.source, message)
        if reason is None:
            unknown = re.search(r"name '(\w+)' is not defined", message)
            blamed = self._blame.get(unknown[1]) if unknown else None
            if re.match(r"(NotFoundError|FileNotFoundError)\b", message):  # a file that such a cell would have written
                used, _ = names_of(cell.source)
                blamed = next((self._paths[name] for name in used if name in self._paths), None)
            reason = f"needs a cell out of scope: {blamed}" if blamed else None
        return reason

    def _error_of(self, cell: Cell) -> BaseException | None:
        signal.signal(signal.SIGALRM, _out_of_time)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        faulthandler.dump_traceback_later(self._seconds + _GRACE_SECONDS, exit=True)
        try:
            self._execute(cell)
        except BaseException as error:  # also SystemExit and KeyboardInterrupt: the cell raised them
            return error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
        return None

    def _execute(self, cell: Cell) -> None:
        if cell.writes is not None:
            target = Path(cell.writes)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(cell.source, encoding="utf-8")
            return
        # `linecache` knows the name of each cell, so that errors and AutoGraph find its lines.
        filename = f"<cell {cell.number}>"
        linecache.cache[filename] = (len(cell.source), None, cell.source.splitlines(keepends=True), filename)
        tree = ast.parse(cell.source, filename)
        shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, filename, "exec"), self._module.__dict__)
        if shown is not None:
            expression = ast.Expression(shown.value)
            self._display(eval(compile(expression, filename, "eval"), self._module.__dict__))

    def _display(self, *values: Any) -> None:
        for value in values:
            if value is not None:
                self._recorder.show(value)
                html = getattr(type(value), "_repr_html_", None)
                print(repr(value) if html is None else html(value))


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _out_of_time(number: int, frame: Any) -> None:
    raise CellTimeoutError("the cell exceeded its time limit")


def _split_cpu(devices: int) -> None:
    """Configures as many logical CPUs in TensorFlow as `mirrored.tf` has simulated devices."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)


def main() -> None:
    """Runs the notebook that the command line names."""
    path, seconds, examples = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    framework, *devices = sys.argv[4:] or ["mirrored.tf"]
    cells = read_cells(path, framework=framework)
    stand_ins.install(examples, text="\n".join(cell.source for cell in cells), framework=framework)
    if framework == "tensorflow" and devices:
        _split_cpu(int(devices[0]))
    sys.argv = [path.name]
    sys.path.insert(0, os.getcwd())  # for modules that cells write
    with os.fdopen(int(os.environ.pop("NOTEBOOK_RESULTS")), "w", buffering=1) as results:
        session = ReplicaRunner(seconds)
        for cell in cells:
            print(f"--- cell {cell.number}", flush=True)
            results.write(json.dumps(dataclasses.asdict(session.run(cell))) + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that notebooks start may not end


if __name__ == "__main__":
    main()
