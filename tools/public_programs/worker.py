"""The process that runs one program: ``python -m public_programs.worker PROGRAM EXAMPLES FRAMEWORK [DEVICES]``."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
import types
from pathlib import Path

from notebook import stand_ins
from notebook.cells import translate

from public_programs import shortening


def main() -> None:
    """Runs the program that the command line names; the exit status is its own, 1 after an error."""
    path, examples, framework, *devices = sys.argv[1:]
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    stand_ins.install(int(examples), text=text + "\nkeras", framework=framework)
    if framework == "tensorflow":
        text = shortening.on_cpus(text)
        if devices:
            _split_cpu(int(devices[0]))
        _without_xla()
    import keras

    shortening.shorten_fit(keras.Model)
    sys.exit(_run(translate(text, framework), Path(path)))


def _split_cpu(devices: int) -> None:
    """Configures as many logical CPUs in TensorFlow as `mirrored.tf` has simulated devices."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)


def _without_xla() -> None:
    """Makes TensorFlow's `fit` not use XLA, whose programs for CPUs have no collectives of several logical CPUs."""
    import keras.src.trainers.trainer as trainer

    trainer.model_supports_jit = lambda model: False


def _run(text: str, path: Path) -> int:
    module = types.ModuleType("__main__")
    module.__file__ = path.name
    sys.modules["__main__"] = module
    sys.argv = [path.name]
    sys.path.insert(0, os.getcwd())
    linecache.cache[path.name] = (len(text), None, text.splitlines(keepends=True), path.name)
    try:
        exec(compile(shortening.shortened(text, path.name), path.name, "exec"), module.__dict__)
    except SystemExit as ended:
        return int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    try:
        main()
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(bool(ended.code)))  # threads that programs start may not end
