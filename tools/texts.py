#!/usr/bin/env python
"""Lists what users and maintainers read: docstring summaries, messages of errors and warnings, pages of documentation.

    python tools/texts.py > texts.md                 # everything, in the order of the source
    python tools/texts.py --sample 40 --seed 7       # summaries drawn at random, each with its name alone

Revise a text that someone who knows JAX and nothing of this project has to read twice.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PARTS = ("found", "rule", "remedy")


def summaries(path: Path, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the dotted name and the docstring's first paragraph of the module and of all its public definitions."""
    module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")

    def visit(
        node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
    ) -> Iterator[tuple[str, str]]:
        text = ast.get_docstring(node)
        if text:
            yield name, " ".join(text.split("\n\n")[0].split())
        for child in node.body if not isinstance(node, ast.FunctionDef) else []:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith(
                "_"
            ):
                yield from visit(child, f"{name}.{child.name}")

    yield from visit(tree, module)


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each error and warning; expressions in the text are shown in braces."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        parts = {one.arg: one.value for one in node.keywords if one.arg in PARTS}
        if len(parts) == len(PARTS):
            called = _text(node.args[0]) if node.args else "?"
            yield node.lineno, "; ".join([called, *(f"**{part}** {_text(parts[part])}" for part in PARTS)])
        elif ast.unparse(node.func) == "warnings.warn" and node.args:
            yield node.lineno, f"warning: {_text(node.args[0])}"


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one) for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "{" + ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node) + "}"


def pages() -> Iterator[tuple[str, str]]:
    """Yields each page of the documentation with its title and first paragraph."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = [block for block in path.read_text().split("\n\n") if block.strip()]
        title = blocks[0].lstrip("# ").strip()
        yield path.relative_to(ROOT).as_posix(), f"{title}: {' '.join(blocks[1].split()) if len(blocks) > 1 else ''}"


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--sample", type=int, help="Draw this many summaries of definitions at random, and list only these.")
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the sample, which is printed.")
def main(sample: int | None, seed: int) -> None:
    """Prints the texts as Markdown."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((SOURCE / "mirrored").rglob("*.py"))}
    found = [one for path, tree in trees.items() for one in summaries(path, tree)]
    if sample is not None:
        click.echo(f"seed {seed}: {sample} of {len(found)} summaries")
        for name, text in random.Random(seed).sample(found, sample):
            click.echo(f"- {name}: {text}")
        return
    click.echo("# Summaries\n")
    for name, text in found:
        click.echo(f"- `{name}`: {text}")
    click.echo("\n# Messages\n")
    for path, tree in trees.items():
        for line, text in messages(tree):
            click.echo(f"- {path.relative_to(SOURCE)}:{line}: {text}")
    click.echo("\n# Pages\n")
    for name, text in pages():
        click.echo(f"- {name}: {text}")


if __name__ == "__main__":
    main()
