"""`gpulaunch run` from outside: what jobs see, what is left, how it exits."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path

from tests.cli.launcher import UNTIL_GO, Launcher


def test_every_job_sees_exactly_one_card_as_index(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: j-{{item}}
            foreach: {values: [1, 2, 3, 4, 5, 6]}
            run: echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GPULAUNCH_GPU_UUID"
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "3")
    assert result.status == 0, result.err
    for number in range(1, 7):
        mask, order, uuid = launcher.log(f"j-{number}").split()
        assert uuid == f"SIM-{mask}"
        assert order == "PCI_BUS_ID"


def test_a_job_without_cards_has_them_hidden(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: cpu, gpus: 0, run: 'echo "[${CUDA_VISIBLE_DEVICES-unset}]"'}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert launcher.log("cpu") == "[]\n"


def test_a_wide_job_sees_its_cards_in_order(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: wide, gpus: 3, run: 'echo $CUDA_VISIBLE_DEVICES; echo $GPULAUNCH_GPU_UUID'}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "3").status == 0
    assert launcher.log("wide") == "0,1,2\nSIM-0,SIM-1,SIM-2\n"


def test_exit_codes_signals_and_reasons_are_recorded(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: good, run: 'true'}
          - {name: three, run: exit 3}
          - {name: killed, run: kill -SEGV $$}
          - {name: absent, run: [no-such-program], env: {PATH: '{{out}}'}}
          - {name: silent, run: 'true', outputs: [result.txt]}
          - {name: slow, run: sleep 60, timeout: 300ms, grace: 10}
          - {name: hung, run: sleep 60, idle_timeout: 300ms, grace: 10}
          - {name: five, run: exit 5, success_codes: [0, 5]}
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "4")
    assert result.status == 1, result.err
    jobs = launcher.jobs()
    seen = {
        name: (j["state"], j["exit_code"], j["signal"], j["failure"]) for name, j in jobs.items()
    }
    assert seen == {
        "good": ("succeeded", 0, None, None),
        "three": ("failed", 3, None, "exit"),
        "killed": ("failed", None, 11, "signal"),
        "absent": ("failed", None, None, "not_started"),
        "silent": ("failed", 0, None, "missing_output"),
        "slow": ("failed", None, 15, "timeout"),
        "hung": ("failed", None, 15, "idle_timeout"),
        "five": ("succeeded", 5, None, None),
    }
    assert json.loads(launcher("status", "--json").out) == launcher.status()
    assert "no-such-program" in jobs["absent"]["reason"]
    assert "result.txt" in jobs["silent"]["reason"]


def test_a_retry_gets_a_new_log_and_an_empty_out(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: flaky
            retries: 2
            run: |
              ls -A {{out}} | wc -l
              echo {{attempt}} > {{out}}/file
              [ {{attempt}} -ge 3 ]
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert [launcher.log("flaky", n).strip() for n in (1, 2, 3)] == ["0", "0", "0"]
    assert (launcher.run / "results" / "flaky" / "file").read_text() == "3\n"
    attempts = launcher.jobs()["flaky"]["attempts"]
    assert [a["exit_code"] for a in attempts] == [1, 1, 0]


def test_needs_after_and_skipped(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: a, run: echo a > order}
          - {name: bad, run: exit 1}
          - {name: b, needs: [a], run: cat order; echo b >> order}
          - {name: never, needs: [bad], run: echo no}
          - {name: last, after: ["*a*"], gpus: 0, run: cat order}
          - {name: also-never, needs: [never], run: echo no}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 1
    jobs = launcher.jobs()
    assert jobs["b"]["state"] == jobs["last"]["state"] == "succeeded"
    assert jobs["never"]["state"] == jobs["also-never"]["state"] == "skipped"
    assert "bad" in jobs["never"]["reason"]
    assert launcher.log("b") == "a\n"


def test_a_service_is_up_for_those_that_need_it_and_stopped_after(launcher: Launcher) -> None:
    launcher.file(
        "server.py",
        """
        import http.server, sys
        port = int(sys.argv[1])
        handler = http.server.SimpleHTTPRequestHandler
        http.server.HTTPServer(("127.0.0.1", port), handler).serve_forever()
        """,
    )
    launcher.file(
        "ask.py",
        """
        import os, urllib.request
        address = os.environ["GPULAUNCH_ADDR_WEB"]
        print(urllib.request.urlopen(f"http://{address}/jobs.yaml").status)
        """,
    )
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: web
            gpus: 0
            run: [{sys.executable}, server.py, "{{{{port}}}}"]
            service: {{ready: "http://127.0.0.1:{{{{port}}}}/"}}
          - name: ask
            needs: [web]
            run: [{sys.executable}, ask.py]
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0, result.err
    assert launcher.log("ask") == "200\n"
    assert launcher.states() == {"web": "succeeded", "ask": "succeeded"}


def test_a_service_that_does_not_answer_in_time_fails_with_its_address(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        defaults: {timeout: 1h}
        jobs:
          - name: deaf
            gpus: 0
            run: exec sleep 600
            service: {ready: "tcp:{{port}}", ready_within: 0.2s}
          - {name: ask, needs: [deaf], gpus: 0, run: echo asked}
        """,
    )
    assert "a service, ready within 0.2 s" in launcher("check", "jobs.yaml", "--simulate", "1").out
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    assert launcher.states() == {"deaf": "failed", "ask": "skipped"}
    deaf = launcher.jobs()["deaf"]
    assert re.fullmatch(r"no answer at tcp:\d+ within 0.2 s", deaf["reason"])
    assert deaf["attempts"][-1]["failure"] == "not_ready"


