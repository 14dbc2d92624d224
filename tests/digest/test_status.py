from __future__ import annotations

import json
from pathlib import Path

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId, Exited, ImageSource, Interrupted, Signaled
from gpulaunch.observe.metrics.model import AttemptUse, Measured
from gpulaunch.observe.present.status import Standing, status_json
from gpulaunch.observe.terminal.standing import print_job, print_status
from tests.views.history import History
from tests.views.screen import Paths, rendered


def busy() -> History:
    run = History(3, simulated=True).open()
    run.add(f.JobAdded("a", 0, 1, "d", {"stem": "1ubq"})).jobs("b", "c", "d", "e", "gone")
    run.start("a", 0).pass_(42.5).succeed("a").start("b", 0).pass_(5).end(
        "b", Signaled(9), "signal"
    )
    run.add(f.JobSettled("b", "failed", Quoted("killed by SIGKILL"))).skip(
        "c", "needs b, which failed"
    )
    run.start("d", 1).pass_(60).add(f.JobVanished("gone"))
    run.add(f.GpuChanged("SIM-2", "aside", Quoted("its memory did not drain")))
    return run.add(f.GpuDrained("SIM-1", True))


def test_json_has_the_documented_shape() -> None:
    run = busy()
    found = status_json(
        Standing(run.ledger, Paths(), "running", {"e": Quoted("waits for a card")}, run.now)
    )
    json.dumps(found)
    assert list(found) == ["schema", "run", "gpus", "jobs"]
    assert found["run"] == {
        "id": "20261120-074215-a1b2c3",
        "name": "nanobodies",
        "dir": "gpulaunch-runs/nanobodies-20261120-074215",
        "state": "running",
        "suspended": False,
        "reason": "",
        "started": "2026-11-20T07:42:15.250000Z",
        "ended": None,
        "seconds": 107.5,
        "simulated": True,
        "counts": {
            "waiting": 1, "running": 1, "succeeded": 1, "failed": 1, "cancelled": 0, "skipped": 1
        },
        "vanished": 1,
        "images": [],
        "code_changes": [],
        "energy": None,
        "seconds_left": None,
        "next_command": None,
    }  # fmt: skip
    jobs = {job["name"]: job for job in found["jobs"]}
    assert list(jobs) == ["a", "b", "c", "d", "e", "gone"]
    assert jobs["a"] == {
        "name": "a",
        "state": "succeeded",
        "reason": "",
        "params": {"stem": "1ubq"},
        "not_before": None,
        "exit_code": 0,
        "signal": None,
        "failure": None,
        "evidence": "",
        "note": "",
        "keep": None,
        "energy": None,
        "attempts": [
            {
                "number": 1,
                "state": "succeeded",
                "gpus": [{"index": 0, "uuid": "SIM-0"}],
                "pid": 101,
                "started": "2026-11-20T07:42:15.250000Z",
                "ended": "2026-11-20T07:42:57.750000Z",
                "seconds": 42.5,
                "exit_code": 0,
                "signal": None,
                "failure": None,
                "evidence": "",
                "advice": "",
                "left_behind": 0,
                "reports": [],
                "warned": None,
                "idle": None,
                "worker": None,
                "step": None,
                "ladder": {},
                "promised_gpu_memory": None,
                "log": "gpulaunch-runs/nanobodies-20261120-074215/logs/a.1.log",
                "out": None,
                "peak_gpu_memory": None,
                "mean_gpu_memory": None,
                "peak_card_memory": None,
                "peak_gpu_utilization": None,
                "mean_gpu_utilization": None,
                "gpu_seconds": None,
                "cpu_seconds": None,
                "peak_resident": None,
                "energy": None,
                "touched_gpu": None,
                "pin": None,
                "pin_reason": "",
            }
        ],
    }
    assert (jobs["b"]["exit_code"], jobs["b"]["signal"], jobs["b"]["failure"]) == (
        None,
        9,
        "signal",
    )
    assert jobs["d"]["attempts"][0]["seconds"] is None
    assert jobs["e"]["reason"] == "waits for a card"
    assert jobs["gone"]["reason"] == "no longer in the job file, not run"
    assert found["gpus"][1]["jobs"] == ["d"]
    assert found["gpus"][2]["state"] == "aside"


def test_a_job_that_runs_and_is_no_longer_in_the_file_says_so() -> None:
    run = History(1).open().jobs("runs", "done").start("done", 0).succeed("done").start("runs", 0)
    run.add(f.JobVanished("runs")).add(f.JobVanished("done"))
    found = status_json(Standing(run.ledger, Paths(), "running", {}, run.now))
    assert {job["name"]: job["reason"] for job in found["jobs"]} == {
        "runs": "no longer in the job file: runs to the end, and not again",
        "done": "",
    }


