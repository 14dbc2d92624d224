"""`gpulaunch export`: what it writes where, what it names, what it refuses."""

from __future__ import annotations

import os

import pytest

from tests.cli.launcher import Launcher

TARGETS = ["hyperqueue", "slurm"]


def test_a_single_file_goes_to_standard_output_unless_named(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{run: echo hello}]")
    printed = launcher("export", "jobs.yaml", "--to", "hyperqueue")
    assert (printed.status, printed.err) == (0, "")
    assert launcher("export", "jobs.yaml", "--to", "hyperqueue", "-o", "-").out == printed.out
    written = launcher("export", "jobs.yaml", "--to", "hyperqueue", "-o", "there")
    assert "wrote there (a job); next: " in written.err
    assert (written.status, written.out) == (0, "")
    assert (launcher.path / "there").read_text() == printed.out


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_there_is_not_written_over_unless_forced(launcher: Launcher, target: str) -> None:
    launcher.file("jobs.yaml", "jobs: [{run: echo hello}]")
    argv = ("export", "jobs.yaml", "--to", target, "-o", "there")
    assert launcher(*argv).status == 0
    file = launcher.path / "there" / "submit.sh" if target == "slurm" else launcher.path / "there"
    text = file.read_text()
    file.write_text("mine")
    again = launcher(*argv)
    assert again.status == 2
    assert "exists already" in again.err
    assert file.read_text() == "mine"
    assert launcher(*argv, "--force").status == 0
    assert file.read_text() == text


def test_what_a_target_cannot_do_is_named_in_a_line_each_and_in_what_is_written(
    launcher: Launcher,
) -> None:
    launcher.file("work.py", "def work(item): pass\n")
    launcher.file(
        "jobs.yaml",
        """
        limits: {server: 1}
        jobs:
          - name: serves
            gpus: 0
            run: serve
            service: {ready: "tcp:{{port}}"}
          - {name: asks, needs: [serves], run: ask}
          - {name: works, worker: "work.py:work"}
          - {name: tells, needs: [asks], run: tell}
          - name: plain-{{item}}
            foreach: {values: [a, b]}
            idle_timeout: 1h
            preload: [torch]
            isolation: strict
            retries: {times: 1, on: [gpu_lost]}
            gpu_memory: 4GB
            explain: true
            uses: [server]
            run: plain
          - {name: other, uses: [server], run: "true"}
          - {name: last, after: [tells], run: "true"}
        """,
    )
    for target in TARGETS:
        done = launcher("export", "jobs.yaml", "--to", target, "-o", f"to-{target}")
        assert done.status == 0, done.err
        lines = [line.removeprefix("gpulaunch: ") for line in done.err.splitlines()[:-1]]
        for place, field, words in (
            (7, "jobs[0].service", "left out"),
            (8, "jobs[1].needs", "left out: it needs serves"),
            (9, "jobs[2].worker", "left out"),
            (10, "jobs[3].needs", "left out: it needs asks"),
            (13, "jobs[4].idle_timeout", ""),
            (14, "jobs[4].preload", "starts cold"),
            (15, "jobs[4].isolation", ""),
            (16, "jobs[4].retries", "again after any failure"),
            (17, "jobs[4].gpu_memory", ""),
            (18, "jobs[4].explain", ""),
            (22, "jobs[6].after", "not of tells"),
        ):
            said = [one for one in lines if f": {field}: {words}" in one]
            assert len(said) == 1, f"{field} in {lines}"
            assert said[0].startswith(f"jobs.yaml:{place}:")
        assert any("jobs[4].uses: server: " in line for line in lines)
        at = launcher.path / f"to-{target}"
        written = (at / "submit.sh" if target == "slurm" else at).read_text()
        assert all(f"#   {line}" in written for line in lines)
        assert "serve\n" not in written


@pytest.mark.parametrize("target", TARGETS)
def test_every_mistake_is_said_at_once_with_its_place(launcher: Launcher, target: str) -> None:
    launcher.file(
        "jobs.yaml",
        """
        limits: {server: 1}
        jobs:
          - {name: a, run: "echo {{gpu_uuid}}"}
          - {name: b, gpus: 4, run: "true", env: {A: "{{gpu_uuid}}"}}
          - {name: c, uses: [server, server], run: "true"}
        """,
    )
    done = launcher("export", "jobs.yaml", "--to", target, "-o", "there")
    assert done.status == 2
    assert "jobs.yaml:4:20: jobs[0].run: {{gpu_uuid}} is not known" in done.err
    assert "jobs[1].env: " in done.err
    assert "jobs[2].uses: needs 2 of server, its limit is 1" in done.err
    assert not (launcher.path / "there").exists()


def test_a_file_whose_name_is_not_utf8_is_refused_for_toml(launcher: Launcher) -> None:
    (launcher.path / os.fsdecode(b"\xff a.txt")).write_text("inside")
    launcher.file("jobs.yaml", 'jobs: [{name: a, foreach: "*.txt", run: "cat {{path}}"}]')
    toml = launcher("export", "jobs.yaml", "--to", "hyperqueue")
    assert (toml.status, toml.out) == (2, "")
    assert "not UTF-8" in toml.err


def test_what_is_only_half_checked_of_outputs_is_named(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true', outputs: ['{{out}}/*', old]}]")
    said = launcher("export", "jobs.yaml", "--to", "hyperqueue", "-o", "jobs.toml").err
    assert "jobs[0].outputs: patterns are only checked to match a file" in said
    assert "jobs[0].outputs: files that are older than the job count as its own" in said


def test_bad_calls_are_one_clear_line(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{run: serve, service: {ready: 'tcp:{{port}}'}}]")
    for argv, words in (
        (("--to", "slurm"), "--to slurm writes a directory: name it with -o"),
        (("--to", "slurm", "-o", "-"), "--to slurm writes a directory"),
        (("--to", "make"), "'make' is not one of"),
        ((), "gpulaunch: Missing option '--to'. Choose from: hyperqueue, slurm (see:"),
        (("--to", "hyperqueue"), "no job of it can be exported to hyperqueue"),
    ):
        done = launcher("export", "jobs.yaml", *argv)
        assert done.status == 2
        assert words in done.err
        assert done.err.count("\n") == 1 or argv == ("--to", "hyperqueue")  # what it cannot do, too
        assert done.out == ""
    launcher.file("jobs.yaml", "jobs: [{run: a}]")
    done = launcher("export", "jobs.yaml", "--to", "hyperqueue", "-o", "no/such/place")
    assert (done.status, done.err) == (
        2,
        "gpulaunch: no/such/place cannot be written: No such file or directory\n",
    )


def test_help_has_one_example(launcher: Launcher) -> None:
    assert "gpulaunch export jobs.yaml --to slurm -o cluster/" in launcher("export", "-h").out
