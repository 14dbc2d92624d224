"""Jobs that try the launcher: huge logs, long lines, closed streams, many descriptors."""

from __future__ import annotations

import os
import resource
import sys

import pytest

from tests.cli.launcher import Launcher


def run_python(launcher: Launcher, text: str, *options: str) -> None:
    launcher.file("job.py", text)
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: [{sys.executable}, job.py]}}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1", *options, timeout=200)
    assert result.status in (0, 1), result.err


def test_a_log_of_five_gigabytes(launcher: Launcher) -> None:
    """A hole but for its last lines: nobody reads more of it than the end."""
    run_python(
        launcher,
        """
        import os
        os.ftruncate(1, 5_000_000_000)
        os.write(1, b"\\n" + b"x" * 99 + b"\\n")
        """,
    )
    log = launcher.run / "logs" / "a.1.log"
    assert log.stat().st_size == 5_000_000_101
    assert launcher.states() == {"a": "succeeded"}
    assert launcher("logs", "a", "-n", "1").out == "x" * 99 + "\n"


def test_a_log_line_of_100_megabytes(launcher: Launcher) -> None:
    run_python(
        launcher,
        """
        import os, sys
        os.write(1, b"y" * 100_000_000)
        os.write(1, b"\\nlast words\\n")
        sys.exit(1)
        """,
    )
    assert (launcher.run / "logs" / "a.1.log").stat().st_size == 100_000_012
    assert launcher("logs", "a", "-n", "1").out == "last words\n"


def test_a_job_that_closes_its_standard_output(launcher: Launcher) -> None:
    run_python(
        launcher,
        """
        import os, sys, time
        os.close(1); os.close(2)
        time.sleep(0.2)
        os._exit(4)
        """,
    )
    assert launcher.jobs()["a"]["exit_code"] == 4


def test_a_job_with_five_thousand_descriptors(launcher: Launcher) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 5200:
        pytest.skip(f"the hard limit of open files is {hard}")
    run_python(
        launcher,
        """
        import os, resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 6000) if hard > 0 else 6000, hard))
        print(len([os.open("/dev/null", os.O_RDONLY) for _ in range(5000)]))
        """,
    )
    assert launcher.log("a") == "5000\n"


def test_a_job_has_no_descriptor_but_its_streams_and_leases(launcher: Launcher) -> None:
    run_python(
        launcher,
        """
        import os
        fds = [int(name) for name in os.listdir("/proc/self/fd")]
        print(sorted(fd for fd in fds if 3 <= fd < 100))
        print([os.readlink(f"/proc/self/fd/{fd}")[:7] for fd in fds if fd >= 100])
        """,
    )
    small, leases = launcher.log("a").splitlines()
    assert small in ("[]", "[3]"), "3 is the directory being listed"
    assert leases == "['socket:']"


def test_names_and_values_with_every_awkward_character(launcher: Launcher) -> None:
    awkward = ["a b", "c'd", 'e"f', "$(touch pwned)", "`touch pwned`", "g;h", "ü", "-n", "*"]
    for name in awkward:
        (launcher.path / "in").mkdir(exist_ok=True)
        (launcher.path / "in" / f"{name}.txt").write_text(name)
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: "j {{stem}}"
            foreach: in/*.txt
            run: |
              printf %s "{{stem}}" > {{out}}/x
              cmp {{path}} {{out}}/x
              test '{{stem}}' = {{stem}}
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "2")
    assert result.status == 0, result.err
    assert set(launcher.states()) == {f"j {name}" for name in awkward}
    assert not (launcher.path / "pwned").exists()


def test_a_command_line_of_a_megabyte(launcher: Launcher) -> None:
    script = "true " + " ".join(["x" * 100] * 1200)
    launcher.file("jobs.yaml", f'jobs: [{{name: a, run: "{script}"}}]')
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert os.path.getsize(launcher.run / "events.jsonl") < 20_000