def test_out_is_named_where_it_was_used(tmp_path: Path) -> None:
    class Real(Paths):
        root = tmp_path

    run = History(1).open().jobs("a", "b").start("a", 0).start("b", 0)
    (tmp_path / "out" / "a.1").mkdir(parents=True)
    jobs = status_json(Standing(run.ledger, Real(), "running", {}, run.now))["jobs"]
    assert [job["attempts"][0]["out"] for job in jobs] == [str(tmp_path / "out/a.1"), None]


def test_what_an_attempt_was_promised_of_its_card_is_told() -> None:
    run = History(1).open().jobs("a").start("a", 0)
    (record,) = run.ledger.jobs["a"].attempts
    record.promised = 12 << 30
    standing = Standing(run.ledger, Paths(), "running", {}, run.now)
    (job,) = status_json(standing)["jobs"]
    assert job["attempts"][0]["promised_gpu_memory"] == 12 << 30
    text = rendered(lambda console: print_job(console, standing, run.ledger.jobs["a"], ""))
    assert "shares  its card, of whose memory 12 GiB is promised to it" in text


def test_an_interrupted_attempt_is_told_from_a_failed_one() -> None:
    run = (
        History(1)
        .open()
        .jobs("a")
        .start("a", 0)
        .end("a", Interrupted(Quoted("drain"), Exited(143)))
    )
    run.add(f.JobDelayed("a", Quoted("GPU 0 was given back"))).start("a", 0).fail("a")
    (job,) = status_json(Standing(run.ledger, Paths(), "running", {}, run.now))["jobs"]
    assert [(a["state"], a["failure"]) for a in job["attempts"]] == [
        ("interrupted", None),
        ("failed", "exit"),
    ]


def shown(run: History, everything: bool = False, columns: int | None = None) -> str:
    reasons = {"e": "waits for a card: simulated GPU 0 runs d"}
    return rendered(
        lambda console: print_status(
            console,
            Standing(
                run.ledger, Paths(), "running", {n: Quoted(t) for n, t in reasons.items()}, run.now
            ),
            everything,
        ),
        columns,
    )


def test_people_see_what_runs_failed_and_why_the_rest_waits() -> None:
    assert shown(busy()) == (
        "nanobodies  running  1:47  simulated cards  gpulaunch-runs/nanobodies-20261120-074215\n"
        "1 waiting, 1 running, 1 succeeded, 1 failed, 1 skipped, 1 no longer in the job file\n"
        "simulated GPU 1: given back: no new starts there\n"
        "simulated GPU 2: set aside: its memory did not drain\n"
        "\n"
        " 1 failed  killed by SIGKILL: b\n"
        "1 running  d  1:00  simulated GPU 1\n"
        "1 waiting  waits for a card: simulated GPU 0 runs d: e\n"
        "1 skipped  needs b, which failed: c\n"
        "   1 gone  no longer in the job file, not run: gone\n"
        "\n"
        "more: status --all, status JOB"
    )


def test_all_lists_every_job_in_the_files_order() -> None:
    lines = shown(busy(), everything=True).splitlines()
    assert [line.split()[0] for line in lines[6:]] == ["a", "b", "c", "d", "e", "gone"]


def test_a_hundred_thousand_jobs_fit_on_a_screen() -> None:
    run = History(8).open().jobs(*(f"j{n}" for n in range(100_000)))
    for n in range(8):
        run.start(f"j{n}", n)
    lines = shown(run).splitlines()
    assert len(lines) < 24
    assert any(line.startswith("99,992 waiting  j8, j9, j10 and 99,989 more") for line in lines)


def test_a_narrow_terminal_keeps_whole_lines() -> None:
    run = History(1).open().jobs("a-name-that-is-much-too-long-for-it" * 3, "ok").start("ok", 0)
    assert all(len(line) <= 40 for line in shown(run, columns=40).splitlines()[3:])


def test_what_ran_when_the_supervisor_died_is_interrupted_and_waits() -> None:
    run = History().open().jobs("a", "b").start("a", 0)
    run.ledger.cut_off()
    found = status_json(
        Standing(
            run.ledger,
            Paths(),
            "interrupted",
            {"b": Quoted("not started: it was cut off")},
            run.now,
        )
    )
    assert found["run"]["counts"]["running"] == 0
    one, other = found["jobs"]
    assert (one["state"], one["reason"]) == ("waiting", "was running when the run was cut off")
    assert [attempt["state"] for attempt in one["attempts"]] == ["interrupted"]
    assert other["reason"] == "not started: it was cut off"
    assert [gpu["jobs"] for gpu in found["gpus"]] == [[], []]
    text = rendered(
        lambda c: print_status(c, Standing(run.ledger, Paths(), "interrupted", {}, run.now), True)
    )
    assert "a    waiting        was running when the run was cut off" in text


