"""The documents are built without a warning, and what was built leads nowhere but into itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.helpers import goes_along

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """One page: what it can be entered at, what it links to, what a browser fetches with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                (self.links if tag == "a" else self.fetched).append(value)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-E", "-b", "html",
         "-d", str(at / "doctrees"), str(ROOT / "docs"), str(at / "html")],
        cwd=at,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=goes_along(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return at / "html"


@pytest.fixture(scope="module")
def read(built: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(built.rglob("*.html"))}


def test_every_document_is_a_page(built: Path) -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        name = document.relative_to(ROOT / "docs").with_suffix(".html")
        assert (built / name).is_file(), name


def test_what_the_glossary_names_is_in_the_code() -> None:
    text = (ROOT / "docs" / "design" / "glossary.md").read_text()
    rows = re.findall(r"^\| (.*?) \| .* \| `(gpulaunch\.\S+)` \|$", text, re.MULTILINE)
    assert len(rows) > 15
    for name, where in rows:
        module = import_module(where)
        assert not name.startswith("`") or hasattr(module, name.strip("`")), f"{where}: {name}"


def test_links_within_the_documents_lead_somewhere(read: dict[Path, Page]) -> None:
    assert len(read) > 30
    assert list(dead(read)) == []


def dead(read: dict[Path, Page]) -> Iterator[str]:
    for path, page in read.items():
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            known = read[target].anchors if target in read else {anchor}
            if not target.is_file() or (anchor and anchor not in known):
                yield f"{path.name}: {link}"


def test_a_page_fetches_nothing_from_the_network(read: dict[Path, Page]) -> None:
    for path, page in read.items():
        for link in page.fetched:
            assert not urlsplit(link).netloc, f"{path.name}: {link}"


def test_options_in_the_text_keep_their_dashes(built: Path) -> None:
    assert "--slurm --partition=gpu" in (built / "reference" / "cli.html").read_text()
