"""`preload:` in whole runs: what is imported how often, what starts cold, and why."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher, OnDriver, Result
from tests.explain.support import FAKE, MIXING, REPORT
from tests.gpus.fake import FakeDriver
from tests.helpers import wait_until

SCRIPT = """
    import os, sys
    import heavy
    print(heavy.IMPORTED_BY == os.getpid(), *sys.argv[1:], heavy.MODE)
"""
HEAVY = """
    import os
    with open(os.path.join(os.path.dirname(__file__), "count"), "a") as file:
        file.write("x")
    IMPORTED_BY = os.getpid()
    MODE = os.environ.get("HEAVY_MODE", "")
"""


@pytest.fixture
def launcher(tmp_path: Path, driver: FakeDriver) -> Launcher:
    site = tmp_path / "site-packages"
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    launcher = OnDriver(tmp_path, driver, {"PYTHONPATH": path})
    launcher.file("site-packages/heavy.py", HEAVY)
    launcher.file("script.py", SCRIPT)
    return launcher


def imports(launcher: Launcher) -> int:
    path = launcher.path / "site-packages" / "count"
    return len(path.read_text()) if path.exists() else 0


def run(launcher: Launcher, text: str, *options: str, cards: int = 2, status: int = 0) -> Result:
    launcher.file("jobs.yaml", text.replace("PYTHON", sys.executable))
    result = launcher("run", "jobs.yaml", "--simulate", str(cards), *options)
    assert result.status == status, result.err
    return result


def notes(launcher: Launcher) -> list[str]:
    return [line["text"] for line in launcher.events("noted")]


def logs(launcher: Launcher, names: Sequence[str]) -> list[str]:
    return [launcher.log(name).rstrip("\n") for name in names]


ITEMS = """
    defaults: {preload: [heavy]}
    jobs:
      - name: a
        foreach: {values: [1, 2, 3, 4, 5]}
        run: [PYTHON, script.py, "{{item}}"]
      - name: b
        run: PYTHON script.py 'x y'
