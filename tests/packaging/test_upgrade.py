"""gpulaunch is upgraded or removed by pip, in an environment of its own, while a run of it lives.

The version that is installed meanwhile has no module of the one before, so that whatever is still
looked for there is missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile, ZipInfo

import pytest

from tests.helpers import goes_along, wait_until
from tests.packaging.support import ROOT

KEPT = "    sys.meta_path.insert(0, self)\n"
"""What ends the keeping of files in `own_files`; in the tests' wheel it leaves a file as well."""
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
EXECUTOR = """\
    import os
    from gpulaunch.executor import GpuExecutor, WorkerDiedError

    with GpuExecutor(simulate=1) as executor:
        assert executor.submit(abs, -1).result() == 1
        input()
        try:
            executor.submit(os._exit, 3).result()
        except WorkerDiedError:
            print(list(executor.map(abs, [-2, -3])))
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
    """The package as it is here; it keeps its files at once, and says when it has."""
    found = {
        str(path.relative_to(ROOT)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in sorted((ROOT / "gpulaunch").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    text, mode = found["gpulaunch/own_files.py"]
    for before, after in (
        (b"KEPT_AFTER = 10.0", b"KEPT_AFTER = 0.1"),
        (KEPT.encode(), KEPT.encode() + b"        open(os.environ['KEPT'], 'w').close()\n"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    return {**found, "gpulaunch/own_files.py": (text, mode)}


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
def begun(
    installed: Installation, at: Path, program: str, *words: str
) -> Iterator[subprocess.Popen[str]]:
    """A program of the environment, once it has kept its files."""
    kept = at / "kept"
    theirs = {name: text for name, text in os.environ.items() if not name.startswith("GPULAUNCH_")}
    process = subprocess.Popen(
        [installed.bin / program, *words],
        cwd=at,
        env={**theirs, "KEPT": str(kept), "PATH": f"{installed.bin}:{os.environ['PATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    try:
        wait_until(lambda: kept.exists() or process.poll() is not None, 60)
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], at: Path) -> str:
    """What the run has printed, once the jobs were let go and it has succeeded, with a report."""
    (at / "go").touch()
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    assert process.returncode == 0, out + err
    run = at / "gpulaunch-runs/latest"
    assert (run / "report.html").exists(), err
    assert "was replaced or removed: the run goes on with a copy of it, in " in out + err
    assert not list(run.glob(".gpulaunch-files-*"))
    return out + err


def test_a_run_is_the_same_after_an_upgrade_whatever_its_jobs_are(
    installed: Installation, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text(dedent(EVERY_KIND))
    (tmp_path / "at.py").write_text("def go(item):\n    print(item)\n")
    (tmp_path / "loop.sh").write_text("while read -r item; do echo 0 >&3; done\n")
    with begun(installed, tmp_path, "gpulaunch", "run", "jobs.yaml", "--simulate", "1") as process:
        installed.upgrade()
        said = ended(process, tmp_path)
    assert "10 succeeded" in said
    assert "json for at.py, imported in" in said  # its server was started
    assert (tmp_path / "told").exists()


def test_a_run_outlives_its_installation(installed: Installation, tmp_path: Path) -> None:
    """All its jobs start at once, so that the report's process lives from the beginning."""
    (tmp_path / "jobs.yaml").write_text(dedent(ALL_AT_ONCE))
    with begun(installed, tmp_path, "gpulaunch", "run", "jobs.yaml", "--simulate", "1") as process:
        installed.remove()
        ended(process, tmp_path)


def test_an_executor_starts_workers_after_an_upgrade(
    installed: Installation, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(dedent(EXECUTOR))
    with begun(installed, tmp_path, "python", "script.py") as process:
        installed.upgrade()
        out, err = process.communicate("\n", timeout=60)
    assert (out, process.returncode) == ("[2, 3]\n", 0), err
