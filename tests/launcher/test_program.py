"""The main program of a worker process: where it finds the user's modules, and how it compiles the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirrored.cli import plan
from mirrored.launcher import program


@pytest.mark.parametrize("safe_path", [False, True])
def test_the_folder_of_the_program_replaces_the_working_directory_in_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safe_path: bool
) -> None:
    """In Python's safe mode the first entry is not the working directory, but, for instance, that of PYTHONPATH."""
    (tmp_path / "train.py").touch()
    played = SimpleNamespace(flags=SimpleNamespace(safe_path=safe_path), path=["first", "second"], argv=[])
    monkeypatch.setattr(program, "sys", played)
    program._loaded_file([str(tmp_path / "train.py"), "--lr"])
    assert played.path == ["first" if safe_path else str(tmp_path), "second"]
    assert played.argv == [str(tmp_path / "train.py"), "--lr"]
    program._loaded_module(["json.tool"])
    assert played.path[0] == ("first" if safe_path else str(Path.cwd()))


_NAMES = """
import sys
def function(): pass
print([__file__, sys.argv, sys.path[0], function.__code__.co_filename, __spec__, type(__loader__).__name__])
"""


@pytest.mark.parametrize("target", ["train.py", "sub/../train.py", "link.py", "absolute"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_program_has_the_names_that_it_has_under_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str, command: str
) -> None:
    """`os.chdir` in the program must not change what `__file__` means; links are followed for the search path."""
    for folder in (tmp_path / "sub", tmp_path / "other"):
        folder.mkdir()
    (tmp_path / "train.py").write_text(_NAMES)
    (tmp_path / "other" / "elsewhere.py").write_text(_NAMES)
    (tmp_path / "link.py").symlink_to(tmp_path / "other" / "elsewhere.py")
    monkeypatch.chdir(tmp_path)
    given = str(tmp_path / "train.py") if target == "absolute" else target
    expected = subprocess.run([sys.executable, given, "--lr"], capture_output=True, text=True, timeout=60, check=True)
    monkeypatch.setattr(sys, "argv", ["mirrored"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    if command == "run":
        code, module = program._loaded_file([given, "--lr"])
        exec(code, module.__dict__)
    else:
        plan._run(Path(given), ["--lr"])
    assert capsys.readouterr().out == expected.stdout


@pytest.mark.parametrize(("first", "found"), [("", int), ("from __future__ import annotations", "int")])
def test_only_the_future_statements_of_the_program_itself_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, found: object
) -> None:
    (tmp_path / "train.py").write_text(f"{first}\nsteps: int = 3\nannotations = __annotations__\n")
    monkeypatch.setattr(program, "sys", SimpleNamespace(flags=SimpleNamespace(safe_path=True), path=[], argv=[]))
    code, module = program._loaded_file([str(tmp_path / "train.py")])
    exec(code, module.__dict__)
    assert module.__dict__["annotations"] == {"steps": found}