def test_the_environment_is_as_the_contract_says(launcher: Launcher) -> None:
    launcher.environ |= {"RANK": "7", "SLURM_PROCID": "3", "MKL_NUM_THREADS": "9", "MINE": "x"}
    launcher.file(
        "show.py",
        "import json, os; print(json.dumps(dict(os.environ)))",
    )
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: show
            run: [{sys.executable}, show.py]
            env: {{HF_HOME: "/data/{{{{attempt}}}}", MINE: null}}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 0
    env = json.loads(launcher.log("show"))
    run = str(launcher.run)
    assert env["GPULAUNCH_RUN_DIR"] == run
    assert env["GPULAUNCH_JOB"] == "show"
    assert env["GPULAUNCH_ATTEMPT"] == "1"
    assert env["GPULAUNCH_OUT"] == f"{run}/out/show.1"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["MKL_NUM_THREADS"] == "9", "what the user set wins"
    assert int(env["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert env["HF_HOME"] == "/data/1"
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"]
    assert env["TRITON_CACHE_DIR"].endswith("SIM-0")
    assert not {"RANK", "SLURM_PROCID", "MINE"} & env.keys()


def test_values_of_the_environment_are_written_nowhere(launcher: Launcher) -> None:
    launcher.environ["SECRET_TOKEN"] = "hunter2-hunter2"
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true', timeout: 5s}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    for path in launcher.run.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    assert launcher.run.stat().st_mode & 0o777 == 0o700


def test_json_prints_the_journal_and_nothing_else(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: echo hi}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--json")
    assert result.status == 0
    assert result.out == (launcher.run / "events.jsonl").read_text()


def test_a_machine_without_a_card_names_simulate(launcher: Launcher) -> None:
    launcher.environ["CUDA_VISIBLE_DEVICES"] = ""
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    result = launcher("run", "jobs.yaml")
    assert result.status == 3
    assert "--simulate" in result.err
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_a_list_that_needs_no_card_runs_without_one(launcher: Launcher) -> None:
    launcher.environ["CUDA_VISIBLE_DEVICES"] = ""
    launcher.file("jobs.yaml", "jobs: [{name: a, gpus: 0, run: 'true'}]")
    assert launcher("run", "jobs.yaml").status == 0


def test_a_wrong_file_is_reported_whole_and_nothing_is_started(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: a, run: 'true', gpu: 2}
          - {name: a, run: 'true', retries: many}
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 2
    assert "jobs.yaml:3:" in result.err
    assert "gpus" in result.err
    assert "jobs.yaml:4:" in result.err
    assert "Traceback" not in result.err
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_more_cards_than_there_are_is_an_error_of_the_file(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, gpus: 3, run: 'true'}]")
    result = launcher("run", "jobs.yaml", "--simulate", "2")
    assert result.status == 2
    assert "3 cards" in result.err


def test_gpus_a_number_is_how_many_and_a_list_is_which(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: j-{{item}}
            foreach: {values: [1, 2, 3, 4]}
            run: echo $CUDA_VISIBLE_DEVICES; sleep 0.05
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "4", "--gpus", "[1,3]")
    assert "GPUs 1, 3 of 4 simulated cards" in result.err
    assert {launcher.log(f"j-{n}").strip() for n in range(1, 5)} == {"1", "3"}
    result = launcher("run", "jobs.yaml", "--simulate", "4", "--gpus", "1", "--new")
    assert "1 of 4 simulated cards, any" in result.err
    spans = [(a["started"], a["ended"]) for j in launcher.jobs().values() for a in j["attempts"]]
    spans.sort()
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


def test_only_brings_its_needs_along(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: a, run: 'true'}
          - {name: b, needs: [a], run: 'true'}
          - {name: c, run: 'true'}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--only", "b").status == 0
    assert launcher.states() == {"a": "succeeded", "b": "succeeded"}
    assert launcher("resume", "--only", "*").status == 0
    assert launcher.states()["c"] == "succeeded"


def test_fail_fast_starts_nothing_more(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: bad, run: exit 1, priority: 1}
          - {name: later, run: 'true'}
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--fail-fast")
    assert result.status == 1
    assert launcher.states() == {"bad": "failed", "later": "waiting"}
    assert "--fail-fast" in launcher.jobs()["later"]["reason"]


def test_fasta_records_become_jobs_with_their_own_files(launcher: Launcher) -> None:
    launcher.file("all.fasta", ">one x\nACD\nEF\n>two\nGG\n")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: fold-{{id}}
            foreach: {fasta: all.fasta}
            run: cat {{path}}; echo {{length}}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert launcher.log("fold-one") == ">one x\nACD\nEF\n5\n"
    assert launcher.log("fold-two") == ">two\nGG\n2\n"


def test_a_batch_gets_a_directory_of_links(launcher: Launcher) -> None:
    for n in range(5):
        launcher.file(f"in/{n}.txt", f"{n}\n")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: b-{{index}}
            foreach: in/*.txt
            batch: 2
            run: cat {{batch_dir}}/*.txt
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    text = "".join(sorted("".join(path.read_text() for path in (launcher.run / "logs").iterdir())))
    assert text.replace("\n", "") == "01234"


def test_python_is_the_interpreter_that_was_named(launcher: Launcher, tmp_path: Path) -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: a
            python: {sys.executable}
            run: python -c 'import sys; print(sys.executable)'
          - name: b
            python: {sys.executable}
            run: [python3, -c, 'import sys; print(sys.prefix)']
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert launcher.log("a").strip() == sys.executable
    assert launcher.log("b").strip() == sys.prefix


def test_detach_prints_the_run_directory_and_goes_on(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}; echo done'}}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--detach")
    assert result.status == 0, result.err
    run = Path(result.out.strip())
    launcher.wait_for("attempt_started", run=run)
    assert run == launcher.run
    launcher.file("go", "")
    assert launcher("wait", run).status == 0
    assert launcher.log("a") == "done\n"


def test_a_detached_run_does_not_mind_a_closed_terminal(launcher: Launcher) -> None:
    # It is bound to no test: where nobody lets it go on, it ends by itself.
    launcher.file("jobs.yaml", f"jobs: [{{name: a, timeout: 5m, run: '{UNTIL_GO}; echo done'}}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--detach").status == 0
    os.kill(launcher.wait_for("run_opened")[0]["pid"], signal.SIGHUP)
    assert launcher("ps").status == 0  # a whole command later
    launcher.file("go", "")
    assert launcher("wait").status == 0
    assert launcher.log("a") == "done\n"


def test_whoever_looks_after_detach_finds_every_job(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: gate, run: '{UNTIL_GO}'}}
          - {{name: "a-{{{{i}}}}", matrix: {{i: {list(range(2000))}}}, needs: [gate], run: exit 3}}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--detach").status == 0
    # `latest` leads to a run once it has started a job.
    assert len(json.loads(launcher("status", "--json").out)["jobs"]) == 2001
    assert launcher("cancel", "a-*").status == 0
    launcher.file("go", "")
    assert launcher("wait").status == 1
    assert launcher("retry", "a-*", "--detach").status == 0
    assert len(launcher.events("job_requeued")) == 2000
    launcher("wait")


def test_a_detached_run_that_ends_before_it_has_its_jobs_says_why_here(launcher: Launcher) -> None:
    launcher.environ["PYTHONPATH"] = str(launcher.path)
    launcher.file(
        "sitecustomize.py",
        """
        import gpulaunch.engines.local.setup as local
        from gpulaunch.base.errors import UsageError
        def refuse(*_): raise UsageError("no lease can be had")
        local.make = refuse
        """,
    )
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--detach")
    assert result.status == 2
    assert result.err.endswith("gpulaunch: no lease can be had\n")


def test_detach_of_a_wrong_file_says_so_here(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--detach")
    assert result.status == 2
    assert "run" in result.err
