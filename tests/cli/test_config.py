"""The configuration as commands keep it: runs elsewhere, mistakes, defaults, what is printed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.base.documents import ConfigDocument
from gpulaunch.base.errors import NoCardsError
from gpulaunch.base.schemas import json_schema
from gpulaunch.cli.terminal import Terminal
from gpulaunch.jobfile.config_model import Allowance
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load
from gpulaunch.journal.choices import Choices
from gpulaunch.run.options import RunOptions
from gpulaunch.run.preflight import pool_for
from tests.cli.launcher import COMMAND, Launcher
from tests.gpus.fake import MIB, FakeDriver
from tests.helpers import own_network

ONE = 'jobs:\n  - {name: a, gpus: 0, run: "true"}\n'


class Configured(Launcher):
    """gpulaunch in a directory below `at`, with a user's configuration of its own."""

    def __init__(self, at: Path) -> None:
        work = at / "work"
        work.mkdir()
        super().__init__(work, {"XDG_CONFIG_HOME": str(at / "xdg"), "HOME": str(at)})
        self.config = at / "xdg" / "gpulaunch" / "config.yaml"
        self.config.parent.mkdir(parents=True)

    def says(self, text: str) -> None:
        self.config.write_text(text)


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    return Configured(tmp_path)


# ── Mistakes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["run", "jobs.yaml"], 2),
        (["check", "jobs.yaml"], 2),
        (["map", "true", ":::", "a"], 2),
        (["exec", "--simulate", "1", "--", "true"], 125),
        (["hold", "--simulate", "1", "--", "true"], 125),
        (["queue", "start"], 2),
    ],
    ids=lambda argv: argv[0] if isinstance(argv, list) else "",
)
def test_a_mistake_is_told_with_its_place_before_anything_starts(
    argv: list[str], status: int, configured: Configured
) -> None:
    configured.environ["XDG_STATE_HOME"] = str(configured.path / "state")
    configured.file("jobs.yaml", ONE)
    configured.says("rums: /a\n")
    result = configured(*argv)
    assert result.status == status
    assert f"{configured.config}:1:1: rums: unknown key; did you mean runs?" in result.err
    assert not (configured.path / "gpulaunch-runs").exists()


def test_what_only_looks_or_ends_something_goes_on_beside_a_mistake(configured: Configured) -> None:
    configured.file("jobs.yaml", ONE)
    assert configured("run", "jobs.yaml", "-q").status == 0
    configured.says("rums: /a\n")
    for argv in (["ps"], ["status"], ["logs", "a"], ["report"], ["schema"]):
        result = configured(*argv)
        assert result.status == 0, result
        assert "rums" not in result.err


def test_a_mistake_as_json_names_the_configuration(configured: Configured) -> None:
    configured.file("jobs.yaml", ONE)
    configured.says("rums: /a\n")
    told = json.loads(configured("check", "jobs.yaml", "--json").out)
    assert told["error"] == "1 mistake in the configuration"
    assert told["mistakes"][0]["file"] == str(configured.config)


# ── Slurm ───────────────────────────────────────────────────────────────────────────────────────

ON_SLURM = """
jobs:
  - {name: a, run: echo, memory: 64GB, engine: {slurm: {partition: long}}}
  - {name: b, run: echo, engine: {slurm: {partition: long}}}
"""


def test_what_a_job_s_memory_goes_before_is_said(configured: Configured) -> None:
    configured.file("jobs.yaml", ON_SLURM)
    configured.says("slurm:\n  extra: --mem=16G --exclusive\n")
    told = configured("check", "jobs.yaml", "--engine", "slurm")
    assert told.status == 0, told.err
    assert (
        f"memory: goes before --mem=16G, which {configured.config}:2 says of all jobs: 1 job of"
        " this list has it\n"
    ) in told.err
    silent = (("--exclusive", ON_SLURM), ("--mem-bind=local", ON_SLURM), ("--mem=16G", ONE))
    for text, list_ in silent:
        configured.says(f"slurm: {{extra: {text}}}\n")
        configured.file("jobs.yaml", list_)
        assert "goes before" not in configured("check", "jobs.yaml", "--engine", "slurm").err


