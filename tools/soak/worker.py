"""Runs programs in a separate process: reads and writes one JSON line per program.

A program can crash or deadlock the whole process, so another process judges the results.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
import types
import warnings
from typing import Any


def main() -> None:
    """Reads programs from standard input until its end; writes results to the descriptor SOAK_RESULTS."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    results = os.fdopen(int(os.environ["SOAK_RESULTS"]), "w")
    import mirrored  # noqa: F401  # imported here so that no program's time includes it

    print(json.dumps({"ready": True}), file=results, flush=True)
    for line in sys.stdin:
        print(json.dumps(result_of(json.loads(line)["text"])), file=results, flush=True)


def result_of(text: str) -> dict[str, Any]:
    """Executes the text of a program and calls its `program()`.

    Returns:
        `record`, or `error` with its class and traceback; and the warnings from mirrored.
    """
    module = types.ModuleType("soak_program")
    sys.modules["soak_program"] = module  # dataclasses look there
    names = vars(module)
    result: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(text, "<program>", "exec"), names)
            result["record"] = json.loads(json.dumps(names["program"](), default=_plain))
        except BaseException as error:
            result["error"] = {
                "class": type(error).__name__,
                "module": type(error).__module__,
                "message": str(error)[:2000],
                "traceback": traceback.format_exc()[-6000:],
            }
    # Warnings from mirrored are recognized by class or text: its messages name the call.
    result["warnings"] = sorted({str(one.message)[:400] for one in caught if "mirrored" in _origin(one)})
    return result


def _origin(one: warnings.WarningMessage) -> str:
    category = one.category
    return f"{category.__module__} {one.message} {one.filename if 'site-packages' not in one.filename else ''}"


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


if __name__ == "__main__":
    main()