def test_a_resume_says_how_what_was_cut_off_really_ended() -> None:
    run = History().open().jobs("a").start("a", 0)
    run.ledger.cut_off()
    run.open().succeed("a")
    assert run.ledger.jobs["a"].state == "succeeded"
    assert run.ledger.counts["waiting"] == 0
    assert run.ledger.jobs["a"].attempts[0].state == "succeeded"


def test_the_clock_of_an_interrupted_run_stands_still() -> None:
    run = History(1).open().jobs("a").start("a", 0).pass_(30).add(f.Noted("x")).pass_(90_000)
    text = rendered(
        lambda c: print_status(c, Standing(run.ledger, Paths(), "interrupted", {}, run.now), True)
    )
    assert text.splitlines()[0].startswith("nanobodies  interrupted  0:30")
    assert "a    running  0:30  GPU 0" in text


def test_a_killed_run_lasted_until_it_was_last_seen_alive() -> None:
    run = History(1).open().jobs("a").start("a", 0).pass_(90_000)
    opened = run.ledger.opened
    assert opened is not None
    seen = Measured(seen=opened.utc + 14.5)
    shown = Standing(run.ledger, Paths(), "interrupted", {}, run.now, seen)
    told = status_json(shown)["run"]
    assert told["seconds"] == 14.5
    assert told["next_command"] == f"gpulaunch resume {Paths.root}"
    text = rendered(lambda c: print_status(c, shown))
    assert text.splitlines()[0].startswith("nanobodies  interrupted  0:14")


def test_a_live_run_says_how_long_it_may_still_take() -> None:
    run = History(1).open().jobs(*"abcdef")
    for name, seconds in zip("abcd", (600, 720, 660, 640), strict=True):
        run.start(name, 0).pass_(seconds).succeed(name)
    run.start("e", 0)
    told = status_json(Standing(run.ledger, Paths(), "running", {}, run.now))["run"]["seconds_left"]
    assert 1100 < told["low"] < 1310 < told["high"] < 1600
    shown = rendered(
        lambda c: print_status(c, Standing(run.ledger, Paths(), "running", {}, run.now))
    ).splitlines()[0]
    assert "min to go" in shown
    over = status_json(Standing(run.ledger, Paths(), "interrupted", {}, run.now))["run"]
    assert over["seconds_left"] is None, "nobody works on it"


def test_json_tells_what_was_measured_and_null_for_what_was_not() -> None:
    run = busy()
    first, second = AttemptId("a", 1), AttemptId("b", 1)
    use = AttemptUse(first, peak_gpu_memory=3 << 30, mean_gpu_utilization=62.51234, gpu_seconds=0.0)
    told = Measured({first: use}, {first: ("verified", ""), second: ("unverified", "who knows")})
    jobs = status_json(Standing(run.ledger, Paths(), "running", {}, run.now, told))["jobs"]
    attempts = {job["name"]: job["attempts"][0] for job in jobs if job["attempts"]}
    assert attempts["a"]["peak_gpu_memory"] == 3 << 30
    assert attempts["a"]["mean_gpu_utilization"] == 62.512
    assert attempts["a"]["gpu_seconds"] == 0.0
    assert attempts["a"]["pin"] == "verified"
    assert attempts["a"]["peak_resident"] is None
    assert (attempts["b"]["pin"], attempts["b"]["pin_reason"]) == ("unverified", "who knows")
    assert attempts["d"]["pin"] is None


def test_times_of_an_earlier_run_say_how_long_a_first_start_takes() -> None:
    run = History(1).open().jobs("a", "b", "c", "d").start("a", 0).pass_(60)
    before = dict.fromkeys("abcd", 300.0)

    def left(earlier: dict[str, float]) -> object:
        told = Standing(run.ledger, Paths(), "running", {}, run.now, earlier=lambda: earlier)
        return status_json(told)["run"]["seconds_left"]

    assert left({}) is None
    assert left(before) == {"low": 1140, "high": 1140}
    run.open()
    assert left(before) is None, "one that was taken up again knows by its own past"


def test_json_names_the_images_that_are_known_as_they_were_last() -> None:
    run = busy()
    source = ImageSource("img:latest", "docker")
    run.add(f.ImageKnown(source, "sha256:1", "sha256:a", "docker")).add(
        f.PullBegun(source, "docker")
    )
    run.add(f.ImageKnown(source, "sha256:2", "sha256:b", "docker", pulled=True))
    found = status_json(Standing(run.ledger, Paths(), "running", {}, run.now))
    assert found["run"]["images"] == [
        {"image": "img:latest", "engine": "docker", "id": "sha256:2", "digest": "sha256:b"}
    ]