# ── What is in force ────────────────────────────────────────────────────────────────────────────


def test_config_prints_each_setting_and_where_it_is_from(configured: Configured) -> None:
    configured.says("gpus: {never: [0]}\nruns: ~/r\nslurm: {partition: gpu}\n")
    configured.environ["GPULAUNCH_LEASE_DIR"] = "/run/leases"
    result = configured("config")
    assert result.status == 0
    lines = {line.split()[0]: line.split() for line in result.out.splitlines()}
    where = str(configured.config)
    assert lines["gpus.never"][1:] == ["0", f"{where}:1"]
    assert lines["runs"][1:] == [str(configured.config.parents[2] / "r"), f"{where}:2"]
    assert lines["slurm.partition"][1:] == ["gpu", f"{where}:3"]
    assert lines["lease_dir"][1:] == ["/run/leases", "GPULAUNCH_LEASE_DIR"]
    assert lines["free_below"][-1] == "default"
    assert lines["notify"][1:] == ["nobody", "default"]
    configured.says("runs: ~/r\n")
    assert ["slurm", "none", "default"] in [
        line.split() for line in configured("config").out.splitlines()
    ]


def test_config_tells_its_mistakes_and_says_so_in_its_status(configured: Configured) -> None:
    configured.says("rums: /a\nruns: /b\n")
    result = configured("config", "--json")
    assert result.status == 2
    told = json.loads(result.out)
    assert {"key": "runs", "value": "/b", "source": f"{configured.config}:2"} in told["settings"]
    assert told["mistakes"][0]["field"] == "rums"
    assert told["files"] == [str(configured.config)]
    assert set(json_schema(ConfigDocument)["required"]) == set(told)
    assert f"{configured.config}:1:1: rums" in result.err


def test_the_address_of_who_is_told_is_not_printed(configured: Configured) -> None:
    configured.says("notify: {to: 'ntfy://token-of-mine/x'}\n")
    result = configured("config")
    assert "notify" in result.out
    assert "token-of-mine" not in result.out + result.err


def test_the_doctor_looks_at_the_files(configured: Configured) -> None:
    locked = configured.path / "locked"
    configured.says(f"runs: {locked}/file/runs\nlease_dir: /run/a\n")
    locked.mkdir()
    (locked / "file").write_text("")
    configured.environ["GPULAUNCH_LEASE_DIR"] = str(configured.path)
    found = json.loads(configured("doctor", "--json").out)["findings"]
    told = {one["what"]: one["level"] for one in found}
    (runs,) = (what for what in told if "no run directory can be made" in what)
    (leases,) = (what for what in told if "launchers with one of them" in what)
    assert (told[runs], told[leases]) == ("error", "warning")
    assert any(what.startswith("configuration: ") for what in told)
    configured.says("rums: /a\n")
    found = json.loads(configured("doctor", "--json").out)["findings"]
    assert any(one["level"] == "error" and ":1:1: rums" in one["what"] for one in found)


# ── Runs elsewhere ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def elsewhere(configured: Configured) -> Configured:
    configured.says("runs: ~/all-runs\n")
    configured.file("jobs.yaml", ONE)
    return configured


def kept(launcher: Configured) -> list[Path]:
    return sorted(launcher.path.parent.glob("all-runs/*/jobs-*"))


def test_runs_go_where_the_configuration_says_and_latest_points_there(
    elsewhere: Configured,
) -> None:
    assert elsewhere("run", "jobs.yaml", "-q").status == 0
    (run,) = kept(elsewhere)
    assert run.parent.name.startswith("work-")
    assert (run.parent / "latest").resolve() == run
    assert run.stat().st_mode & 0o777 == 0o700
    assert not (elsewhere.path / "gpulaunch-runs").exists()


