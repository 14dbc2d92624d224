"""The documents' pictures of a report: a made-up night, in headless Chromium, light and dark.

python -m tests.report.picture        writes examples/report.png and examples/report-dark.png
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import timedelta, timezone
from pathlib import Path
from typing import Literal, TypeAlias

from playwright.sync_api import FloatRect, sync_playwright

from gpulaunch.observe.report.write import report
from tests.report import night
from tests.report.test_browser import FLAGS

EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH, HEIGHT = 1080, 1200
ZONE = timezone(timedelta(hours=-8))
"""The made-up run begins a quarter to midnight there."""
Scheme: TypeAlias = Literal["light", "dark"]
PICTURES: tuple[tuple[str, Scheme, str, str], ...] = (
    ("report.png", "light", "header", ".lane:nth-child(3)"),
    ("report-dark.png", "dark", "#timeline", ".lane:last-child"),
)
"""File, colours, and from which part of the page to which."""


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        path = Path(scratch) / "gpulaunch-runs" / "nanobodies-20261119-234215"
        run = night.write(path)
        text = report(run, "failed", 0.0, zone=ZONE).replace(str(path), "gpulaunch-runs/latest")
        run.report.write_text(text)
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS.split())
        for name, scheme, first, last in PICTURES:
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme
            )
            page.goto(run.report.as_uri())
            page.wait_for_selector("html[data-drawn]", state="attached")
            top, bottom = (page.locator(each).bounding_box() for each in (first, last))
            assert top
            assert bottom
            height = bottom["y"] + bottom["height"] - top["y"]
            clip: FloatRect = {"x": 0, "y": top["y"], "width": WIDTH, "height": height}
            page.screenshot(path=EXAMPLES / name, full_page=True, clip=clip)
        browser.close()


if __name__ == "__main__":
    main()
