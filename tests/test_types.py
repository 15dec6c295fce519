"""What type checkers see is what there is. `make lint` runs them over the programs that these tests execute."""

from __future__ import annotations

import ast
import contextlib
import importlib
import operator
import runpy
from pathlib import Path

import check_user_programs
import pytest
import tf_stubs

import mirrored
import mirrored.tf as tf
from mirrored.values.operators import ArrayOperators

SOURCE = Path(mirrored.__file__).parent
PROGRAMS = check_user_programs.PROGRAMS


def public_names(body: list[ast.stmt]) -> set[str]:
    """The names that a checker lets others import from a stub, or from an ``if TYPE_CHECKING`` block."""
    found = set()
    for node in body:
        if isinstance(node, ast.ImportFrom):
            found |= {one.name for one in node.names if one.asname == one.name}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {one for one in found if not one.startswith("_") or one.startswith("__")}


def seen_by_checkers(path: Path) -> set[str]:
    """The names of a module with an ``if TYPE_CHECKING`` block at its top level: those of the block."""
    blocks = [one for one in ast.parse(path.read_text()).body if isinstance(one, ast.If)]
    (block,) = (one for one in blocks if ast.unparse(one.test) == "TYPE_CHECKING")
    return public_names(block.body)


def test_the_stubs_of_tf_are_current() -> None:
    assert tf_stubs.differences(tf_stubs.stubs(), tf_stubs.FOLDER) == []


def test_a_stub_that_is_stale_is_found(tmp_path: Path) -> None:
    (tmp_path / "old.pyi").write_text("")
    (tmp_path / "math.pyi").write_text("def abs(x: int) -> int: ...\n")
    expected = {Path("math.pyi"): "", Path("nn.pyi"): ""}
    assert tf_stubs.differences(expected, tmp_path) == [
        "nn.pyi: missing",
        "old.pyi: no such namespace",
        "math.pyi: out of date",
    ]


WRITER = tf_stubs.Writer(tf_stubs.everything())


@pytest.mark.parametrize("space", WRITER.spaces)
def test_a_stub_has_the_names_of_its_namespace(space: str) -> None:
    module = operator.attrgetter(space)(tf) if space else tf
    text = tf_stubs.FOLDER.joinpath(WRITER.path(space)).read_text()
    names = public_names(ast.parse(text).body)
    paths = [*WRITER.names, *WRITER.spaces]
    expected = {leaf for above, leaf in map(tf_stubs.place_of, paths) if above == space and leaf}
    if space.startswith("experimental.numpy"):  # a module of its own, which the tables have as one object
        expected = {one for one in vars(module) if not one.startswith("_")}
    assert names == expected
    assert [one for one in names if not hasattr(module, one)] == []


def test_checkers_see_the_names_of_mirrored_and_no_others() -> None:
    core = public_names(ast.parse((SOURCE / "_core.py").read_text()).body) | seen_by_checkers(SOURCE / "_core.py")
    names = core | seen_by_checkers(SOURCE / "__init__.py")
    assert names == {*mirrored.__all__, *mirrored._MODULES, "__version__"}


def test_checkers_see_the_operators_of_variables() -> None:
    (stub,) = (
        one
        for one in ast.parse((SOURCE / "values" / "operators.pyi").read_text()).body
        if isinstance(one, ast.ClassDef)
    )
    declared = public_names(stub.body)
    own = {"__annotations__", "__module__", "__doc__", "__slots__", "__static_attributes__", "__firstlineno__"}
    assert declared == set(vars(ArrayOperators)) - own


@pytest.mark.parametrize("name", ["values.operators"])
def test_a_hand_written_stub_names_what_its_module_has(name: str) -> None:
    path = SOURCE.joinpath(*name.split(".")).with_suffix(".pyi")
    module = importlib.import_module(f"mirrored.{name}")
    assert [one for one in public_names(ast.parse(path.read_text()).body) if not hasattr(module, one)] == []


@pytest.mark.parametrize("path", sorted((PROGRAMS / "right").glob("*.py")), ids=lambda path: path.stem)
@pytest.mark.first(1)
def test_a_right_program_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path))
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", sorted((PROGRAMS / "wrong").glob("*.py")), ids=lambda path: path.stem)
def test_every_wrong_line_of_a_program_fails(path: Path) -> None:
    wrong = {line.number for line in check_user_programs.marked() if line.path == path}
    names: dict[str, object] = {}
    worked = []
    for statement in ast.parse(path.read_text()).body:
        code = compile(ast.Module([statement], []), str(path), "exec")
        if statement.lineno not in wrong:
            exec(code, names)
            continue
        with contextlib.suppress(Exception):
            exec(code, names)
            worked.append(f"line {statement.lineno}: {ast.unparse(statement)}")
    assert worked == []
