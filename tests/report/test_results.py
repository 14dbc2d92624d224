"""The report's table of results, and the plot of two of its columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gpulaunch.core import facts as f
from gpulaunch.core.ledger import JobRecord
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.report.drawing import MAX_COLUMNS, drawn, results_of
from gpulaunch.observe.report.fold import Period
from gpulaunch.observe.report.write import report
from gpulaunch.observe.results.cells import Cell
from gpulaunch.observe.results.gathering import Gathered, JobValues, LeftValues
from gpulaunch.observe.results.table import OWN
from tests.helpers import wait_until
from tests.report import night
from tests.report.test_browser import browser, colour, opened
from tests.report.test_write import HOSTILE
from tests.views.history import History

__all__ = ["browser"]  # the fixture

LRS, OPTS = ("1e-4", "1e-3", "1e-2"), ("adam", "sgd")
JOBS = [(lr, opt, seed) for lr in LRS for opt in OPTS for seed in range(10)]
WHEN = Period("failed", 0.0, 1.0)


def sweep(path: Path) -> RunDir:
    """Sixty trainings, which left an accuracy each; every tenth failed and left NaN."""
    run = History(2).open(name="sweep")
    for lr, opt, seed in JOBS:
        params = {"lr": lr, "opt": opt, "seed": str(seed)}
        run.add(f.JobAdded(f"train-{lr}-{opt}-{seed}", 0, 1, "d", params))
    run.jobs("summary", cards=0).jobs("late", cards=0)
    for n, (lr, opt, seed) in enumerate(JOBS):
        name = f"train-{lr}-{opt}-{seed}"
        run.start(name, n % 2).pass_(10 + n)
        (run.fail if seed == 9 else run.succeed)(name)
    run.start("summary").pass_(1).succeed("summary").skip("late", "nothing to do")
    made = night.write(path, run.add(f.RunClosed("failed")), measured=False)
    for n, (lr, opt, seed) in enumerate(JOBS):
        out = made.outs / f"train-{lr}-{opt}-{seed}.1"
        out.mkdir(parents=True)
        left: dict[str, Any] = {"acc": n / 64, "loss": {"val": 1 / 3}, "note": HOSTILE}
        if seed == 9:
            left["acc"] = float("nan")
        (out / "metrics.json").write_text(json.dumps(left))
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = sweep(tmp_path_factory.mktemp("sweep") / "run")
    run.report.write_text(report(run, "failed", 0.0, zone=timezone.utc))
    return run.report


@pytest.fixture
def page(browser: Browser, made: Path) -> Iterator[Page]:
    with opened(browser, made) as page:
        yield page


def rows(*jobs: dict[str, Cell], **own: Cell) -> Gathered:
    known = {**dict.fromkeys(OWN), "state": "succeeded", **own}
    made = [
        JobValues(
            JobRecord(f.JobAdded(f"job-{n}", 0, 1, "d")),
            {**known, "name": f"job-{n}"},
            (("metrics.json", LeftValues(job)),),
        )
        for n, job in enumerate(jobs)
    ]
    return Gathered(made)


def columns(gathered: Gathered) -> dict[str, dict[str, Any]]:
    results = results_of(gathered, WHEN)
    assert results is not None
    told = drawn(results, {name: n for n, name in enumerate(results.names)})
    json.dumps(told, allow_nan=False)
    return {column["name"]: column for column in told["columns"]}


# ── What the page gets ──────────────────────────────────────────────────────────────────────────


def test_a_page_has_numbers_to_six_digits_and_each_text_once() -> None:
    long = "x" * 500
    told = columns(
        rows(
            {"acc": 1 / 3, "n": 3.0, "big": 1e300, "note": "a\x1b", "text": long},
            {"acc": float("nan"), "n": 0.5, "big": float("-inf"), "note": "b", "text": None},
            {"acc": 1e-9, "n": None, "big": 12345678.9, "note": "a\x1b", "text": "t"},
            seconds=1.2345678,
            peak_gpu_memory=3 << 30,
        )
    )
    assert list(told) == ["state", "acc", "n", "big", "note", "text", "seconds", "peak_gpu_memory"]
    assert told["acc"]["cells"] == [0.333333, "NaN", 1e-9]
    assert told["n"]["cells"] == [3, 0.5, None]
    assert told["big"]["cells"] == [1e300, "−∞", 12345700]
    assert (told["note"]["cells"], told["note"]["texts"]) == ([0, 1, 0], ["a\\x1b", "b"])
    assert [len(text) for text in told["text"]["texts"]] == [120, 1]
    assert told["seconds"]["cells"] == [1.23457] * 3
    assert told["peak_gpu_memory"]["cells"] == [3072] * 3


def test_what_a_page_has_no_room_for_is_said() -> None:
    wide: dict[str, Cell] = {f"k{n}": n for n in range(MAX_COLUMNS + 3)}
    gathered = rows(wide, *({"k0": n} for n in range(9_999)))
    gathered.unlooked, gathered.more = 6, 1
    results = results_of(gathered, WHEN)
    assert results is not None
    assert len(results.table.columns) == 1 + MAX_COLUMNS
    assert results.notes == (
        "The first 10,000 jobs; 1 more have no row here.",
        "3 more columns had no room here.",
        "Of 6 jobs no file was looked for: it took too long.",
    )


def test_a_run_without_values_of_its_own_has_no_such_part(tmp_path: Path) -> None:
    run = night.write(tmp_path / "run", measured=False)
    assert results_of(rows({}), WHEN) is None
    assert "What came out" not in report(run, "failed", 0.0)


def test_where_there_is_no_time_for_files_the_page_says_so(tmp_path: Path) -> None:
    text = report(sweep(tmp_path / "run"), "failed", 0.0, patience=0.0)
    assert "Of 62 jobs no file was looked for: it took too long." in text
    assert '"name":"lr"' in text
    assert '"name":"acc"' not in text


def test_another_file_can_be_named_and_a_broken_one_is_counted(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run")
    (run.outs / "summary.1").mkdir()
    (run.outs / "summary.1" / "best.csv").write_text("best,lr\n0.9,1e-3\n")
    (run.outs / "train-1e-4-adam-0.1" / "best.csv").write_text("")
    text = report(run, "failed", 0.0, files=["best.csv"])
    assert '"name":"best"' in text
    assert '"name":"best.lr"' in text
    assert "1 file could not be read." in text


def test_what_ran_when_a_run_was_cut_off_is_shown_so() -> None:
    run = History(1).open().jobs("a").start("a", 0)
    gathered = rows({"acc": 1})
    gathered.rows[0] = JobValues(
        run.ledger.jobs["a"], {**gathered.rows[0].own, "state": "running"}, gathered.rows[0].left
    )
    for state, shown in (("running", "running"), ("interrupted", "cut off")):
        results = results_of(gathered, Period(state, 0.0, 1.0))  # type: ignore[arg-type]
        assert results is not None
        assert results.table.column("state") == [shown]


# ── In Chromium ─────────────────────────────────────────────────────────────────────────────────


def first(page: Page) -> str:
    return page.locator("#r-list tbody tr").first.inner_text()


def head(page: Page, name: str) -> Any:
    return page.locator("#r-list thead").get_by_role("button", name=name, exact=True)


def points(page: Page) -> int:
    """How many dots and crosses can be told apart: reached one by one with the keyboard."""
    said: set[str] = set()
    plot = page.locator("#r-plot")
    plot.focus()
    page.keyboard.press("Home")
    while (text := page.locator("#r-said").inner_text()) not in said:
        said.add(text)
        page.keyboard.press("ArrowRight")
    return len(said)


def colours(page: Page) -> set[tuple[int, ...]]:
    found = page.evaluate(
        """() => {
            const drawn = document.querySelector("#r-plot canvas");
            const canvas = new OffscreenCanvas(drawn.width, drawn.height).getContext("2d");
            canvas.drawImage(drawn, 0, 0);
            const row = canvas.getImageData(0, 0, drawn.width, drawn.height).data;
            const found = new Set();
            for (let at = 0; at < row.length; at += 4) found.add(row.slice(at, at + 4).join());
            return [...found];
        }"""
    )
    return {tuple(map(int, each.split(","))) for each in found}


def test_the_table_is_sorted_by_any_column_and_what_is_unknown_comes_last(page: Page) -> None:
    expect(page.locator("#r-found")).to_have_text("62 jobs")
    heads = page.locator("#r-list thead th").all_inner_texts()
    assert heads[:7] == ["Job", "state", "lr", "opt", "seed", "acc", "loss.val"]
    assert first(page).split("\t")[:7] == [
        "train-1e-4-adam-0", "✓ succeeded", "0.0001", "adam", "0", "0", "0.333333"
    ]  # fmt: skip
    head(page, "acc").click()
    assert "train-1e-4-adam-0" in first(page)
    head(page, "acc").click()
    assert "train-1e-2-sgd-8" in first(page)
    expect(page.locator("#r-list [aria-sort=descending]")).to_have_text("acc")
    page.locator("#r-pager").get_by_role("button", name="On").click()
    expect(page.locator("#r-where")).to_have_text("51 to 62 of 62")
    lines = page.locator("#r-list tbody tr").all_inner_texts()
    assert [line.split("\t")[5] for line in lines[-8:]] == ["NaN"] * 6 + ["–"] * 2
    head(page, "Job").click()
    assert "late" in first(page)
    assert page.locator("#r-list tbody tr").first.get_by_role("button").count() == 0


def test_what_is_searched_for_is_in_the_table_and_in_the_plot(page: Page) -> None:
    expect(page.locator("#r-plotted")).to_have_text("8 jobs have no place on these axes")
    page.get_by_label("Find").first.fill("sgd-3")
    expect(page.locator("#r-found")).to_have_text("3 of 62 jobs")
    expect(page.locator("#r-list tbody tr")).to_have_count(3)
    assert points(page) == 3
    page.locator("#r-list tbody button").first.click()
    expect(page.locator("#d-name")).to_have_text("train-1e-4-sgd-3")
    expect(page.locator("#d-state")).to_have_text("✓ succeeded")


def test_two_columns_are_plotted_with_the_keyboard_and_the_mouse(page: Page) -> None:
    plot = page.locator("#r-plot")
    assert page.locator("#r-y option:checked").inner_text() == "acc"
    assert page.locator("#r-x option:checked").inner_text() == "lr"
    expect(page.get_by_label("logarithmic across")).to_be_checked()
    expect(plot).to_have_attribute("aria-label", "acc over lr: 54 jobs. Left and right arrow go"
                                   " from one to the next, Enter opens one.")  # fmt: skip
    plot.focus()
    page.keyboard.press("End")
    expect(page.locator("#r-said")).to_contain_text("train-1e-2-sgd-8: ✓ succeeded, acc: 0.90625")
    expect(page.locator("#tip")).to_contain_text("opt: sgd")
    page.keyboard.press("Enter")
    expect(page.locator("#d-name")).to_have_text("train-1e-2-sgd-8")
    page.keyboard.press("Escape")
    expect(plot).to_be_focused()
    page.locator("#r-y").select_option("seconds")
    expect(page.locator("#r-plotted")).to_have_text("2 jobs have no place on these axes")
    page.locator("#r-x").select_option("opt")
    expect(page.get_by_label("logarithmic across")).to_be_disabled()
    plot.scroll_into_view_if_needed()
    box = plot.locator(".u-over").bounding_box()
    assert box is not None
    whole = colours(page)
    assert colour(page, "bad") in whole, "what failed is a cross"
    # Of two texts, adam stands at a quarter of the width; its shortest took 10 s, the least of all.
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] * 0.9464)
    expect(page.locator("#tip")).to_contain_text("train-1e-4-adam-0")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#d-name")).to_have_text("train-1e-4-adam-0")


def test_a_logarithmic_axis_leaves_out_what_has_no_place_there(page: Page) -> None:
    expect(page.locator("#r-plotted")).to_have_text("8 jobs have no place on these axes")
    page.get_by_label("logarithmic upwards").check()
    expect(page.locator("#r-plotted")).to_have_text("9 jobs have no place on these axes")
    page.locator("#r-y").select_option("state")
    expect(page.locator("#r-plotted")).to_have_text("2 jobs have no place on these axes")


# Numbers beyond what the plotting library itself can have on an axis, or too near to each other.
ODD = {
    "stamp": [10**17, 10**17 + 16, 10**17 + 32],
    "second": [1_700_000_000, 1_700_000_020, 1_700_000_100],
    "evalue": [1e-180, 1e-90, 1.0],
    "huge": [1.7e308, -1.7e308, 1.0],
    "tiny": [5e-324, 1e-323, 0.0],
    "ratio": [1.0001, 1.0002, 1.0003],
    "same": [1e300 / 10] * 3,
    "none": [0, 0, 0],
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of sixty jobs with such numbers, and a text of thirty for each."""
    names = [f"j-{n}" for n in range(60)]
    history = History(1).open(name="odd").jobs(*names)
    for name in names:
        history.start(name, 0).pass_(1).succeed(name)
    path = tmp_path_factory.mktemp("odd") / "run"
    run = night.write(path, history.add(f.RunClosed("succeeded")), measured=False)
    for n, name in enumerate(names):
        out = run.outs / f"{name}.1"
        out.mkdir(parents=True)
        left = {key: cells[n] for key, cells in ODD.items() if n < 3} if n < 3 else {}
        (out / "metrics.json").write_text(json.dumps({"target": f"protein-{n % 30:02}-a", **left}))
    run.report.write_text(report(run, "succeeded", 0.0, zone=timezone.utc))
    return run.report