"""


def test_all_jobs_of_a_script_are_forked_after_one_import(launcher: Launcher) -> None:
    run(launcher, ITEMS)
    assert imports(launcher) == 1
    names = [*(f"a-{n}" for n in range(1, 6)), "b"]
    assert logs(launcher, names) == [*(f"False {n} " for n in range(1, 6)), "False x y "]
    assert [note[: note.index(", imported")] for note in notes(launcher)] == [
        "preload: heavy for script.py"
    ]


def test_auto_finds_what_the_script_imports_and_says_it(launcher: Launcher) -> None:
    text = ITEMS.replace("[heavy]", "auto")
    run(launcher, text)
    assert imports(launcher) == 1
    assert notes(launcher)[0].startswith("preload: heavy for script.py, imported in ")
    told = launcher("check", "jobs.yaml", "--simulate", "1").err.splitlines()
    assert [line for line in told if "preload" in line] == [
        "gpulaunch: preload: a-1: imports heavy once for all its jobs (auto, script.py)",
        "gpulaunch: preload: b: imports heavy once for all its jobs (auto, script.py)",
    ]
    assert imports(launcher) == 1


def test_no_preload_starts_every_job_cold(launcher: Launcher) -> None:
    run(launcher, ITEMS, "--no-preload")
    assert imports(launcher) == 6
    assert logs(launcher, ["b"]) == ["True x y "]
    assert notes(launcher) == []


def test_what_cannot_be_forked_starts_cold_and_is_told_once(launcher: Launcher) -> None:
    text = """
        defaults: {preload: heavy}
        jobs:
          - name: piped
            foreach: {values: [1, 2]}
            run: PYTHON script.py {{item}} | cat
          - name: isolated
            run: [PYTHON, -I, -c, "print(1)"]
          - name: other
            run: [echo, hello]
          - name: opted-out
            preload: no
            run: [PYTHON, script.py]
    """
    run(launcher, text, cards=1)
    assert logs(launcher, ["piped-1", "piped-2", "other"]) == ["True 1 ", "True 2 ", "hello"]
    assert notes(launcher) == [
        "preload: starts cold: a shell has to run it: it is more than one command of plain words",
        "preload: starts cold: with python's option -I no server can be made",
        "preload: starts cold: echo is no program of Python",
    ]
    told = launcher("check", "jobs.yaml", "--simulate", "1").err
    assert "preload: piped-1: starts cold: a shell has to run it" in told


def test_a_preload_that_cannot_be_shared_costs_its_jobs_nothing_but_time(
    launcher: Launcher,
) -> None:
    text = "import threading, time\n"
    text += "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    launcher.file("site-packages/heavy.py", text + "IMPORTED_BY = MODE = 0")
    run(launcher, ITEMS)
    assert logs(launcher, ["a-5"]) == ["False 5 0"]
    assert len(notes(launcher)) == 2  # an entry each
    assert "threads running" in notes(launcher)[0]


def test_jobs_share_an_import_only_if_what_it_read_is_the_same(launcher: Launcher) -> None:
    text = """
        defaults: {preload: [heavy]}
        jobs:
          - matrix: {mode: [fast, slow], seed: [0, 1, 2]}
            name: j-{{mode}}-{{seed}}
            env: {HEAVY_MODE: "{{mode}}", SEED: "{{seed}}"}
            run: [PYTHON, script.py]
    """
    run(launcher, text)
    assert imports(launcher) == 2
    names = [f"j-{mode}-{seed}" for mode in ("fast", "slow") for seed in range(3)]
    assert logs(launcher, names) == ["False fast"] * 3 + ["False slow"] * 3


def test_a_job_fails_forked_as_it_does_cold_and_is_retried(launcher: Launcher) -> None:
    launcher.file("script.py", "import heavy, sys\nsys.exit(3)\n")
    text = "jobs: [{name: j, preload: auto, retries: 1, run: [PYTHON, script.py]}]"
    run(launcher, text, status=1)
    job = launcher.jobs()["j"]
    assert (job["exit_code"], len(job["attempts"])) == (3, 2)
    assert imports(launcher) == 1
    launcher.file("script.py", "import heavy\n")
    assert launcher("retry").status == 0
    assert imports(launcher) == 2


def test_explain_reports_in_forked_jobs(launcher: Launcher) -> None:
    launcher.environ["PYTHONPATH"] = str(FAKE) + os.pathsep + launcher.environ["PYTHONPATH"]
    launcher.file("script.py", f"import torch\ntorch.CARDS = 1\n{MIXING}\n")
    text = """
        jobs:
          - {name: forked, explain: true, preload: [torch], run: [PYTHON, script.py]}
          - {name: cold, explain: true, run: [PYTHON, script.py]}
    """
    run(launcher, text, status=1)
    assert len(REPORT.findall(launcher.log("forked"))) == 1
    assert launcher.log("forked") == launcher.log("cold")
    assert notes(launcher)[0].startswith("preload: torch for script.py")


def test_a_library_of_ones_own_that_is_edited_meanwhile_is_imported_anew(
    launcher: Launcher,
) -> None:
    """The first job edits it: the second starts cold, the third is forked from the new one."""
    launcher.file("lab/own.py", "VALUE = 1\n")
    launcher.environ["PYTHONPATH"] += os.pathsep + str(launcher.path / "lab")
    launcher.file(
        "script.py",
        """
        import sys, own
        print(own.VALUE)
        if sys.argv[1] == "1":
            with open(own.__file__, "w") as file:
                file.write("VALUE = 'another'")
        """,
    )
    text = """
        defaults: {preload: [own]}
        jobs: [{name: a, foreach: {values: [1, 2, 3]}, run: [PYTHON, script.py, "{{item}}"]}]
    """
    run(launcher, text, cards=1)
    assert logs(launcher, ["a-1", "a-2", "a-3"]) == ["1", "another", "another"]
    kinds = [note.split()[1] for note in notes(launcher)]
    assert kinds == ["own", "starts", "own"]


# ── Servers and what ends them ──────────────────────────────────────────────────────────────────

LONG = """
    import os, sys, time
    import heavy
    print("begun", flush=True)
    end = sys.argv[1]
    while not os.path.exists(end): time.sleep(0.01)
    print("ended")
