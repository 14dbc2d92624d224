"""gpulaunch is upgraded or removed by pip, in an environment of its own, while a run of it lives.

The version that is installed meanwhile has no module of the one before, so that whatever is still
looked for there is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile, ZipInfo

import pytest

from tests.helpers import goes_along, wait_until
from tests.packaging.support import ROOT

READY = "    queries()\n    script()\n"
"""What a run imports last, in `upgrades`; in the tests' wheel it leaves a file as well."""
EVERY_KIND = """\
    notify: [{run: cat > told}]
    jobs:
      - {name: gate, run: "until [ -e go ]; do sleep 0.05; done"}
      - {name: plain, needs: [gate], run: echo plain}
      - {name: again, needs: [gate], retries: 1, run: "[ $GPULAUNCH_ATTEMPT = 2 ]"}
      - {name: call, needs: [gate], foreach: {values: [1, 2]}, worker: {function: "at.py:go"}}
      - {name: line, needs: [gate], foreach: {values: [1, 2]}, worker: {run: [sh, loop.sh]}}
      - {name: pre, needs: [gate], matrix: {n: [1, 2]}, preload: [json], run: [python3, at.py]}
      - {name: explained, needs: [gate], explain: true, run: python3 at.py}
    """
ALL_AT_ONCE = """\
    jobs:
      - name: one
        retries: 1
        run: "until [ -e go ]; do sleep 0.05; done; [ $GPULAUNCH_ATTEMPT = 2 ]"
    """


def wheel(into: Path, version: str, files: Mapping[str, tuple[bytes, int]]) -> Path:
    about = f"gpulaunch-{version}.dist-info"
    told = {
        "METADATA": f"Metadata-Version: 2.1\nName: gpulaunch\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[console_scripts]\ngpulaunch = gpulaunch.__main__:command\n",
    }
    whole = {**files, **{f"{about}/{name}": (text.encode(), 0o644) for name, text in told.items()}}
    rows = [f"{name},,\n" for name in (*whole, f"{about}/RECORD")]
    whole[f"{about}/RECORD"] = ("".join(rows).encode(), 0o644)
    made = into / f"gpulaunch-{version}-py3-none-any.whl"
    with ZipFile(made, "w") as archive:
        for name, (data, mode) in whole.items():
            info = ZipInfo(name)
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, data)
    return made


def present() -> dict[str, tuple[bytes, int]]:
    """The package as it is here; a run imports all at once, and says when it has."""
    found = {
        str(path.relative_to(ROOT)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in sorted((ROOT / "gpulaunch").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    text, mode = found["gpulaunch/run/code_watch.py"]
    leaves_a_file = "    import os\n\n    open(os.environ['READY'], 'w').close()\n"
    for before, after in (
        (b"IMPORT_AFTER = 5.0", b"IMPORT_AFTER = 0.1"),
        (READY.encode(), (READY + leaves_a_file).encode()),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    return {**found, "gpulaunch/run/code_watch.py": (text, mode)}


class Installation:
    """An environment into which pip installs one of two versions."""

    def __init__(self, at: Path) -> None:
        venv.create(at / "env", symlinks=True)
        self.bin = at / "env/bin"
        site = self.bin.parent / f"lib/python{sysconfig.get_python_version()}/site-packages"
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        of_next = {"__init__": "", "__main__": "def command(): print('the next version')"}
        files = {f"gpulaunch/{name}.py": (of_next[name].encode(), 0o644) for name in of_next}
        self.present, self.next = wheel(at, "0.1", present()), wheel(at, "0.2", files)

    def pip(self, *words: str | Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--quiet"]
        subprocess.run([*pip, *map(str, words)], check=True, capture_output=True)

    def install(self, what: Path) -> None:
        self.pip("install", "--no-deps", "--no-index", "--no-compile", "--force-reinstall", what)

    def upgrade(self) -> None:
        self.install(self.next)
        done = subprocess.run([self.bin / "gpulaunch"], capture_output=True, text=True, check=True)
        assert done.stdout == "the next version\n"

    def remove(self) -> None:
        self.pip("uninstall", "--yes", "gpulaunch")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    pytest.importorskip("pip")
    return Installation(tmp_path_factory.mktemp("installation"))


@pytest.fixture
def installed(environment: Installation) -> Installation:
    environment.install(environment.present)
    return environment


@contextmanager
def begun(installed: Installation, at: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of the environment's gpulaunch, once it has imported what it may need."""
    ready = at / "ready"
    theirs = {name: text for name, text in os.environ.items() if not name.startswith("GPULAUNCH_")}
    process = subprocess.Popen(
        [installed.bin / "gpulaunch", "run", "jobs.yaml", "--simulate", "1"],
        cwd=at,
        env={**theirs, "READY": str(ready), "PATH": f"{installed.bin}:{os.environ['PATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, 60)
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], at: Path) -> str:
    """What the run has printed, once the jobs were let go and it has succeeded."""
    (at / "go").touch()
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    assert process.returncode == 0, out + err
    assert not list((at / "gpulaunch-runs/latest").glob("programs.*"))
    return out + err


def events(at: Path, kind: str) -> list[str]:
    """The jobs of the events of one kind, in their order."""
    lines = (at / "gpulaunch-runs/latest/events.jsonl").read_text().splitlines()
    return [event["job"] for event in map(json.loads, lines) if event["e"] == kind]


def test_a_run_loses_no_job_by_an_upgrade_whatever_its_jobs_are(
    installed: Installation, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text(dedent(EVERY_KIND))
    (tmp_path / "at.py").write_text("def go(item):\n    print(item)\n")
    (tmp_path / "loop.sh").write_text("while read -r item; do echo 0 >&3; done\n")
    with begun(installed, tmp_path) as process:
        installed.upgrade()
        said = ended(process, tmp_path)
    assert "10 succeeded" in said
    assert "json for at.py, imported in" in said  # its server was started
    launched = Counter(events(tmp_path, "attempt_launched"))
    assert launched.pop("again") == 2
    assert set(launched.values()) == {1}
    assert len(events(tmp_path, "job_settled")) == len(launched) + 1 == 10


def test_a_run_outlives_its_installation(installed: Installation, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(dedent(ALL_AT_ONCE))
    with begun(installed, tmp_path) as process:
        installed.remove()
        ended(process, tmp_path)