def choose(page: Page, y: str, x: str, log: str = "") -> list[dict[str, Any]]:
    """The texts that are drawn for two columns: where they begin, their width, their turn."""
    page.evaluate(
        """() => {
            if (window.drawn) return;
            window.drawn = [];
            const draw = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
                const at = this.getTransform().transformPoint(new DOMPoint(x, y));
                const turned = this.getTransform().b !== 0, width = this.measureText(text).width;
                drawn.push({ text, x: at.x, y: at.y, width, turned });
                return draw.call(this, text, x, y, ...rest);
            };
        }"""
    )
    for which, column in (("y", y), ("x", x)):
        page.locator(f"#r-{which}").select_option(column)
        box = page.locator(f"#r-{which}-log")
        if box.is_enabled():
            box.set_checked(which in log)
    page.evaluate("drawn.length = 0")
    page.locator("#r-x").dispatch_event("change")
    drawn: list[dict[str, Any]] = page.evaluate("drawn")
    return [each for each in drawn if each["text"] not in (x, y, "")]


@pytest.mark.parametrize(
    ("column", "log", "count", "texts"),
    [
        ("stamp", "", 3, []),
        ("stamp", "x", 3, []),
        ("second", "", 3, ["1700000000", "1700000020", "1700000100"]),
        ("evalue", "x", 3, ["1e-100", "1"]),
        ("evalue", "", 3, ["0", "0.2", "1"]),
        ("huge", "", 1, ["1"]),
        ("tiny", "", 3, ["0"]),
        ("tiny", "x", 2, []),
        ("ratio", "x", 3, ["1.0001", "1.0002", "1.0003"]),
        ("same", "", 3, ["1.00e+299"]),
        ("none", "", 3, ["-1", "0", "1"]),
    ],
)
def test_an_axis_has_any_numbers_and_says_them_as_they_are(
    browser: Browser, odd: Path, column: str, log: str, count: int, texts: list[str]
) -> None:
    with opened(browser, odd) as page:
        for y, x in ((column, "seconds"), ("seconds", column)):
            drawn = choose(page, y, x, log if x == column else log.replace("x", "y"))
            said = [each["text"] for each in drawn if not each["text"].endswith(" s")]
            assert set(texts) <= set(said)
            assert len(said) == len(set(said)), "no two places are called the same"
            assert points(page) == count


