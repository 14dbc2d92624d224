"""Tries what a release consists of: installed as people do, in environments that are empty.

Used by .ci/release. In each the version must name the commit, and the quick start's list must run
to its end on two pretend cards.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from distributions import ROOT, Work


def pythons() -> dict[str, str]:
    """Return each version that pyproject.toml names, with an interpreter; empty for none."""
    text = (ROOT / "pyproject.toml").read_text()
    minors = re.findall(r"Programming Language :: Python :: (3\.\d+)", text)
    return {minor: _interpreter(minor) for minor in minors}


def _interpreter(minor: str) -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    here = sorted(pyenv.glob(f"versions/{minor}.*/bin/python3"))[-1:]
    for path in [*map(str, here), shutil.which(f"python{minor}")]:
        # One of pyenv's shims stands also for a version that is not chosen, and fails.
        if path:
            done = subprocess.run([path, "-c", ""], capture_output=True, check=False)
            if done.returncode == 0:
                return path
    return ""


def everywhere(work: Work, version: str) -> None:
    """Try the wheels on every Python here, the sources by pip, and what runs a wheel by itself."""
    here = {minor: python for minor, python in pythons().items() if python}
    (wheel,) = work.files("gpulaunch-*.whl")
    (sources,) = work.files("gpulaunch-*.tar.gz")
    trial = Trial(work, f"gpulaunch {version} ({work.commit[:7]})\n")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tries = [pool.submit(trial.wheel, wheel, minor, python) for minor, python in here.items()]
        oldest, newest = next(iter(here.values())), [*here.values()][-1]
        tries.append(pool.submit(trial.lowest, wheel, oldest))
        tries.append(pool.submit(trial.sources, sources, oldest))
        tries.append(pool.submit(trial.runners, wheel, newest))
        tries.append(pool.submit(trial.conda, wheel))
        for each in tries:
            print(each.result(), flush=True)


class Trial:
    def __init__(self, work: Work, says: str) -> None:
        self.work, self.says = work, says

    def wheel(self, wheel: Path, name: str, python: str) -> str:
        """Install the wheel by itself, then with everything that it can bring."""
        uv, at = self.work.tool("uv"), self.work.place / name
        self.work.run(uv, "venv", "--quiet", "--python", python, at)
        install = (uv, "pip", "install", "--quiet", "--python", at)
        self.work.run(*install, wheel)
        self._quickstart(at)
        plugins = [one for one in self.work.files("*.whl") if one.name[:10] != "gpulaunch-"]
        self.work.run(*install, f"gpulaunch[all] @ {wheel.as_uri()}", *plugins)
        self.work.run(uv, "pip", "check", "--python", at)
        return f"{wheel.name}: installed and run on {self._version(at)}, alone and with [all]"

    def lowest(self, wheel: Path, python: str) -> str:
        """Install the oldest versions that pyproject.toml allows, as other tools' pins may."""
        uv, at = self.work.tool("uv"), self.work.place / "lowest"
        self.work.run(uv, "venv", "--quiet", "--python", python, at)
        install = (uv, "pip", "install", "--quiet", "--resolution", "lowest-direct", "--python", at)
        self.work.run(*install, wheel)
        self._quickstart(at)
        self.work.run(*install, f"gpulaunch[all] @ {wheel.as_uri()}")
        (at / "all.sh").write_text("CUDA_VISIBLE_DEVICES=0 python a.py &\n")
        self.work.run(at / "bin/gpulaunch", "init", "all.sh", at=at)
        asked = {
            "_GPULAUNCH_COMPLETE": "zsh_complete",
            "COMP_WORDS": "gpulaunch wa",
            "COMP_CWORD": "1",
        }
        if "wait" not in self.work.run(at / "bin/gpulaunch", **asked):
            sys.exit(f"{at}: nothing is completed")
        return f"{wheel.name}: installed and run with the oldest versions that it takes"

    def sources(self, sources: Path, python: str) -> str:
        """Install the sources as pip does, with nothing but a Python."""
        at = self.work.place / "of-sources"
        self.work.run(python, "-m", "venv", at)
        self.work.run(at / "bin/pip", "install", "--quiet", sources)
        self._quickstart(at)
        return f"{sources.name}: installed by pip and run on {self._version(at)}"

    def runners(self, wheel: Path, python: str) -> str:
        """Run the wheel without installing it, as pipx and uvx do."""
        home = {"PIPX_HOME": str(self.work.place / "pipx")}
        pipx = (self.work.tool("pipx"), "run", "--quiet", "--python", python, "--spec", wheel)
        uvx = (self.work.tool("uvx"), "--quiet", "--python", python, "--from", wheel)
        for runner in (pipx, uvx):
            said = self.work.run(*runner, "gpulaunch", "--version", **home)
            self._is_version(said, f"{runner[0]}")
        return f"{wheel.name}: run by pipx and uvx"

    def conda(self, wheel: Path) -> str:
        """Build the conda package, whose recipe runs the list as well."""
        script = self.work.sources / ".ci/conda/build.py"
        said = self.work.run(self.work.tool("python"), script, self.work.place / "conda", wheel)
        return said.splitlines()[-1]

    def _quickstart(self, at: Path) -> None:
        gpulaunch = at / "bin/gpulaunch"
        self._is_version(self.work.run(gpulaunch, "--version"), str(gpulaunch))
        shutil.copytree(self.work.sources / "examples/quickstart", at / "quickstart")
        self.work.run(gpulaunch, "run", "jobs.yaml", "--simulate", "2", at=at / "quickstart")
        # Its status is of this machine, which may have no card.
        done = subprocess.run(
            [gpulaunch, "doctor"],
            env=self.work.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if "jobs are kept by the compiled keepers" not in done.stdout:
            sys.exit(f"{gpulaunch} has no keepers:\n{done.stdout}{done.stderr}")

    def _is_version(self, said: str, who: str) -> None:
        if not said.endswith(self.says):
            sys.exit(f"{who} --version says {said!r}, not {self.says!r}")

    def _version(self, at: Path) -> str:
        return self.work.run(at / "bin/python", "--version").strip()
