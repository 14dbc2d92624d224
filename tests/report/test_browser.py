"""The report in headless Chromium. Skipped where there is none, unless
GPULAUNCH_REQUIRE_CHROMIUM=1 says that there must be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timezone
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from gpulaunch.core import facts as f
from gpulaunch.observe.report.write import report
from tests.helpers import wait_until
from tests.report import night
from tests.report.test_write import HOSTILE, hostile
from tests.views.history import History

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
)
PATIENCE = 60_000.0
"""Milliseconds."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        if os.environ.get("GPULAUNCH_REQUIRE_CHROMIUM") == "1":
            pytest.fail("GPULAUNCH_REQUIRE_CHROMIUM=1, and there is no chromium on the PATH")
        pytest.skip("needs Chromium: apt-get install chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=FLAGS.split(), timeout=2 * PATIENCE
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = night.write(tmp_path_factory.mktemp("night") / "run")
    run.report.write_text(report(run, "failed", 0.0, zone=timezone.utc))
    return run.report


@contextmanager
def opened(browser: Browser, path: Path) -> Iterator[Page]:
    """The page, drawn. It must say nothing on the console and ask for nothing but itself."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000}, reduced_motion="reduce")
    page.set_default_timeout(PATIENCE)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        yield page
    finally:
        page.close()
    assert said == []
    assert asked == [path.as_uri()]


@pytest.fixture
def page(browser: Browser, made: Path) -> Iterator[Page]:
    with opened(browser, made) as page:
        yield page


def lanes(page: Page) -> Locator:
    return page.locator("#lanes [role=application]")


def where(page: Page, lane: int, name: str) -> tuple[float, float]:
    """The middle of a job's bar on the screen, while the whole run is shown."""
    share = page.evaluate(
        """([lane, name]) => {
            const D = JSON.parse(document.getElementById("data").textContent), A = D.attempts;
            const i = D.lanes[lane].bars.find((i) => D.names[A.job[i]] === name);
            return (A.start[i] + A.end[i]) / 2 / D.length;
        }""",
        [lane, name],
    )
    lanes(page).nth(lane).scroll_into_view_if_needed()
    box = lanes(page).nth(lane).bounding_box()
    assert box is not None
    return box["x"] + share * box["width"], box["y"] + 12


def colours(page: Page, lane: int) -> set[tuple[int, ...]]:
    """Those on a lane's canvas."""
    found = page.evaluate(
        """(lane) => {
            const drawn = document.querySelectorAll("#lanes [role=application]")[lane]
                .querySelector("canvas");
            const canvas = new OffscreenCanvas(drawn.width, 1).getContext("2d");
            canvas.drawImage(drawn, 0, -(drawn.height >> 1));
            const row = canvas.getImageData(0, 0, drawn.width, 1).data;
            const found = new Set();
            for (let at = 0; at < row.length; at += 4) found.add(row.slice(at, at + 4).join());
            return [...found];
        }""",
        lane,
    )
    return {tuple(map(int, each.split(","))) for each in found}


def colour(page: Page, name: str) -> tuple[int, ...]:
    """One of the style's own."""
    style = "getComputedStyle(document.documentElement)"
    value = str(page.evaluate(f"{style}.getPropertyValue('--{name}')")).strip()
    return (*bytes.fromhex(value.removeprefix("#")), 255)


def test_it_opens_with_a_lane_for_each_card_and_one_for_the_rest(page: Page) -> None:
    expect(page.locator("h1")).to_contain_text("nanobodies")
    names = [text.splitlines()[0] for text in page.locator(".lane .name").all_inner_texts()]
    assert names == ["GPU 0", "GPU 1", "GPU 2", "GPU 3", "No card"]
    folds, relaxes, failed = (colour(page, name) for name in ("g0", "g2", "bad"))
    assert all(folds in colours(page, lane) for lane in range(4))
    assert relaxes in colours(page, 4)
    assert all(failed in colours(page, lane) for lane in range(4))
    expect(page.locator(".lane canvas")).to_have_count(1 + 5 + 4)  # axis, lanes, curves
    expect(page.locator("#legend")).to_contain_text("fold-*")


def test_pointing_at_a_bar_tells_its_facts_and_a_click_opens_its_log(page: Page) -> None:
    x, y = where(page, 3, "fold-41")
    page.mouse.move(x, y)
    tip = page.locator("#tip")
    for said in ("fold-41", "✕ ran longer than its timeout of 1 h", "GPU 3", "1:00:00", "GiB"):
        expect(tip).to_contain_text(said)
    page.mouse.click(x, y)
    detail = page.locator("#detail")
    expect(detail).to_be_visible()
    expect(page.locator("#d-log")).to_contain_text("loading weights for fold-41")
    expect(page.locator("#d-link")).to_have_attribute("href", "logs/fold-41.1.log")
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()
    x, _ = where(page, 1, "fold-01")
    box = lanes(page).nth(1).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 12)
    expect(tip).to_contain_text("GPU 1: set aside")
    page.mouse.move(x, box["y"] + 60)
    expect(tip).to_contain_text("Utilisation")


