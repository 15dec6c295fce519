"""Comments and docstrings of the package refer only to modules and names that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mirrored

_ROOT = Path(mirrored.__file__).parent
# Not `tf`: there the name of a module is one of TensorFlow.
_PACKAGES = sorted(path.name for path in _ROOT.iterdir() if (path / "__init__.py").exists() and path.name != "tf")
# Dotted names that begin in the package, such as `strategies.shard_map_call` or `_jax.interrupts.Dispatch`; not files.
_REFERENCE = re.compile(rf"(?<!`)`(?:mirrored\.)?((?:{'|'.join(_PACKAGES)})(?:\.(?!(?:py|jsonl)`)\w+)+)`(?!`)")


def _names_in(tree: ast.AST) -> set[str]:
    """Returns all names that a module defines anywhere: functions, classes, variables, attributes and imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name.rpartition(".")[2])
    return names


def _exists(reference: str) -> bool:
    """Returns whether a dotted name leads to a module of the package, and its rest to names in that module."""
    path = _ROOT
    parts = reference.split(".")
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    if parts and (path / f"{parts[0]}.py").exists():
        module = path / f"{parts.pop(0)}.py"
    else:
        module = path / "__init__.py"
    return set(parts) <= _names_in(ast.parse(module.read_text()))


def test_references_to_modules_and_their_names_exist() -> None:
    stale = []
    for path in sorted(_ROOT.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            stale += [
                f"{path.relative_to(_ROOT)}:{number}: {reference}"
                for reference in _REFERENCE.findall(line)
                if not _exists(reference)
            ]
    assert not stale, "\n".join(stale)


def test_a_stale_reference_is_found() -> None:
    assert _REFERENCE.findall("behind boundaries (`strategies.shard_map_call`)") == ["strategies.shard_map_call"]
    assert _exists("strategies.shard_map_call")
    assert _exists("_jax.interrupts.Dispatch.forget")
    assert not _exists("strategies.binding")
    assert not _exists("_jax.interrupts.NoSuchClass")