def test_a_run_elsewhere_is_found_as_one_in_the_working_directory(elsewhere: Configured) -> None:
    elsewhere("run", "jobs.yaml", "-q")
    (run,) = kept(elsewhere)
    below = elsewhere.path / "a" / "b"
    below.mkdir(parents=True)
    for cwd in (elsewhere.path, below):
        there = Launcher(cwd, elsewhere.environ)
        for what in ([], ["latest"], [run.name], ["jobs"]):
            told = there("status", *what, "--json")
            assert json.loads(told.out)["run"]["dir"] == str(run), (cwd, what)
    told = elsewhere("status", "jobs.yaml", "--json")
    assert json.loads(told.out)["run"]["dir"] == str(run)
    other = elsewhere.path.parent / "other"
    other.mkdir()
    assert Launcher(other, elsewhere.environ)("status").status == 2, "it was not begun there"


def test_an_unfinished_run_elsewhere_is_gone_on_with(elsewhere: Configured) -> None:
    elsewhere.file("jobs.yaml", 'jobs:\n  - {name: a, gpus: 0, run: "test -e there"}\n')
    assert elsewhere("run", "jobs.yaml", "-q").status == 1
    elsewhere.file("there", "")
    assert elsewhere("retry", "-q").status == 0
    (run,) = kept(elsewhere)
    assert elsewhere.status(run)["run"]["state"] == "succeeded"
    assert elsewhere("run", "jobs.yaml", "--continue", "-q").status == 0
    assert kept(elsewhere) == [run]


def test_runs_from_before_the_setting_are_still_found_beside_new_ones(
    configured: Configured,
) -> None:
    configured.file("jobs.yaml", ONE)
    configured("run", "jobs.yaml", "-q", "--run-dir", "gpulaunch-runs/jobs-20200101-000000")
    configured.says("runs: ~/all-runs\n")
    configured("run", "jobs.yaml", "-q")
    assert len(kept(configured)) == 1
    told = configured("status", "jobs-20200101-000000", "--json")
    assert json.loads(told.out)["run"]["state"] == "succeeded"
    newest = json.loads(configured("status", "--json").out)["run"]["dir"]
    assert newest == str(kept(configured)[0])


def test_run_dir_goes_before_the_configuration(elsewhere: Configured) -> None:
    assert elsewhere("run", "jobs.yaml", "-q", "--run-dir", "mine").status == 0
    assert (elsewhere.path / "mine" / "events.jsonl").exists()
    assert kept(elsewhere) == []


# ── Defaults of runs ────────────────────────────────────────────────────────────────────────────

TOLD = "notify: {run: [sh, -c, 'echo \"$0\" >> %s'], on: [finish]}\n"


def test_who_is_told_by_the_configuration_is_so_unless_the_job_file_says_who(
    configured: Configured,
) -> None:
    told, own = configured.path / "told", configured.path / "own"
    configured.says(TOLD % told)
    configured.file("jobs.yaml", ONE)
    assert "tells notify" in configured("check", "jobs.yaml").out
    assert configured("run", "jobs.yaml", "-q").status == 0
    assert told.read_text().count("\n") == 1
    configured.file("mine.yaml", TOLD % own + ONE)
    assert configured("run", "mine.yaml", "-q").status == 0
    assert own.read_text().count("\n") == 1
    assert told.read_text().count("\n") == 1


def test_who_cannot_be_told_is_warned_of_at_the_place_in_the_configuration(
    configured: Configured,
) -> None:
    configured.says("runs: ~/r\nnotify: {to: env:NOT_SET_ANYWHERE}\n")
    configured.file("jobs.yaml", ONE)
    result = configured("check", "jobs.yaml")
    assert f"{configured.config}:2: notify.to: NOT_SET_ANYWHERE is not set" in result.err