def test_texts_below_a_plot_do_not_run_into_each_other(browser: Browser, odd: Path) -> None:
    with opened(browser, odd) as page:
        few = [each for each in choose(page, "state", "ratio") if each["text"][0] == "1"]
        ends = [(each["x"] - each["width"] / 2, each["x"] + each["width"] / 2) for each in few]
        assert len(few) >= 3
        assert all(end < start for (_, end), (start, _) in pairwise(ends))
        assert ends[-1][1] <= page.evaluate("document.querySelector('#r-plot canvas').width")
        many = [each for each in choose(page, "seconds", "target") if each["turned"]]
        assert [each["text"] for each in many] == [f"protein-{n:02}-a" for n in range(30)]
        assert all(b["x"] - a["x"] >= 12 for a, b in pairwise(many))
        page.set_viewport_size({"width": 400, "height": 800})
        narrow = "document.querySelector('#r-plot .uplot').clientWidth < 400"
        wait_until(lambda: page.evaluate(narrow), what="the drawing follows")
        assert {"1e-100", "1"} <= {each["text"] for each in choose(page, "state", "evalue", "x")}
        some = [each for each in choose(page, "seconds", "target") if each["turned"]]
        assert 5 <= len(some) < 30
        assert all(b["x"] - a["x"] >= 12 for a, b in pairwise(some))


