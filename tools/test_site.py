#!/usr/bin/env python
"""Opens the built documentation site in headless Chromium: console messages, search, pictures of pages.

    make docs-test
    python tools/test_site.py docs/_build/html --pictures site_pictures

Chromium resolves no host but localhost, so a page that needs anything from the network fails. The tool fails if a page
logs an error or has a part that another host serves, or if the search does not find one of ten terms.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator

import click

TERMS = (
    *("GradientTape", "all-reduce", "deterministic", "checkpoint", "Keras", "TF_CONFIG", "virtual devices"),
    *("LossScaleWarning", "experimental_distribute_dataset", "num_replicas_in_sync"),
)
PAGES = (
    *("index", "is_this_for_me", "tutorials/quickstart", "tutorials/from_keras", "tutorials/several_workers"),
    *(
        "tutorials/cookbook",
        "examples",
        "performance",
        "assumptions",
        "troubleshooting",
        "design/0004_replication_check",
    ),
    *("coming_from_tensorflow", "errors", "reference/variables"),
)
WIDTHS = {"desktop": (1300, 1600), "phone": (500, 1600)}  # Chromium's window is at least 500 wide.


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextlib.contextmanager
def served(folder: pathlib.Path) -> Iterator[str]:
    """Serves a folder on localhost, and yields the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()


def chromium(*arguments: str) -> tuple[str, str]:
    """Runs Chromium once, and returns its standard output and log."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise click.ClickException("no Chromium is installed (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                program,
                *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
                *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
                *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost", "--virtual-time-budget=8000"),
                *("--enable-logging=stderr", f"--user-data-dir={profile}", *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    return done.stdout, done.stderr


def errors_in(log: str) -> list[str]:
    """Returns the console messages of a page that report an error."""
    messages = re.findall(r"CONSOLE[^\]]*\] (.*)", log)
    return [text for text in messages if re.search(r"Uncaught|Failed to load|Refused|net::ERR|Error", text)]


def faults_of(address: str, page: str, pictures: pathlib.Path) -> list[str]:
    """Opens a page at each width, and returns what is wrong with it."""
    faults = []
    for kind, (width, height) in WIDTHS.items():
        picture = pictures / f"{page.replace('/', '_')}_{kind}.png"
        _, log = chromium(f"--window-size={width},{height}", f"--screenshot={picture}", f"{address}/{page}.html")
        faults += [f"{page}, {kind}: {text}" for text in errors_in(log)]
        if not picture.exists():
            faults.append(f"{page}, {kind}: no picture")
    return faults


def external_parts(site: pathlib.Path) -> list[str]:
    """Returns the scripts, styles and images of the site's pages that another host serves."""
    found = set()
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        found |= set(re.findall(r"""<(?:script|img|iframe)[^>]* src="(https?:[^"]+)""", text))
        found |= set(re.findall(r"""<link[^>]* rel="(?:stylesheet|preload|icon)"[^>]* href="(https?:[^"]+)""", text))
    return [f"{address} comes from another host" for address in sorted(found)]


def finds(address: str, term: str) -> bool:
    """Returns whether the site's search finds a term."""
    dom, _ = chromium("--dump-dom", f"{address}/search.html?q={term.replace(' ', '+')}")
    found = re.search(r"found (\d+) page|found one page", dom, re.I)
    return found is not None and found[1] != "0"


@click.command(help=__doc__)
@click.argument("site", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path))
@click.option("--pictures", type=click.Path(path_type=pathlib.Path), default=None, help="Where pictures are kept.")
def main(site: pathlib.Path, pictures: pathlib.Path | None) -> None:
    """Tests the site, and exits with 1 if anything is wrong."""
    pictures = pictures or pathlib.Path(tempfile.mkdtemp(prefix="site_pictures_"))
    pictures.mkdir(parents=True, exist_ok=True)
    with served(site) as address:
        faults = [fault for page in PAGES for fault in faults_of(address, page, pictures)]
        missed = [term for term in TERMS if not finds(address, term)]
    faults += external_parts(site)
    faults += [f"the search does not find {term!r}" for term in missed]
    for fault in faults:
        click.echo(fault)
    click.echo(f"{len(PAGES)} pages at {len(WIDTHS)} widths, {len(TERMS)} searches: {len(faults)} faults; {pictures}")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
