"""Whatever stands in the files of a run's directory, who reads them says a line, and goes on."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpulaunch.cli import main
from gpulaunch.core.facts import AttemptLaunched, Fact, JobAdded, WorkerGone, WorkerLeft
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.journal import codec
from gpulaunch.journal import read as reading
from gpulaunch.observe.metrics.model import AttemptSample, CardSample
from gpulaunch.observe.metrics.read import open_metrics
from gpulaunch.observe.metrics.store import Store, attempt_steps, card_steps
from tests.cli.launcher import Launcher
from tests.doors.spoilt import SEED, count, dumped, messages, spoilt
from tests.journal.facts import FACTS, opened

LIST = """
jobs:
  - {name: 'good-{{x}}', matrix: {x: [1, 2]}, run: 'echo "{}" > "$GPULAUNCH_OUT/metrics.json"'}
  - {name: bad, run: 'exit 3', retries: 1}
  - {name: need, run: 'true', needs: [bad]}
  - {name: free, run: 'test {{n}} = 2', gpus: 0, retries: 1, ladder: {n: [1, 2]}}
"""
LOOKS = (
    "status RUN",
    "status RUN --json",
    "status -r RUN good-1",
    "status -r RUN --all --failed",
    "results RUN --csv",
    "report RUN",
    "logs -r RUN",
    "clean RUN --dry-run",
    "clean --runs RUN --dry-run --json",
    "check jobs.yaml --simulate 1",
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that is over, in a directory with its job file."""
    launcher = Launcher(tmp_path_factory.mktemp("real"))
    launcher.file("jobs.yaml", LIST)
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--quiet", "--run-dir", "run")
    assert result.status == 1, result.err
    measure(launcher.path / "run" / "metrics.db")
    return launcher.path / "run"


def measure(path: Path) -> None:
    """Have samples of the run's card and of an attempt in the file."""
    with closing(Store(path)) as store:
        for at in (1.7e9, 1.7e9 + 1, 1.7e9 + 2):
            attempt, card = (
                AttemptId("good-1", 1),
                CardSample("GPU-sim-0", at, 50, 1 << 30, 9.0, 40),
            )
            used = AttemptSample(attempt, at, 100, 1.0, 7, 2, at - 1.7e9, 1.0, 50.0, 110)
            store.write([*card_steps(card), *attempt_steps(used)], at)


Looked = Callable[..., None]