def test_the_plot_is_dark_where_that_is_wanted_and_fits_a_narrow_screen(page: Page) -> None:
    light = colours(page)
    page.emulate_media(color_scheme="dark")
    wait_until(lambda: colours(page) != light, what="the drawing follows")
    assert colour(page, "line") in colours(page)
    page.set_viewport_size({"width": 400, "height": 800})
    narrow = "document.querySelector('#r-plot .uplot').clientWidth < 400"
    wait_until(lambda: page.evaluate(narrow), what="the drawing follows")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_texts_in_the_table_are_text_and_nothing_else(page: Page) -> None:
    expect(page.locator("#r-list tbody tr").first).to_contain_text(HOSTILE)
    page.locator("#r-plot").focus()
    page.keyboard.press("Home")
    expect(page.locator("#tip")).to_contain_text("note")
    assert page.locator("img").count() == 0


def test_ten_thousand_jobs_are_sorted_and_plotted(browser: Browser, tmp_path: Path) -> None:
    count = 10_000
    run = History(8).open(name="many")
    for n in range(count):
        run.add(f.JobAdded(f"fit-{n}", 0, 1, "d", {"lr": LRS[n % 3], "seed": str(n)}))
    for n in range(count):
        run.start(f"fit-{n}", n % 8).pass_(5)
        (run.fail if n % 31 == 0 else run.succeed)(f"fit-{n}")
    made = night.write(tmp_path / "run", run.add(f.RunClosed("failed")), measured=False)
    for n in range(count):
        out = made.outs / f"fit-{n}.1"
        out.mkdir(parents=True)
        (out / "metrics.json").write_text(json.dumps({"acc": (n * 7919 % count) / count}))
    text = report(made, "failed", 0.0, zone=timezone.utc)
    assert len(text.encode()) < 2_300_000
    path = tmp_path / "report.html"
    path.write_text(text)
    with opened(browser, path) as page:
        expect(page.locator("#r-found")).to_have_text("10,000 jobs")
        head(page, "acc").click()
        head(page, "acc").click()
        expect(page.locator("#r-list tbody tr").first).to_contain_text("0.9999")
        page.locator("#r-x").select_option("seed")
        page.locator("#r-plot").focus()
        page.keyboard.press("End")
        expect(page.locator("#r-said")).to_contain_text("fit-9999: ✓ succeeded")
