"""A client drives runs on pretend cards, as an agent would."""

from __future__ import annotations

from gpulaunch.mcp.arguments import MAX_MEMBER
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.journal.facts import added
from tests.journal.made import STARTED, made
from tests.mcp.client import Talk, server_of_this_process, talk

JOBS = """
    jobs:
      - {name: "a-{{n}}", matrix: {n: [1, 2]}, run: "echo card $CUDA_VISIBLE_DEVICES"}
      - {name: b, run: "echo looking; test -e mended"}
      - {name: c, run: "true", needs: [b], gpus: 0}
"""


def test_a_run_is_checked_started_followed_explained_mended_and_retried(launcher: Launcher) -> None:
    file = launcher.file("jobs.yaml", JOBS)

    async def conversation(to: Talk) -> None:
        plan = await to.tell("check", job_file="jobs.yaml", simulate=2)
        assert (plan["total_jobs"], plan["cards"]) == (4, "all 2 simulated cards")
        assert not (launcher.path / "gpulaunch-runs").exists()

        begun = await to.tell("run", job_file="jobs.yaml", simulate=2)
        assert begun["job_file"] == str(file)
        assert any("2 simulated cards" in line for line in begun["notes"])
        assert (await to.tell("status", run=begun["run"], limit=1))["total"] == 4

        told = await to.over(begun["run"])
        assert told["run"]["counts"]["succeeded"] == 2
        assert [(job["name"], job["state"]) for job in told["jobs"]] == [
            ("b", "failed"),
            ("c", "skipped"),
            ("a-1", "succeeded"),
            ("a-2", "succeeded"),
        ]
        why = await to.tell("why", job="b")
        assert (why["job"]["failure"], why["job"]["exit_code"]) == ("exit", 1)
        assert (why["log_end"], why["command"]) == (["looking"], "echo looking; test -e mended")
        assert "b" in (await to.tell("why", job="c"))["job"]["reason"]

        logs = await to.tell("logs", failed=True)
        assert [(log["job"], log["text"]) for log in logs["logs"]] == [("b", "looking")]
        assert {log["text"] for log in (await to.tell("logs", jobs=["a-*"]))["logs"]} == {
            "card 0",
            "card 1",
        }
        (launcher.path / "mended").touch()
        again = await to.tell("retry")
        assert again["was_alive"] is False
        assert any("2 done, 2 again" in line for line in again["notes"])
        told = await to.over()
        assert (told["run"]["state"], told["run"]["dir"]) == ("succeeded", begun["run"])
        assert (await to.tell("why", job="b"))["total_attempts"] == 2

    talk(launcher, conversation)


def test_jobs_join_a_live_run_go_again_and_are_stopped_by_name(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml", f"jobs: [{{name: gate, run: '{UNTIL_GO}'}}, {{name: b, run: exit 3}}]"
    )
    more = launcher.file("more.yaml", "jobs: [{name: from-file, run: 'true', needs: [gate]}]")

    async def conversation(to: Talk) -> None:
        run = (await to.tell("run", job_file="jobs.yaml", simulate=2))["run"]
        launcher.wait_for("attempt_ended")
        told = await to.tell("add", command="echo $X; pwd", env={"X": "here"}, cwd="/", gpus=0)
        assert (told["names"], told["run"]) == (["echo-1"], run)
        argv = ["printf", "%s", "a  b"]
        await to.tell("add", command=argv, name="argv", after=["echo-1"], timeout="1m")
        await to.tell("add", job_file=str(more))
        text = "jobs: [{name: 'x-{{item}}', foreach: {values: [1, 2]}, run: sleep 600, gpus: 0}]"
        assert (await to.tell("add", text=text))["total"] == 2
        launcher.wait_for("job_settled", 3)  # b, echo-1 and argv
        logs = await to.tell("logs", jobs=["echo-1", "argv"])
        assert {log["job"]: log["text"] for log in logs["logs"]} == {
            "echo-1": "here\n/",
            "argv": "a  b",
        }
        assert "gate" in (await to.tell("why", job="from-file"))["job"]["reason"]

        again = await to.tell("retry", jobs=["b"])
        assert again["was_alive"] is True
        launcher.wait_for("attempt_ended", 4)

        stopped = await to.tell("cancel", jobs=["x-*"])
        assert (stopped["names"], stopped["total"]) == (["x-1", "x-2"], 2)
        (launcher.path / "go").touch()
        told = await to.over()
        assert {job["name"]: job["state"] for job in told["jobs"]} == {
            "b": "failed",
            "gate": "succeeded",
            "echo-1": "succeeded",
            "argv": "succeeded",
            "from-file": "succeeded",
            "x-1": "cancelled",
            "x-2": "cancelled",
        }

    talk(launcher, conversation)


def test_a_text_is_kept_as_a_file_whose_run_is_known_as_any_files(launcher: Launcher) -> None:
    text = f"name: typed\njobs: [{{name: a, run: '{UNTIL_GO}'}}]\n"

    async def conversation(to: Talk) -> None:
        sub = launcher.path / "sub"
        sub.mkdir()
        assert (await to.tell("check", text=text, simulate=1))["name"] == "typed"
        assert [path.name for path in launcher.path.iterdir()] == ["sub"]
        begun = await to.tell("run", text=text, simulate=1, cwd="sub")
        (file,) = sub.glob("*.yaml")
        assert (begun["job_file"], file.read_text()) == (str(file), text)
        assert begun["run"].startswith(str(sub / "gpulaunch-runs" / "typed-"))

        refused = await to.refused("run", text=text, simulate=1, cwd="sub")
        assert "a run of this file is alive" in refused
        assert "go_on: true" in refused
        file.write_text(text + "# by hand\n")
        assert "was changed" in await to.refused("run", text=text, simulate=1, cwd="sub")

        await to.tell("cancel", run=begun["run"], all=True)
        assert (await to.over(begun["run"]))["run"]["state"] == "failed"
        file.write_text(text)
        (sub / "go").touch()
        again = await to.tell("run", text=text, cwd="sub", go_on=True)
        assert again["run"] == begun["run"]
        assert (await to.over(begun["run"]))["run"]["state"] == "succeeded"

    talk(launcher, conversation)


