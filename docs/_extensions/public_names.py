"""Directives of the API reference that list the public names of a module, so that no name is left out.

- ``.. public-names:: mirrored.data`` documents every public name of a module.
- ``.. names-of-facade::`` lists every name of `mirrored.tf` with the first sentence of its docstring, by namespace.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import re
import textwrap
import types
from collections.abc import Iterator
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def public_names(module: types.ModuleType) -> list[str]:
    """Returns the public names of a module: those in `__all__`, or the classes and functions that it defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return sorted(name for name in defined if not name.startswith("_"))


def _directive(value: object) -> str:
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if callable(value) and hasattr(value, "__name__") else "autodata"


def _constant(module: types.ModuleType, name: str) -> list[str]:
    """Returns the documentation of a constant: its value, and the string behind its assignment."""
    text = _text_of(module.__name__, name)
    body = textwrap.indent(inspect.cleandoc(text), "   ").splitlines()
    value = repr(getattr(module, name))
    shown = [f"   :value: {value}"] if len(value) < 60 else []
    return [f".. py:data:: {name}", *shown, "", *body, ""]


def _text_of(module: str, name: str) -> str:
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and node.module and name in {one.asname for one in node.names}:
            return _text_of(node.module, name)
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if name in {getattr(target, "id", None) for target in targets}:
            return ast.literal_eval(following.value) if isinstance(following, ast.Expr) else ""
    raise LookupError(f"{module} does not define {name}")


class PublicNames(SphinxDirective):
    """Documents every public name of a module."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, object]] = {"except": str.split}

    def run(self) -> list[nodes.Node]:
        """Returns a summary table and the documentation of each name."""
        module = importlib.import_module(self.arguments[0])
        names = [name for name in public_names(module) if name not in self.options.get("except", ())]
        lines = [f".. currentmodule:: {module.__name__}", "", ".. autosummary::", ""]
        # A constant would have the docstring of its type in the summary.
        lines += [f"   {name}" for name in names if _directive(getattr(module, name)) != "autodata"] + [""]
        for name in names:
            kind = _directive(getattr(module, name))
            if kind == "autodata":
                lines += _constant(module, name)
                continue
            lines += [f".. {kind}:: {name}", *(["   :show-inheritance:"] if kind == "autoexception" else []), ""]
        node = nodes.Element()
        self.state.nested_parse(StringList(lines, source=module.__name__), self.content_offset, node)
        return node.children


def _facade(module: types.ModuleType, path: str) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    found, inner = [], []
    for name in sorted(n for n in dir(module) if not n.startswith("_")):
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith("mirrored.tf"):
                inner.append((f"{path}.{name}", value))
        else:
            found.append((name, value))
    yield path, found
    for name, value in inner:
        yield from _facade(value, name)


class NamesOfFacade(SphinxDirective):
    """Lists every name of `mirrored.tf` with the first sentence of its docstring."""

    def run(self) -> list[nodes.Node]:
        """Returns one section with a table per namespace."""
        sections: list[nodes.Node] = []
        for path, names in _facade(importlib.import_module("mirrored.tf"), "tf"):
            if not names:
                continue
            section = nodes.section(ids=[path.replace(".", "-")])
            section += nodes.title(text=path)
            section += self._table([(f"{path}.{name}", _summary(value)) for name, value in names])
            sections.append(section)
        return sections

    def _table(self, rows: list[tuple[str, str]]) -> nodes.table:
        group = nodes.tgroup("", nodes.colspec(colwidth=35), nodes.colspec(colwidth=65), cols=2)
        body = nodes.tbody()
        for name, summary in rows:
            cells = [
                nodes.entry("", nodes.paragraph("", "", nodes.literal(text=name))),
                nodes.entry("", nodes.paragraph("", "", *with_code(summary))),
            ]
            body += nodes.row("", *cells)
        group += body
        return nodes.table("", group)


def _summary(value: object) -> str:
    if not (inspect.isclass(value) or inspect.isroutine(value) or callable(value)):
        return f"`{value!r}`"
    text = inspect.getdoc(value) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`")


def with_code(text: str) -> Iterator[nodes.Node]:
    """Yields the parts of a sentence; what stands in backticks is code."""
    for index, part in enumerate(text.split("`")):
        yield nodes.literal(text=part) if index % 2 else nodes.Text(part)


# Methods that modules of the library call on each other's objects. They are no part of the interface.
INTERNAL = {
    "GradientTape": {"on_read", "on_write", "tracks"},
    "Function": {"around", "traced_function", "traced_inputs"},
    "InputOptions": {"ahead", "check"},
    "PerReplica": {"component_shape", "first", "from_stacked", "is_stacked", "stacked", "of_uneven_batch"},
    "Strategy": {"check_scope", "group"},
    "_Members": {"calls_user_code", "from_variable_aggregation"},
    "Variable": {
        *("await_value", "borrowed", "check_writable_here", "checked_value", "component_shape", "component_value"),
        *("counts_replicas", "device_of", "hold", "initial", "internal", "is_lost", "is_shared"),
        *("is_sum_of_components", "awaits_other_than", "lose", "mark_shared", "may_become", "numbered", "on_host"),
        *("release", "share_of", "store", "stored", "stored_component", "stored_shape", "supply_value", "taken"),
        *("update_component", "withhold"),
    },
}


def _without_internal(app: Sphinx, kind: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    owner = (
        getattr(value, "__qualname__", "").rpartition(".")[0]
        or getattr(getattr(value, "fget", None), "__qualname__", "").rpartition(".")[0]
    )
    return True if name in INTERNAL.get(owner, ()) else None


def _link_to_page(app: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Appends to the docstring of an error or warning the link to its page, if it has one."""
    page = re.sub(r"(?<!^)(?=[A-Z])", "_", name.rpartition(".")[2]).lower()
    if kind == "exception" and (pathlib.Path(app.srcdir) / "errors" / f"{page}.md").exists():
        lines += ["", f":doc:`A wrong program, its message, and the right program </errors/{page}>`", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directives."""
    app.add_directive("public-names", PublicNames)
    app.add_directive("names-of-facade", NamesOfFacade)
    app.connect("autodoc-skip-member", _without_internal)
    app.connect("autodoc-process-docstring", _link_to_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
