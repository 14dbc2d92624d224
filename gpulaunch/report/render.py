"""The page as HTML. Owns the template's surroundings; looks at nothing of the run itself.

One file without a network: the plotting library, the script and the style stand in it, and a
content security policy lets nothing else run, whatever a log or a job's name may hold.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from datetime import timezone
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulaunch import __version__
from gpulaunch.digest import words
from gpulaunch.report.model import Page
from gpulaunch.report.wording import percent
from gpulaunch.text import clock, size

if TYPE_CHECKING:
    from jinja2 import Template

ASSETS = Path(__file__).with_name("assets")


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
    from jinja2.bccache import Bucket, FileSystemBytecodeCache

    class Compiled(FileSystemBytecodeCache):
        """The compiled template, beside this module's own bytecode, where that can be written."""

        def dump_bytecode(self, bucket: Bucket) -> None:
            if not sys.dont_write_bytecode:
                with suppress(OSError):
                    super().dump_bytecode(bucket)

    around = Environment(
        bytecode_cache=Compiled(str(Path(__file__).with_name("__pycache__"))),
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    around.filters.update(
        duration=clock,
        size=size,
        count=words.count,
        percent=percent,
        moment=pass_context(lambda page, utc: words.local_time(utc, page["clock"])),
    )
    around.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return around.get_template("report.html.j2")


def prepare() -> None:
    """Load what `render` needs, before there is a page."""
    _template()


def render(page: Page, drawing: Mapping[str, Any], zone: timezone) -> str:
    """Return the report's HTML. `zone` is that of the times of day."""
    library = _text("uplot/uPlot.iife.min.js")
    script = _text("results.js") + _text("report.js")
    return _template().render(
        page=page,
        clock=zone,
        drawing=drawing,
        zone=zone.tzname(None),
        version=__version__,
        library=library,
        licence=_text("uplot/LICENSE"),
        script=script,
        style=_text("uplot/uPlot.min.css") + _text("report.css"),
        sources=" ".join(_source(text) for text in (library, script)),
    )


def _text(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """Return what a content security policy calls an inline script by."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
