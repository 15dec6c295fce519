"""The directive ``gallery``: the example programs with their figures and sources, from `examples/README.md`."""

from __future__ import annotations

import pathlib
import re

from docutils import nodes
from docutils.statemachine import StringList
from public_names import with_code
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
HEADING = re.compile(r"^## \[(\w+)\.py\]\(\w+\.py\): (.*)$", re.MULTILINE)


def _table(text: str) -> list[str]:
    """Returns the lines of the overview, with the names of the programs as code: the sections below show them."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [re.sub(r"\[(\w+\.py)\]\(\w+\.py\)", r"`\1`", row) for row in rows]


class Gallery(SphinxDirective):
    """Shows each example: its description, figure and source."""

    def run(self) -> list[nodes.Node]:
        """Returns the overview of all examples, and one section per example."""
        self.env.note_dependency(str(EXAMPLES / "README.md"))
        head, *parts = HEADING.split((EXAMPLES / "README.md").read_text(encoding="utf-8"))
        overview = nodes.Element()
        self.state.nested_parse(StringList(_table(head), source="examples"), self.content_offset, overview)
        sections: list[nodes.Node] = list(overview.children)
        for name, title, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            section = nodes.section(ids=[name])
            section += nodes.title("", "", *with_code(title[0].upper() + title[1:]))
            text = body.replace("](pictures/", "](../examples/pictures/") + (
                f":::{{dropdown}} examples/{name}.py\n```{{literalinclude}} ../examples/{name}.py\n```\n:::\n"
            )
            self.state.nested_parse(StringList(text.splitlines(), source="examples"), self.content_offset, section)
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("gallery", Gallery)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
