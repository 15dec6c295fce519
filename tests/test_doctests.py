"""The examples in docstrings run as they stand."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

import mirrored

ROOT = Path(mirrored.__file__).parent


def modules_with_examples() -> list[str]:
    """The names of all modules whose source has an example."""
    paths = (path for path in sorted(ROOT.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8"))
    names = (".".join(["mirrored", *path.relative_to(ROOT).with_suffix("").parts]) for path in paths)
    return [name.removesuffix(".__init__") for name in names]


class Finder(doctest.DocTestFinder):
    """Goes by what a file defines: public objects call their module `mirrored`."""

    def _from_module(self, module, object):
        name = getattr(object, "__qualname__", None)
        if name is None:
            return super()._from_module(module, object)
        body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
        return name.partition(".")[0] in {getattr(node, "name", None) for node in body}


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for example in Finder().find(module, name):
        runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0


@pytest.mark.parametrize("name", ["run", "reduce"])
def test_the_core_has_examples(name):
    assert ">>> " in getattr(mirrored.Strategy, name).__doc__
