"""The main program of a worker process under `mirrored run`, which runs the user's program, e.g. ``train.py``.

``python -m mirrored.launcher.program train.py`` runs ``train.py``.

In addition it ties the process to its launcher. The process ends when the launcher ends. When the program fails, the
process announces the failure to the launcher before it prints the error, so that this error comes first on the screen.
Then it ends without waiting for the other workers.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import io
import os
import signal
import sys
import types
from typing import Any, Final

from mirrored._jax.compilation_cache import write_on_every_process
from mirrored.errors import ArgumentError
from mirrored.settings import LAUNCHER_FD
from mirrored.watchdog.fail_fast_exit import connect, fail_fast, fail_fast_on_exception

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Runs the user's program that the command line names, in this worker process."""
    launcher = LAUNCHER_FD.read()
    os.environ.pop(LAUNCHER_FD.name, None)
    if launcher is not None:
        _die_with_the_launcher()
        connect(launcher)
    write_on_every_process()
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    try:
        code, main_module = _loaded_module(arguments[1:]) if is_module else _loaded_file(arguments)
        sys.modules["__main__"] = main_module
        exec(code, main_module.__dict__)
    except SystemExit as error:
        _exit(error)
    except BaseException as error:
        trace = _beyond_this_file(error)
        fail_fast_on_exception(type(error), error.with_traceback(trace), trace)


def _exit(error: SystemExit) -> None:
    """Ends the process after `sys.exit`: normally for status 0; for other statuses immediately, without cleanup."""
    if error.code is None or error.code == 0:
        raise error
    is_number = isinstance(error.code, int)
    # The system keeps only 8 bits of the status: sys.exit(256) must not count as success.
    code = int(error.code) & 0xFF or 1 if is_number else 1
    text = f"exited with code {int(error.code)}" if is_number else f"exited: {str(error.code)[:300]}"
    fail_fast("exit", code, text, lambda: None if is_number else print(error.code, file=sys.stderr))


def _die_with_the_launcher() -> None:
    """Asks the Linux kernel to kill this process when its launcher ends; does nothing on other systems."""
    if sys.platform != "linux":
        return
    launcher = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(1)


def _loaded_file(arguments: list[str]) -> tuple[types.CodeType, types.ModuleType]:
    # As for `python train.py`: the file's name is absolute, and that in the arguments as it was given.
    path = os.path.join(os.getcwd(), arguments[0])
    sys.argv = arguments
    _look_first_in(os.path.dirname(os.path.realpath(path)))
    with io.open_code(path) as file:
        # Otherwise the future statements of this file would apply to the program, too.
        code: Any = compile(file.read(), path, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__file__, module.__loader__ = path, importlib.machinery.SourceFileLoader("__main__", path)
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    return code, module


def _look_first_in(folder: str) -> None:
    """Sets the first entry of `sys.path` to `folder`, as Python does when it runs a program or module.

    In Python's safe mode (``-P``, PYTHONSAFEPATH) there is no such entry, and the first one is another.
    """
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _loaded_module(arguments: list[str]) -> tuple[types.CodeType, types.ModuleType]:
    name = arguments[0]
    _look_first_in(os.getcwd())
    found = importlib.util.find_spec(name)
    if found is not None and found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{name}.__main__")
    code: Any = found.loader.get_code(found.name) if found is not None and found.loader is not None else None  # type: ignore[attr-defined]
    if found is None or code is None:
        raise ArgumentError(
            "mirrored run -m",
            found=f"there is no module {name!r} that can be run",
            rule="-m must be followed by the name of a module, as for python -m",
            remedy="check the name of the module, and PYTHONPATH",
        )
    module = types.ModuleType("__main__")
    module.__file__, module.__spec__, module.__package__ = found.origin, found, found.parent
    module.__loader__ = found.loader
    sys.argv = [found.origin or name, *arguments[1:]]
    return code, module


def _beyond_this_file(error: BaseException) -> types.TracebackType | None:
    """Returns the frames of a traceback after those of this file: the frames of the user's program."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