@pytest.fixture
def run(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, in the working directory."""
    shutil.copytree(real.parent, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.fixture
def looks(capfd: pytest.CaptureFixture[str]) -> Looked:
    """Runs each of the commands; none may raise, or print a traceback."""

    def look(run: Path, *commands: str) -> None:
        for command in commands or LOOKS:
            words = [str(run) if word == "RUN" else word for word in command.split()]
            try:
                assert main(words) in (0, 1, 2), command
            except Exception as error:
                raise AssertionError(command) from error
            assert "Traceback" not in "".join(capfd.readouterr()), command

    return look


def summed(line: dict[str, Any]) -> bytes:
    """A journal's line with the right checksum, whatever it says."""
    line = {key: value for key, value in line.items() if key != "c"}
    body = dumped(line)
    return b'%s,"c":"%08x"}' % (body[:-1], crc32(body))


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("cut", [False, True], ids=["over", "cut off"])
def test_a_journal_whose_checksums_are_right_may_say_anything(
    run: Path, looks: Looked, cut: bool
) -> None:
    rng = random.Random(SEED + cut)
    lines = lines_of(run)
    whole = [summed(line) for line in lines]
    for number in range(count(60)):
        at = rng.randrange(len(lines))
        odd = spoilt(rng, lines[at])
        new = [*whole[:at], summed(odd) if isinstance(odd, dict) else dumped(odd), *whole[at + 1 :]]
        if cut:
            del new[rng.randrange(at, len(new)) + 1 :]
        (run / "events.jsonl").write_bytes(b"\n".join(new) + b"\n")
        looks(run, *[LOOKS[number % len(LOOKS)], LOOKS[1]])


def about_known(fact: Fact, number: int) -> Fact:
    """The fact, but about a job, an attempt and a card that the journal knows."""
    known: dict[str, Any] = {
        "name": "ab"[number % 2],
        "attempt": AttemptId("ab"[number % 2], 1 + number // 2 % 2),
        "gpu": "GPU-0",
    }
    uuids = isinstance(fact, AttemptLaunched | WorkerLeft | WorkerGone)
    known |= {"gpus": ("GPU-0",)} if uuids else {}
    return replace(fact, **{key: known[key] for key in known if key in fact.__struct_fields__})


@settings(
    max_examples=count(60),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.builds(about_known, FACTS, st.integers(0, 3)), max_size=8))
def test_a_journal_of_any_facts_is_shown(run: Path, looks: Looked, facts: list[Fact]) -> None:
    first = opened(run=json.loads((run / "manifest.json").read_text())["run"])
    launched = AttemptLaunched(AttemptId("a", 1), ("GPU-0",))
    jobs = [JobAdded(name, 0, 1, "d") for name in "ab"]
    at = Instant(4242.0, 1.7e9)
    every = enumerate([first, *jobs, launched, *facts], 1)
    text = b"".join(codec.encode(number, fact, at) for number, fact in every)
    (run / "events.jsonl").write_bytes(text)
    looks(run, "status RUN --all", "status RUN --json", "results RUN --csv", "report RUN")


def test_a_number_of_an_attempt_that_no_run_reaches_is_passed_over(
    run: Path, looks: Looked
) -> None:
    lines = lines_of(run)
    for line in lines:
        if line["e"] == "attempt_started":
            line["attempt"] = 1_000_000_000
    del lines[3]  # so that later facts need not fit
    (run / "events.jsonl").write_bytes(b"\n".join(map(summed, lines)) + b"\n")
    looks(run)


@pytest.mark.parametrize("begins", [b"", b'{"n":'])
def test_a_journal_that_ends_in_zeros_is_shown(
    run: Path, looks: Looked, monkeypatch: pytest.MonkeyPatch, begins: bytes
) -> None:
    monkeypatch.setattr(reading, "LINE_BYTES", 4 << 20)
    with (run / "events.jsonl").open("ab") as journal:
        journal.write(begins)
        journal.truncate(journal.tell() + (64 << 20))
    looks(run, "status RUN", "status RUN --json", "clean RUN --dry-run")


@pytest.mark.parametrize("begins", [b"", b'{"n":'])
def test_of_a_line_without_end_little_is_kept_and_the_next_line_counts(
    run: Path, monkeypatch: pytest.MonkeyPatch, begins: bytes
) -> None:
    monkeypatch.setattr(reading, "LINE_BYTES", 4 << 20)
    first, _, third, *_ = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    found: reading.Splitter[None] = reading.Splitter(lambda line: (codec.check(line), None))
    assert len(found.feed(first)) == 1
    found.feed(begins)
    for _ in range(64):
        found.feed(bytes(1 << 20))
        assert len(found.rest) <= (4 << 20) + (1 << 20)
    assert found.feed(b"\n" + third) == [(None, True)]
    assert found.end == len(first) + len(begins) + (64 << 20) + 1 + len(third)
    assert [fault.lost for fault in found.faults] == [True]


@pytest.mark.parametrize("name", ["manifest.json", "joblog.tsv", "jobs.yaml", "ends", "metrics"])
def test_any_other_file_may_hold_anything(run: Path, looks: Looked, name: str) -> None:
    rng = random.Random(SEED)
    path = run / name
    if name == "ends":
        path = run / "ends" / "good-1.1"
        path.parent.mkdir(exist_ok=True)
    if name == "metrics":
        path = next((run / "out").glob("good-1.1")) / "metrics.json"
    was = path.read_bytes() if path.exists() else b"{}"
    manifest = json.loads((run / "manifest.json").read_bytes())
    reals = [manifest] if name == "manifest.json" else [{"loss": 1, "of": {"a": [1]}}]
    for at, line in enumerate(messages(reals, count(40))):
        damaged = bytearray(was)
        damaged[rng.randrange(len(was))] = rng.randrange(256)
        path.write_bytes(line if at % 2 else bytes(damaged))
        looks(run, LOOKS[at % len(LOOKS)], "status RUN", "results RUN --csv")
        assert main(["ps"]) == 0


def test_metrics_that_are_damaged_anywhere_are_lost_and_no_more(run: Path, looks: Looked) -> None:
    rng = random.Random(SEED)
    was = (run / "metrics.db").read_bytes()
    for at in range(count(120)):
        damaged = bytearray(was)
        for _ in range(rng.choice([1, 1, 4, 100])):
            where = rng.choice([rng.randrange(min(len(was), 8192)), rng.randrange(len(was))])
            damaged[where] = rng.choice([0xFF, 0, rng.randrange(256)])
        size = rng.choice([len(was), len(was), len(was), len(was) // 2])
        (run / "metrics.db").write_bytes(damaged[:size])
        looks(run, LOOKS[at % len(LOOKS)])
        if reader := open_metrics(run / "metrics.db"):
            with reader:
                reader.measured()
                reader.latest()
                reader.counters()
                reader.cards("GPU-x")


@pytest.mark.parametrize("told", ["", "x" * 65, "\u65e5" * 30])
def test_an_id_that_names_no_socket_is_damage(run: Path, launcher: Launcher, told: str) -> None:
    manifest = json.loads((run / "manifest.json").read_bytes())
    (run / "manifest.json").write_text(json.dumps(manifest | {"run": told}))
    result = launcher("resume", "run")
    assert (result.status, "is damaged: run: expected the id" in result.err) == (2, True)


def test_a_result_that_cannot_be_linked_stops_no_later_start(run: Path, launcher: Launcher) -> None:
    (run / "results" / "good-1").unlink(missing_ok=True)
    left = run / "out" / "good-1.1"
    shutil.rmtree(left)
    left.symlink_to(left.name)
    assert launcher("resume", "run").status < 64


@pytest.mark.parametrize("command", ["status", "results", "report"])
def test_metrics_that_are_lost_are_one_line(run: Path, launcher: Launcher, command: str) -> None:
    (run / "metrics.db").write_bytes(b"no database" * 100)
    result = launcher(command, "run")
    assert result.status == 0
    lost = "run/metrics.db cannot be read: what cards and jobs used is not shown"
    assert result.err.count(lost) == 1


def test_a_damaged_run_is_gone_on_with_or_refused(run: Path, launcher: Launcher) -> None:
    rng = random.Random(SEED)
    lines = lines_of(run)
    whole = [summed(line) for line in lines]
    manifest = json.loads((run / "manifest.json").read_bytes())
    for number in range(count(6)):
        shutil.copytree(run, launcher.path / f"r{number}", symlinks=True)
        copy = launcher.path / f"r{number}"
        if number % 3:
            at = rng.randrange(len(lines))
            odd = spoilt(rng, lines[at])
            new = [*whole]
            new[at] = summed(odd) if isinstance(odd, dict) else dumped(odd)
            (copy / "events.jsonl").write_bytes(b"\n".join(new) + b"\n")
        else:
            (copy / "manifest.json").write_bytes(dumped(spoilt(rng, manifest)))
        result = launcher("resume", copy, "--quiet")
        assert "Traceback" not in result.err, result.err
        assert result.status in (0, 1, 2, 5), result.err