"""


def servers(launcher: Launcher) -> list[int]:
    """Its preload servers: children of their guards, with the run's directory in what they have."""
    mark = os.fsencode(launcher.path)
    found = []
    for name in os.listdir("/proc"):
        try:
            parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
            guarded = Path(f"/proc/{parent}/comm").read_text() == "keeper-preload\n"
            own = Path(f"/proc/{name}/comm").read_text()
            whole = Path(f"/proc/{name}/environ").read_bytes()
            if guarded and own != "keeper-guardian\n" and mark in whole:
                found.append(int(name))
        except OSError:  # it ended meanwhile, or is no process
            continue
    return found


def test_a_killed_server_costs_no_job_and_is_started_anew(launcher: Launcher) -> None:
    launcher.file("script.py", LONG)
    text = """
        defaults: {preload: [heavy], run: [PYTHON, script.py]}
        jobs:
          - name: a
            foreach: {values: [1, 2, 3]}
            run: [PYTHON, script.py, "end-{{item}}"]
    """.replace(", run: [PYTHON, script.py]}", "}")
    launcher.file("jobs.yaml", text.replace("PYTHON", sys.executable))
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        (server,) = wait_until(lambda: servers(launcher))
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: servers(launcher) == [])
        for item in (1, 2, 3):
            launcher.file(f"end-{item}", "")
        assert process.wait(60) == 0
    assert set(launcher.states().values()) == {"succeeded"}
    assert logs(launcher, ["a-1", "a-3"]) == ["begun\nended"] * 2
    assert imports(launcher) == 2


HANGING = "import time\nopen('hangs', 'w').close()\ntime.sleep(600)\n"


def test_a_job_that_waits_for_an_import_can_be_cancelled(launcher: Launcher) -> None:
    launcher.file("site-packages/heavy.py", HANGING)
    launcher.file("jobs.yaml", ITEMS.replace("PYTHON", sys.executable))
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        wait_until((launcher.path / "hangs").exists)
        assert launcher("cancel", "-r", launcher.run, "a-1").status == 0
        wait_until(lambda: launcher.states()["a-1"] == "cancelled", 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    wait_until(lambda: servers(launcher) == [])
    assert "running" not in launcher.states().values()


def test_what_waits_for_an_import_ends_with_a_killed_launcher(launcher: Launcher) -> None:
    launcher.file("site-packages/heavy.py", HANGING)
    launcher.file("jobs.yaml", ITEMS.replace("PYTHON", sys.executable))
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        wait_until((launcher.path / "hangs").exists)
        assert len(servers(launcher)) == 1
        process.kill()
        wait_until(lambda: servers(launcher) == [])
    launcher.file("site-packages/heavy.py", HEAVY)
    assert launcher("resume").status == 0
    assert logs(launcher, ["b"]) == ["False x y "]


HOOKED = """
    import os
    def hook():
        with open("forks", "a") as file:
            file.write("x")
        if os.path.getsize("forks") > 2:
            DOES
    os.register_at_fork(after_in_child=hook)
    IMPORTED_BY = MODE = 0
"""


@pytest.mark.parametrize("does", ["os._exit(0)", "os.read(os.pipe()[0], 1)"])
def test_what_a_hook_at_forks_holds_up_starts_cold_and_costs_no_attempt(
    launcher: Launcher, does: str
) -> None:
    path = str(launcher.path / "forks")
    text = HOOKED.replace("DOES", does).replace('"forks"', repr(path))
    launcher.file("site-packages/heavy.py", text)
    run(launcher, ITEMS.replace("[heavy]", "[heavy], timeout: 15s"))
    assert set(launcher.states().values()) == {"succeeded"}
    assert len(launcher.events("attempt_ended")) == 6
    assert logs(launcher, ["a-5", "b"]) == ["False 5 0", "False x y 0"]
    told = [note for note in notes(launcher) if "os.register_at_fork" in note]
    assert 1 <= len(told) <= 2  # once for each entry
    wait_until(lambda: family(launcher) == [])


def family(launcher: Launcher) -> list[int]:
    """Every process that has the run's directory in its environment, but for the tests' own."""
    mark = os.fsencode(launcher.path)
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if mark in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append(int(path.parent.name))
    return found
