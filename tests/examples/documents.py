"""The code in our documents: every block and every command in the text, with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt

from tests.docs.reference import FOLDER, pages
from tests.examples.helpers import ROOT

GENERATED = frozenset(FOLDER / name for name in pages())
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if path not in GENERATED)
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "examples/device-errors/README.md",
    *(str(path.relative_to(ROOT)) for path in DOCS),
)
"""All but the pages made from the code: their examples are tried where the code has them, in
tests/jobfile/test_schema.py and `test_the_examples_of_a_commands_help_are_understood`."""
_COMMAND = re.compile(r"gpulaunch (?!explain:)[a-z-]")


@dataclass(frozen=True)
class Block:
    """`kind` is what the fence says, `shell` for indented commands, `text` for anything else."""

    document: str
    line: int
    kind: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def first(self) -> str:
        return self.text.split("\n")[0].strip()


def blocks() -> Iterator[Block]:
    """Fenced and indented blocks, in the order of the documents."""
    for document in DOCUMENTS:
        for token in MarkdownIt().parse((ROOT / document).read_text()):
            line = (token.map or [0])[0] + 1
            if token.type == "fence" and token.info.startswith("{"):
                continue  # a directive of the documents' generator
            if token.type == "fence":
                kind = {"sh": "shell"}.get(token.info, token.info)
                yield Block(document, line, kind, token.content)
            elif token.type == "code_block":
                yield Block(document, line, "shell", token.content)


def commands() -> Iterator[Block]:
    """Command lines of ours within the text: `gpulaunch report [RUN]`."""
    for document in DOCUMENTS:
        for token in MarkdownIt().enable("table").parse((ROOT / document).read_text()):
            for child in token.children or ():
                text = " ".join(child.content.split())
                if child.type == "code_inline" and _COMMAND.match(text):
                    yield Block(document, (token.map or [0])[0] + 1, "shell", text)
