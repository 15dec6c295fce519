"""The directive ``command-line``: the help of every command of `mirrored`, as click prints it."""

from __future__ import annotations

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mirrored.cli import main

WIDTH = 88


class CommandLine(SphinxDirective):
    """Shows one section per command, with its help."""

    def run(self) -> list[nodes.Node]:
        """Returns the sections."""
        program = click.Context(main, info_name="mirrored", terminal_width=WIDTH, **main.context_settings)
        sections: list[nodes.Node] = []
        for name in main.list_commands(program):
            command = main.commands[name]
            context = click.Context(command, parent=program, info_name=name)
            section = nodes.section(ids=[f"mirrored-{name}"])
            section += nodes.title("", "", nodes.literal(text=f"mirrored {name}"))
            section += nodes.literal_block(text=command.get_help(context), language="text")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