# ── On the machine's cards ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def on_cards(configured: Configured, driver: FakeDriver) -> Iterator[Configured]:
    """The same on a pretend card, of which nobody in particular uses 600 MiB."""
    driver.card(0, used=600 * MIB)
    configured.environ = {**driver.environ, **configured.environ, **_of(driver)}
    configured.command = [*COMMAND]  # started here, where leases are nobody else's
    with own_network():
        yield configured


def _of(driver: FakeDriver) -> dict[str, str]:
    return {name: driver.environ[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}


def test_what_counts_as_free_is_what_the_configuration_says(on_cards: Configured) -> None:
    taken = ("exec", "--no-wait", "--", "true")
    assert on_cards(*taken).status == 0, "1 % of 80 GiB"
    on_cards.says("free_below: 500MB\n")
    assert on_cards(*taken).status == 124
    assert "in use" in on_cards("gpus").out
    assert on_cards("exec", "--no-wait", "--free-below", "2GB", "--", "true").status == 0
    on_cards.file("jobs.yaml", 'free_below: 2GB\njobs:\n  - {run: "true"}\n')
    assert on_cards("run", "jobs.yaml", "-q", "--wait", "0").status == 0


def test_leases_are_held_in_files_where_the_configuration_says_so(on_cards: Configured) -> None:
    locks = on_cards.path / "locks"
    on_cards.says(f"lease_dir: {locks}\n")
    refused = on_cards("exec", "--no-wait", "--", "true")
    assert f"{on_cards.config}:1: lease_dir={locks}: expected a directory" in refused.err
    locks.mkdir()
    told = on_cards("exec", "--no-wait", "--", "sh", "-c", "echo $GPULAUNCH_LEASE_DIR")
    assert told.out == f"{locks}\n", "what the command starts holds its leases there as well"
    assert len(os.listdir(locks)) == 1


@pytest.mark.parametrize(
    ("words", "status"), [(("run", "jobs.yaml"), 2), (("exec", "--", "true"), 125)], ids=str
)
def test_a_directory_of_leases_that_is_not_there_is_refused_for_pretend_cards_as_well(
    launcher: Launcher, words: tuple[str, ...], status: int
) -> None:
    launcher.file("jobs.yaml", 'jobs: [{run: "true"}]')
    launcher.environ["GPULAUNCH_LEASE_DIR"] = nowhere = str(launcher.path / "nowhere")
    refused = launcher(words[0], "--simulate", "1", *words[1:])
    assert refused.status == status
    assert f"GPULAUNCH_LEASE_DIR={nowhere}: expected a directory" in refused.err


def told_by_doctor(launcher: Configured) -> dict[str, str]:
    """What the doctor says, with the level of each."""
    found = json.loads(launcher("doctor", "--json").out)["findings"]
    return {one["what"]: one["level"] for one in found}


def test_a_name_of_no_card_and_one_of_several_are_told_of(
    on_cards: Configured, driver: FakeDriver
) -> None:
    driver.card(0, uuid="GPU-0a")
    driver.card(1, uuid="GPU-0b")
    driver.card(2, error_open=15)
    driver.card(3, uuid="GPU-33")
    on_cards.says("gpus:\n  never: [9, GPU-0, 2]\n  last: [GPU-ffff, 3, GPU-33]\n")
    on_cards.file("jobs.yaml", 'jobs:\n  - {run: "true"}\n')
    file = on_cards.config
    lines = [
        f"{file}:2: gpus: never: 9 fits no card here, and does nothing",
        f"{file}:2: gpus: never: GPU-0 fits 2 cards, and holds for all of them",
        f"{file}:3: gpus: last: GPU-ffff fits no card here, and does nothing",
    ]
    told = told_by_doctor(on_cards)
    assert [told.get(line) for line in lines] == ["warning"] * 3
    assert [what for what in told if "fits" in what] == lines
    for argv in (["gpus"], ["check", "jobs.yaml"], ["run", "jobs.yaml"]):
        result = on_cards(*argv)
        assert [line for line in lines if line not in result.err] == [], argv
        assert result.err.count("fits") == 3, argv


def test_a_card_outside_the_shell_s_mask_is_no_name_of_none(
    on_cards: Configured, driver: FakeDriver
) -> None:
    driver.card(1)
    on_cards.says("gpus: {never: [1]}\n")
    on_cards.file("jobs.yaml", 'jobs:\n  - {run: "true"}\n')
    on_cards.environ["CUDA_VISIBLE_DEVICES"] = "0"
    assert "fits" not in on_cards("check", "jobs.yaml").err


def test_the_doctor_goes_by_the_configured_line_of_free_memory(on_cards: Configured) -> None:
    in_use = "GPU 0 (NVIDIA A100-SXM4-80GB) is in use"
    assert not any(what.startswith(in_use) for what in told_by_doctor(on_cards))
    on_cards.says("free_below: 500MB\n")
    assert any(what.startswith(in_use) for what in told_by_doctor(on_cards))


def test_the_doctor_names_the_line_that_sets_the_directory_of_leases(
    configured: Configured,
) -> None:
    configured.says("runs: ~/r\nlease_dir: /nonexistent\n")
    line = f"{configured.config}:2: lease_dir=/nonexistent is not a directory"
    assert any(what.startswith(line) for what in told_by_doctor(configured))


def test_what_is_never_used_is_named_where_cards_are_too_few(
    on_cards: Configured, driver: FakeDriver
) -> None:
    driver.card(1)
    on_cards.says("gpus: {never: [1], last: [1]}\n")
    on_cards.file("jobs.yaml", 'jobs:\n  - {gpus: 2, run: "true"}\n')
    why = f"GPU 1 is never used ({on_cards.config}:1)"
    for argv, status, have in (
        (("run", "jobs.yaml", "--gpus", "2"), 3, "2 cards were asked for, 1 can be had here"),
        (("exec", "-g", "2", "--", "true"), 125, "2 cards needed, 1 can be had here"),
        (("check", "jobs.yaml"), 2, "needs 2 cards, the run has 1"),
    ):
        result = on_cards(*argv)
        assert (result.status, f"{have}; {why}" in result.err) == (status, True), result
    _, row = json.loads(on_cards("gpus", "--json").out)["gpus"]
    assert (row["outside"], row["last"]) == (f"{on_cards.config}:1", "")


def test_that_no_card_may_be_used_is_told_once(on_cards: Configured) -> None:
    on_cards.says("gpus: {never: [0]}\n")
    on_cards.file("jobs.yaml", 'jobs:\n  - {run: "true"}\n')
    assert on_cards("check", "jobs.yaml").err.count("GPU 0 is never used") == 1


def test_a_limit_of_no_card_is_no_mistake_of_the_job_file(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.card(0)
    for name, value in _of(driver).items():
        monkeypatch.setenv(name, value)
    nothing = Allowance(0, "/etc/gpulaunch/config.yaml:3")
    monkeypatch.setattr("gpulaunch.engines.pool.allowance_here", lambda config, environ: nothing)
    (tmp_path / "jobs.yaml").write_text('jobs:\n  - {name: b, run: "true"}\n' + ONE[6:])
    plan = load(tmp_path / "jobs.yaml", Surroundings({}))
    needing, free = plan.jobs
    with pytest.raises(NoCardsError, match=re.escape(nothing.source)):
        pool_for(plan, (needing, free), RunOptions(Choices()), "r", Terminal())
    assert pool_for(plan, (free,), RunOptions(Choices()), "r", Terminal()).size == 0


def test_runs_that_cannot_be_made_name_the_line_that_puts_them_there(
    configured: Configured,
) -> None:
    configured.says("free_below: 2GB\nruns: /proc/no\n")
    configured.file("jobs.yaml", ONE)
    result = configured("run", "jobs.yaml")
    assert result.status == 2
    assert f"{configured.config}:2: runs: no run directory can be made at /proc/no" in result.err
