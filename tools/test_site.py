#!/usr/bin/env python
"""Opens the built documentation site in headless Chromium: console messages, layout, search, pictures of pages.

    make docs-test
    python tools/test_site.py build/docs/html --pictures site_pictures

Chromium resolves no host but localhost, so a page that needs anything from the network fails. The tool fails if a page
logs an error or has a part that another host serves, if something on it is cut off or sticks out of the window, or if
the search does not find one of ten terms.
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
    *("coming_from_tensorflow", "frameworks", "guides/multi_worker", "guides/elastic", "installation"),
    *("errors", "reference/variables"),
)
WIDTHS = {"desktop": 1300, "phone": 390}
HEIGHT = 1600
SMALLEST_WINDOW = 500  # Of Chromium. A narrower page is shown in a frame.
# Shows a page in a frame of a given width, and logs what does not fit: elements that stick out of the window, and those
# that hide a part of their content without a scroll bar.
FRAME = """<!doctype html><body style="margin: 0; background: #999">
<iframe style="width: WIDTHpx; height: HEIGHTpx; border: 0; background: #fff" src="/PAGE"></iframe>
<script>
document.querySelector("iframe").addEventListener("load", (event) => {
  const page = event.target.contentDocument, width = page.documentElement.clientWidth;
  const overflow = (one) => getComputedStyle(one).overflowX;
  const scrolls = (one) => one && (["auto", "scroll"].includes(overflow(one)) || scrolls(one.parentElement));
  const shown = (one) => one.offsetParent !== null && getComputedStyle(one).visibility !== "hidden";
  const name = (one) => `${one.tagName} "${(one.innerText || one.alt || "").trim().slice(0, 40)}"`;
  for (const one of page.querySelectorAll("article *")) {
    if (!(one instanceof event.target.contentWindow.HTMLElement) || !shown(one)) continue;
    if (one.getBoundingClientRect().right > width + 1 && !scrolls(one))
      console.error(`LayoutError: ${name(one)} sticks out of the window`);
    if (overflow(one) === "hidden" && one.clientWidth > 2 && one.scrollWidth > one.clientWidth + 1)
      console.error(`LayoutError: ${name(one)} is cut off`);
  }
  for (const one of page.images)
    if (!one.complete || !one.naturalWidth) console.error(`LayoutError: ${name(one)} is missing`);
});
</script>"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        """Serves the files of the site, and frames of a width: ``/frame/390/tutorials/quickstart.html``."""
        frame = re.fullmatch(r"/frame/(\d+)/(.*)", self.path)
        if frame is None:
            return super().do_GET()
        page = FRAME.replace("WIDTH", frame[1]).replace("HEIGHT", str(HEIGHT)).replace("PAGE", frame[2]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)
        return None

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
            timeout=120,
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
    for kind, width in WIDTHS.items():
        picture = pictures / f"{page.replace('/', '_')}_{kind}.png"
        window = f"--window-size={max(width, SMALLEST_WINDOW)},{HEIGHT}"
        _, log = chromium(window, f"--screenshot={picture}", f"{address}/frame/{width}/{page}.html")
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
