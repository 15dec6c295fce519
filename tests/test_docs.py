"""The pages in docs/ name what exists."""

from __future__ import annotations

import os
import pathlib
import re
import types

import pytest

import mirrored
import mirrored.tf as tf

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coming_from_tensorflow.md"

# Behind this heading are the names that are out; tests/tf/test_names.py holds them against the facade.
NAMES_THAT_ARE_HERE = PAGE.read_text().partition("## What is missing")[0]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tf\.[\w.]+\w)(?:\(|`)", NAMES_THAT_ARE_HERE))))
def test_every_tensorflow_name_on_the_page_is_there(name: str) -> None:
    found = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`mirrored\.(\w+)`", PAGE.read_text()))))
def test_every_name_of_ours_on_the_page_is_there(name: str) -> None:
    assert getattr(mirrored, name)


ERRORS = PAGE.with_name("errors.md")


def _all_errors(cls: type[BaseException]) -> set[type[BaseException]]:
    return {cls}.union(*(_all_errors(inner) for inner in cls.__subclasses__()))


def test_the_page_of_errors_has_a_row_for_each_class() -> None:
    defined = {
        cls for cls in _all_errors(mirrored.errors.MirroredError) if cls.__module__ == mirrored.errors.__name__
    } - {mirrored.errors.MirroredError}
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(errors/\w+\.md\) \| (\w+) \|", ERRORS.read_text(), re.M))
    assert set(rows) == {cls.__name__ for cls in defined}
    for cls in defined:
        assert rows[cls.__name__] in {base.__name__ for base in cls.__mro__}


def test_the_page_of_errors_has_a_row_for_each_category_of_warnings() -> None:
    defined = {
        name for name, one in vars(mirrored.errors).items() if isinstance(one, type) and issubclass(one, Warning)
    }
    section = ERRORS.read_text().partition("## Warnings")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| \[`(\w+)`\]\(errors/\w+\.md\) \|", section, re.M)) == {*defined, "LossReductionWarning"}


REFERENCE = PAGE.with_name("reference")
CORE_PAGES = ("strategies", "variables", "tape", "function", "trees", "progress")


def test_the_reference_documents_every_public_name() -> None:
    documented = re.findall(
        r"^\.\. auto(?:class|function):: (\w+)$",
        "\n".join((REFERENCE / f"{page}.rst").read_text() for page in CORE_PAGES),
        re.M,
    )
    # The options and contexts of input are on the page of `mirrored.data`, which documents that module's `__all__`.
    names = {name for name in dir(mirrored) if not name.startswith("_")} - set(mirrored.data.__all__)
    modules = {name for name in names if isinstance(getattr(mirrored, name), types.ModuleType)}
    assert sorted(documented) == sorted(names - modules)
    for module in modules:
        page = (REFERENCE / f"{module}.rst").read_text()
        assert module == "tf" or f".. public-names:: mirrored.{module}" in page


def test_every_page_is_in_a_table_of_contents() -> None:
    root = PAGE.parent
    pages = {path.relative_to(root) for path in root.rglob("*") if path.suffix in {".md", ".rst"}}
    pages |= {path.relative_to(root) for path in (root / "tutorials").glob("*.py")}
    listed = {pathlib.Path("index.md")}
    for path in pages:
        if path.suffix == ".py":
            continue
        text = (root / path).read_text()
        blocks = re.findall(r"^```{toctree}\n(.*?)^```", text, re.M | re.S)
        blocks += re.findall(r"^\.\. toctree::\n((?:(?:   .*)?\n)+)", text, re.M)
        entries = {line.strip() for block in blocks for line in block.splitlines() if line.strip()[:1] not in ("", ":")}
        for entry in entries:
            found = [
                page for page in pages if page.with_suffix("") == pathlib.Path(os.path.normpath(path.parent / entry))
            ]
            assert found, f"{path} lists {entry}, which does not exist"
            listed |= set(found)
    assert pages - listed == set()


DOCS = PAGE.parent
LINKED = [*DOCS.rglob("*.md"), *(DOCS / "tutorials").glob("*.py"), *DOCS.parent.glob("*.md")]


def anchors_of(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as MyST and GitHub make them."""
    headings = re.findall(r"^(?:# )?#{1,6} (.*)$", page.read_text(encoding="utf-8"), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_to_pages_and_headings(page: pathlib.Path) -> None:
    """`make docs` checks them, too, but needs Sphinx and minutes."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors_of(found), f"{page.name} links to {target}"


def test_the_page_of_changes_resolves_the_links_of_the_changelog() -> None:
    """They are relative to the repository, and the page is in docs/."""
    assert ":relative-docs: docs/\n" in (DOCS / "changes.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert [link for link in links if not re.match(r"https?:|docs/", link)] == []