def test_a_text_with_a_mistake_leaves_no_file(launcher: Launcher) -> None:
    async def conversation(to: Talk) -> None:
        told = await to.refused("run", text="jobs: [{rum: x}, {run: 'true', gpus: 9}]", simulate=2)
        assert "jobs[0].rum: unknown key" in told
        assert ".yaml:1:" in told
        assert list(launcher.path.iterdir()) == []

    talk(launcher, conversation)


def test_ten_thousand_jobs_are_counted_and_cut(launcher: Launcher) -> None:
    names = ["a", *(f"fold-{n:05}" for n in range(1, 10_000))]
    made(launcher.path, facts=[*map(added, names), *STARTED[1:]])

    async def conversation(to: Talk) -> None:
        whole = await to.client.call_tool("status", {})
        assert len(whole.content[0].model_dump_json()) < 40_000
        told = await to.tell("status")
        assert told["run"]["counts"]["waiting"] == 10_000
        assert (told["total"], len(told["jobs"])) == (10_000, 50)
        some = await to.tell("status", jobs=["fold-0000*"], states=["waiting"], limit=3)
        assert (some["total"], len(some["jobs"])) == (9, 3)
        assert (await to.tell("status", states=["failed"]))["total"] == 0
        assert "fits 9 jobs" in await to.refused("why", job="fold-0000*")

    talk(launcher, conversation)


def test_a_job_with_an_endless_command_can_be_told_of(launcher: Launcher) -> None:
    words = ", ".join(["abcdefghi"] * 2 * (MAX_MEMBER // 10))
    launcher.file("jobs.yaml", f"jobs: [{{name: a, gpus: 0, run: ['true', {words}]}}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0

    async def conversation(to: Talk) -> None:
        command = (await to.tell("why", job="a"))["command"]
        assert (len(command), command[-1]) == (MAX_MEMBER, "…")

    talk(launcher, conversation)


def test_the_commands_of_a_list_start_where_cwd_says(launcher: Launcher) -> None:
    launcher.file("lists/commands.txt", "pwd\n")
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}'}}]")
    here = launcher.path / "here"
    here.mkdir()
    asked = {"job_file": "../lists/commands.txt", "cwd": "here"}

    async def conversation(to: Talk) -> None:
        assert (await to.tell("check", **asked, simulate=1))["jobs"][0]["cwd"] == str(here)
        run = (await to.tell("run", **asked, simulate=1))["run"]
        await to.over(run)
        assert (await to.tell("logs", run=run))["logs"][0]["text"] == str(here)
        run = (await to.tell("run", job_file="jobs.yaml", simulate=2))["run"]
        await to.tell("add", **asked, run=run)
        (launcher.path / "go").touch()
        await to.over(run)
        (log,) = (await to.tell("logs", run=run, jobs=["pwd*"]))["logs"]
        assert log["text"] == str(here)

    talk(launcher, conversation)


def test_a_long_log_is_cut_to_its_last_lines_and_bytes(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml", "jobs: [{name: a, run: 'seq 100000; printf 50%%; printf \"\\r100%%\\n\"'}]"
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0

    async def conversation(to: Talk) -> None:
        (log,) = (await to.tell("logs", jobs=["a"], lines=3))["logs"]
        assert (log["text"], log["cut"]) == ("99999\n100000\n100%", True)
        (log,) = (await to.tell("logs", lines=1000))["logs"]
        assert log["text"].startswith("99002\n")

    talk(launcher, conversation)


def test_the_cards_are_told_with_what_is_wrong(launcher: Launcher) -> None:
    async def conversation(to: Talk) -> None:
        told = await to.tell("gpus")
        assert told["gpus"] or told["notes"]
        assert not server_of_this_process().children(recursive=True)

    talk(launcher, conversation)


def test_the_results_of_runs_stack_and_are_cut_and_sorted(launcher: Launcher) -> None:
    launcher.file(
        "sweep.yaml",
        """
        jobs:
          - name: "t-{{n}}"
            matrix: {n: [1, 2, 3]}
            run: 'printf "{\\"loss\\": {\\"last\\": 0.{{n}}}}" > {{out}}/metrics.json'
        """,
    )

    async def conversation(to: Talk) -> None:
        runs = [
            (await to.tell("run", job_file="sweep.yaml", simulate=2, new=new))["run"]
            for new in (False, True)
            if not new or await to.over()
        ]
        await to.over(runs[1])
        told = await to.tell("results", runs=runs, sort="-loss.last", limit=3)
        assert told["total"] == 6
        assert [(row["n"], row["loss.last"]) for row in told["rows"]] == [(3, 0.3)] * 2 + [(2, 0.2)]
        assert [run["dir"] for run in told["runs"]] == runs
        only = await to.tell("results", jobs=["t-1"], files=["nothing.json"])
        assert [row["name"] for row in only["rows"]] == ["t-1"]
        assert "1 of 1 job that succeeded left none" in only["notes"][-1]

    talk(launcher, conversation)
