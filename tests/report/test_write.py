"""A run's directory becomes one file: whole or not at all, from whatever the run left."""

from __future__ import annotations

import errno
import json
import re
import sys
from base64 import b64decode
from datetime import timezone
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2.bccache import FileSystemBytecodeCache

from gpulaunch.base.errors import UsageError
from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId
from gpulaunch.journal.codec import encode
from gpulaunch.journal.read import Fault
from gpulaunch.observe.report import write as module
from gpulaunch.observe.report.write import ASSETS, report, write
from tests.report import night
from tests.report.support import folded
from tests.views.history import History

HOSTILE = "<img src=x onerror=alert(1)>"


class Parsed(HTMLParser):
    """What a page asks a browser for, what it runs, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.said = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif not self.inside:
            self.said += data

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = night.write(tmp_path_factory.mktemp("night") / "run")
    return report(run, "failed", 0.0, zone=timezone.utc)


def hostile(path: Path) -> str:
    run = History(1).open(name=HOSTILE).jobs(HOSTILE, "plain").start(HOSTILE, 0).pass_(5)
    run.fail(HOSTILE).add(f.Noted(HOSTILE)).skip("plain", HOSTILE)
    made = night.write(path, run.add(f.RunClosed("failed", Quoted(HOSTILE), 1)), measured=False)
    log = made.logs / f"{HOSTILE}.1.log"
    log.write_text("</script><script>alert(2)</script>\n<!-- <b>\x1b[31m {{ 7 * 7 }}\n\u2028")
    return report(made, "failed", 0.0, zone=timezone.utc)


def test_the_file_asks_for_nothing_and_runs_only_its_own_two_scripts(page: str) -> None:
    parsed = Parsed(page)
    assert not parsed.attributes("src")
    links = {link for link in parsed.attributes("href") if not link.startswith("#")}
    assert all(link == "data:," or link.startswith("logs/") for link in links), links
    policy = next(c for c in parsed.attributes("content") if "default-src" in c)
    assert "default-src 'none'" in policy
    allowed = {b64decode(each) for each in re.findall(r"'sha256-([^']+)'", policy)}
    data, *scripts = parsed.scripts
    assert {sha256(script.encode()).digest() for script in scripts} == allowed
    assert json.loads(data)["names"][0] == "fold-00"


def test_nothing_of_the_runs_is_ever_markup(tmp_path: Path) -> None:
    parsed = Parsed(hostile(tmp_path / "run"))
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert len(parsed.scripts) == 3, "the data, the library, the page's own"
    assert parsed.said.count(HOSTILE) >= 5
    assert "</script><script>alert(2)</script>" in parsed.said
    assert "{{ 7 * 7 }}" in parsed.said
    data = json.loads(parsed.scripts[0])
    assert data["tails"]["0"][0] == "</script><script>alert(2)</script>"
    assert not any(char in parsed.scripts[0] for char in "<>&")


def test_the_log_of_any_name_is_a_link_away(tmp_path: Path) -> None:
    page = Parsed(hostile(tmp_path / "a b" / "run"))
    assert "logs/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E.1.log" in page.attributes("href")
    run = night.write(tmp_path / "a b" / "run", measured=False)
    elsewhere = report(run, "failed", 0.0, beside=tmp_path / "c")
    assert any(
        link.startswith("../a%20b/run/logs/") for link in Parsed(elsewhere).attributes("href")
    )


def test_the_night_is_told_in_full(page: str) -> None:
    said = " ".join(Parsed(re.sub("<(?=[td])", " <", page)).said.split())
    for part in (
        "nanobodies ✕ failed",
        "4 failed, 7 skipped. The 4 cards had jobs",
        "out of GPU memory gpu_oom · 2 failed · 1 succeeded when run again",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.25 GiB.",
        "fold-41 GPU 3 1:00:00 ran longer than its timeout of 1 h",
        "set aside it was unfit, or jobs failed on it that succeed elsewhere",
        "would fit",
        "Xid 79: the card has fallen off the bus",
        "Git commit 3b5d9f1c6f0e4c5f9a0a4b6a1f7f6d2c8e9b0a1d",
        "gpulaunch 0.1.0 (9f8e7d6)",
        "NVIDIA driver 570.86",
    ):
        assert part in said, part


def test_a_run_without_samples_manifest_or_logs_is_told_as_well(tmp_path: Path) -> None:
    run = History(2, simulated=True).open().jobs("a").start("a", 0).pass_(60).succeed("a")
    made = night.write(tmp_path / "run", run, measured=False)
    made.manifest.unlink()
    for log in made.logs.iterdir():
        log.unlink()
    parsed = Parsed(report(made, "interrupted", 0.0))
    assert "simulated cards" in parsed.said
    assert "Simulated cards" in parsed.said
    data = json.loads(parsed.scripts[0])
    assert not data["tails"]
    assert not any("curve" in lane for lane in data["lanes"])
    assert "Utilisation" not in parsed.said


def test_a_job_whose_name_leads_elsewhere_has_no_log(tmp_path: Path) -> None:
    made = night.write(tmp_path / "run", History(1).open().jobs("a"), measured=False)
    run = History(1).open().jobs("../../secret").start("../../secret", 0).fail("../../secret")
    (tmp_path / "secret.1.log").write_text("not yours")
    lines = (encode(number, *dated) for number, dated in enumerate(run.facts, 1))
    made.events.write_bytes(b"".join(lines))
    assert "not yours" not in report(made, "failed", 0.0)


def test_a_torn_last_line_is_left_out_and_damage_costs_its_own_line(
    tmp_path: Path,
) -> None:
    run = night.write(tmp_path / "run", measured=False)
    whole = run.events.read_bytes()
    run.events.write_bytes(whole[:-40])
    assert "≠" in report(run, "interrupted", 0.0)
    run.events.write_bytes(whole.replace(b"fold-03", b"fold-xx", 1))
    faults: list[Fault] = []
    assert "fold-04" in report(run, "failed", 0.0, faults=faults)
    assert len(faults) == 1


def test_the_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    run = night.write(tmp_path / "run", measured=False)
    assert write(run) == run.report
    assert run.report.stat().st_mode & 0o777 == 0o600
    before = run.report.read_bytes()
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"taken cannot be written: "):
        write(run, tmp_path / "taken")
    with pytest.raises(UsageError, match=r"nowhere/x\.html cannot be written: No such file"):
        write(run, tmp_path / "nowhere" / "x.html")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "taken"]
    assert run.report.read_bytes() == before


def test_the_library_is_the_version_that_its_note_says_with_its_licence() -> None:
    note = (ASSETS / "uplot/README.md").read_text()
    version = re.match(r"uPlot (\S+) ", note)
    assert version
    head = (ASSETS / "uplot/uPlot.iife.min.js").read_text()[:200]
    assert f"(v{version[1]})" in head
    assert "MIT" in (ASSETS / "uplot/LICENSE").read_text()


def test_ends_of_logs_are_bounded_failures_first_then_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = History(1).open().jobs("short", "long", "bad", "empty")
    for name, seconds in (("short", 1), ("long", 50), ("bad", 2), ("empty", 99)):
        run.start(name, 0).pass_(seconds)
        (run.fail if name == "bad" else run.succeed)(name)
    history, when = folded(run)
    asked: list[tuple[str, int]] = []

    def read(who: AttemptId, lines: int, window: int) -> list[str]:
        asked.append((who.job, window))
        return [] if who.job == "empty" else [who.job, "x" * 30]

    found = module.tails(history.attempts(), when, read)
    assert [name for name, _ in asked] == ["bad", "empty", "long", "short"]
    assert asked[0][1] == module.FAILED_WINDOW > asked[1][1]
    assert {who.job for who in found} == {"bad", "long", "short"}
    monkeypatch.setattr(module, "CHARACTERS", 70)
    assert {who.job for who in module.tails(history.attempts(), when, read)} == {"bad", "long"}
    monkeypatch.setattr(module, "LOGS", 1)
    assert {who.job for who in module.tails(history.attempts(), when, read)} == {"bad"}


def test_the_template_need_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, bucket: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(FileSystemBytecodeCache, "load_bytecode", lambda self, bucket: None)
    monkeypatch.setattr(FileSystemBytecodeCache, "dump_bytecode", full)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    module._template.cache_clear()
    assert module._template().name == "report.html.j2"
