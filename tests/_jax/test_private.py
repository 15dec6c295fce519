"""Probe of the private modules of JAX: the installed version has every name that a shim takes from them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from mirrored._jax import private

SHIMS = sorted(Path(private.__file__).parent.glob("*.py"))
# Names that only some of the supported versions have. The shim looks for them before it uses them.
IN_SOME_VERSIONS = {
    "core.canonicalize_value_dtype": "0.10.0 only; `arrays` extends it to array-like classes",
    "dtypes.register_canonicalize_value_handler": "from 0.10.1 on; `boxes` registers boxes with it",
}


def taken_by(tree: ast.Module) -> Iterator[str]:
    """Yields what a shim takes from the private modules: attributes, and names that it looks up with `getattr`."""
    known = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == private.__name__
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            if head in known:
                yield f"{known[head]}.{rest}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            owner, name = node.args[:2]
            head, _, rest = ast.unparse(owner).partition(".")
            if head in known and isinstance(name, ast.Constant):
                yield ".".join([known[head], *([rest] if rest else []), name.value])


def missing(path: str) -> str | None:
    """Returns the first part of a dotted path that JAX lacks; None if it has all of it."""
    found: Any = private
    parts = path.split(".")
    for position, part in enumerate(parts):
        if not hasattr(found, part):
            return ".".join(parts[: position + 1])
        found = getattr(found, part)
    return None


@pytest.mark.parametrize("shim", SHIMS, ids=lambda path: path.stem)
def test_jax_has_every_name_that_a_shim_uses(shim: Path) -> None:
    taken = set(taken_by(ast.parse(shim.read_text(encoding="utf-8"))))
    lacking = {path: missing(path) for path in taken - set(IN_SOME_VERSIONS) if missing(path)}
    assert not lacking, f"JAX {jax.__version__} lacks private names on which mirrored/_jax/{shim.name} relies"


def test_names_of_some_versions_are_still_looked_for() -> None:
    taken = {path for shim in SHIMS for path in taken_by(ast.parse(shim.read_text(encoding="utf-8")))}
    assert set(IN_SOME_VERSIONS) <= taken, "remove the names that no shim uses from this list"


def test_one_of_the_ways_to_register_a_value_handler_exists() -> None:
    assert any(missing(path) is None for path in IN_SOME_VERSIONS)


def test_a_missing_name_is_seen() -> None:
    program = (
        "from mirrored._jax.private import core as _core\n_core.gone.inner\n_core.Tracer\nhasattr(_core.Tracer, 'lost')"
    )
    taken = set(taken_by(ast.parse(program)))
    assert taken == {"core.gone", "core.gone.inner", "core.Tracer", "core.Tracer.lost"}
    assert {missing(path) for path in taken} == {"core.gone", "core.Tracer.lost", None}