def test_everything_is_done_with_the_keyboard_as_well(page: Page) -> None:
    lane = lanes(page).nth(0)
    lane.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#said")).to_contain_text("fold-00: succeeded, card GPU 0")
    page.keyboard.press("End")
    last = page.locator("#said").text_content()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#said")).not_to_have_text(last or "")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("#d-name")).to_have_text("fold-00")
    page.keyboard.press("Escape")
    expect(lane).to_be_focused()
    page.keyboard.press("Tab")
    expect(lanes(page).nth(1)).to_be_focused()


def test_a_drag_and_the_buttons_look_closer_in_all_lanes_at_once(page: Page) -> None:
    def axis() -> bytes:
        return page.locator(".axis .plots").screenshot()

    whole = axis()
    x, y = where(page, 0, "fold-00")
    page.mouse.move(x + 100, y)
    page.mouse.down()
    page.mouse.move(x + 200, y, steps=4)
    page.mouse.up()
    page.mouse.move(x, 5)
    closer = axis()
    assert closer != whole
    expect(page.locator("#detail")).to_be_hidden()
    page.get_by_role("button", name="Closer").click()
    assert axis() != closer
    page.get_by_role("button", name="Whole run").click()
    page.mouse.move(x, 5)
    lanes(page).nth(0).focus()
    page.keyboard.press("+")
    assert axis() != whole
    page.keyboard.press("0")
    assert axis() == whole


def test_it_is_dark_where_that_is_wanted_and_light_on_paper(page: Page) -> None:
    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = paper(), colours(page, 0)
    page.emulate_media(color_scheme="dark")
    dark_wanted = "matchMedia('(prefers-color-scheme: dark)').matches"
    wait_until(lambda: page.evaluate(dark_wanted), what="the page knows")
    wait_until(lambda: colours(page, 0) != light[1], what="the drawing follows")
    dark = paper(), colours(page, 0)
    assert dark[0] != light[0]
    page.emulate_media(media="print")
    assert paper() == "rgb(255, 255, 255)"

    def is_light() -> bool:
        now = colours(page, 0)
        return now & light[1] > now & dark[1]

    wait_until(is_light, what="drawn for paper")
    expect(page.locator(".zoom")).to_be_hidden()
    places = (
        "[...document.querySelectorAll('.lane .plots')].map((e) => e.getBoundingClientRect().x)"
    )
    assert len(set(page.evaluate(places))) == 1, "the axis stays over the lanes"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_nothing_is_wider_than_a_narrow_screen(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    narrow = "document.querySelector('.lane .uplot').clientWidth < 400"
    wait_until(lambda: page.evaluate(narrow), what="the drawing follows")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_all_attempts_are_a_table_that_is_searched_and_sorted(page: Page) -> None:
    rows = page.locator("#list tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="On", exact=True).click()
    expect(page.locator("#where")).to_contain_text("51 to 100")
    page.get_by_label("Ended").select_option("failed")
    expect(rows).to_have_count(8)
    page.get_by_label("Find").fill("fold-41")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("GPU 3")
    page.get_by_label("Find").fill("")
    page.get_by_label("Ended").select_option("")
    time = page.locator("#list [data-by=length]")
    time.click()
    time.click()
    expect(rows.first).to_contain_text("train-ranker, attempt 2")
    rows.first.get_by_role("button").click()
    expect(page.locator("#d-state")).to_have_text("✓ succeeded")


def test_hostile_names_and_logs_are_text_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(hostile(tmp_path / "run"))
    with opened(browser, path) as page:
        expect(page.locator("h1")).to_contain_text(HOSTILE)
        page.locator("#list tbody button").click()
        expect(page.locator("#d-name")).to_have_text(HOSTILE)
        expect(page.locator("#d-log")).to_contain_text("</script><script>alert(2)</script>")
        assert page.locator("img").count() == 0


def test_ten_thousand_attempts_open(browser: Browser, tmp_path: Path) -> None:
    count = 10_000
    run = History(8).open(name="many").jobs(*(f"fold-{n:05}" for n in range(count)))
    for n in range(count):
        if n >= 8:
            (run.fail if n % 31 == 0 else run.succeed)(f"fold-{n - 8:05}")
        run.start(f"fold-{n:05}", n % 8).pass_(5)
    made = night.write(tmp_path / "run", run.add(f.RunClosed("failed")), measured=False)
    text = report(made, "failed", 0.0, zone=timezone.utc)
    assert len(text.encode()) < 2_000_000
    path = tmp_path / "report.html"
    path.write_text(text)
    with opened(browser, path) as page:
        expect(page.locator("#found")).to_have_text("10,000 attempts")
        assert colour(page, "bad") in colours(page, 7), "the thinnest bar is seen"
        page.get_by_label("Find").fill("fold-09876")
        expect(page.locator("#list tbody tr")).to_have_count(1)
