"""The process of one piece: python benchmarks/gpu/piece.py NAME FILE."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.pieces import PIECES
from gpu.recording import Recorder


def main(name: str, path: str) -> int:
    """Measures; what no variant has caught is recorded too."""
    piece = next(one for one in PIECES if one.name == name)
    recorder = Recorder(Path(path))
    try:
        importlib.import_module(f"gpu.{piece.module}").measure(recorder, *piece.arguments)
    except Exception:
        recorder.failed("the piece itself", 0.0, traceback.format_exc())
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
