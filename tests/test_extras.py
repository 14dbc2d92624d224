"""An installation without extras runs job lists; what needs an extra says in a line which one."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpulaunch.base.extras import MODULES, missing
from tests.cli.launcher import Launcher

ROOT = Path(__file__).parents[1]
COMMAND = "from gpulaunch.__main__ import main; sys.exit(main())"
EXECUTOR = """
from gpulaunch import GpuExecutor
others = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(*sorted(others - {"__main__", "gpulaunch"}))
with GpuExecutor(simulate=1) as executor:
    print(executor.submit(lambda: 6 * 7).result())
"""


def needed(name: str, extra: str = "") -> list[Requirement]:
    """What the installed distribution asks for itself, or for one of its extras."""
    asked = [Requirement(line) for line in distribution(name).requires or ()]
    plain = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    if not extra:
        return plain
    return [one for one in asked if one.marker and one.marker.evaluate({"extra": extra})]


def names(requirements: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(one.name) for one in requirements}


def closure(name: str) -> set[str]:
    """The distributions, `name` left out, that come along with it."""
    found: set[str] = set()
    queue = needed(name)
    while queue:
        one = queue.pop()
        if one.name.lower() not in found:
            found.add(one.name.lower())
            queue += [new for extra in ("", *one.extras) for new in needed(one.name, extra)]
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages that has what the launcher itself depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    for name in closure("gpulaunch"):
        for file in distribution(name).files or ():
            first = file.parts[0]
            if first not in ("..", "__pycache__") and not (folder / first).exists():
                (folder / first).symlink_to(distribution(name).locate_file(first))
    (folder / "gpulaunch").symlink_to(ROOT / "gpulaunch")
    return folder


def python(site: Path, code: str) -> list[str]:
    """Python on that code, with `sys` at hand and no packages but those of `site`."""
    library = sysconfig.get_path("stdlib")
    path = [library, f"{library}/lib-dynload", str(site)]
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {path!r}\n{code}"]


@pytest.fixture
def lean(site: Path, tmp_path: Path) -> Launcher:
    """The command as it is where gpulaunch was installed without extras."""
    return Launcher(tmp_path, command=python(site, COMMAND))


def test_the_launcher_itself_has_at_most_eight_dependencies() -> None:
    assert len(needed("gpulaunch")) <= 8


def test_every_extra_that_a_command_names_brings_what_it_says() -> None:
    own, by_module = names(needed("gpulaunch")), packages_distributions()
    for extra, modules in MODULES.items():
        # What the tests do without is called as its module is.
        said = {canonicalize_name(by_module.get(module, [module])[0]) for module in modules}
        brought = [one for one in needed("gpulaunch", extra) if canonicalize_name(one.name) in said]
        assert names(needed("gpulaunch", extra)) - own == said, extra
        floors = {f">={oldest}" for oldest in modules.values()}
        assert {str(one.specifier) for one in brought} == floors, extra
    every = set[str]().union(
        *(names(needed("gpulaunch", extra)) for extra in MODULES if extra != "parquet")
    )
    assert names(needed("gpulaunch", "all")) == every


@pytest.mark.parametrize(
    ("here", "needs"),
    [
        ("2.2.9", "mcp 2.3 or newer (here is 2.2.9): pip install 'gpulaunch[mcp]'"),
        ("1.30.0", "mcp 2.3 or newer (here is 1.30.0): pip install 'gpulaunch[mcp]'"),
        ("2.3", ""),
        ("2.10.0rc1", ""),
        ("10.0.post1", ""),
        (None, ""),
    ],
)
def test_one_that_is_older_than_needed_is_as_good_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str | None, needs: str
) -> None:
    """Another program in the same environment may hold it back; its files alone tell no version."""
    (tmp_path / "mcp.py").touch()
    if here:
        (tmp_path / "mcp-0.dist-info").mkdir()
        (tmp_path / "mcp-0.dist-info/METADATA").write_text(f"Name: mcp\nVersion: {here}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "mcp", raising=False)
    assert missing("mcp") == needs


def test_an_old_one_is_a_line(site: Path, tmp_path: Path) -> None:
    (tmp_path / "old/textual").mkdir(parents=True)
    (tmp_path / "old/textual-0.89.1.dist-info").mkdir()
    told = "Name: textual\nVersion: 0.89.1\n"
    (tmp_path / "old/textual-0.89.1.dist-info/METADATA").write_text(told)
    beside = f"sys.path.append({str(tmp_path / 'old')!r})\n"
    done = Launcher(tmp_path, command=python(site, beside + COMMAND))("top")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "gpulaunch: gpulaunch top needs textual 8.2.5 or newer (here is 0.89.1):"
        " pip install 'gpulaunch[top]'\n"
    )


def test_a_list_runs_to_its_report_without_extras(lean: Launcher) -> None:
    lean.file("jobs.yaml", "jobs: [{name: a, run: 'echo $CUDA_VISIBLE_DEVICES'}]\n")
    checked = lean("check", "jobs.yaml", "--simulate", "2")
    assert checked.status == 0, checked.err
    done = lean("run", "jobs.yaml", "--simulate", "2", "--run-dir", "here")
    assert done.status == 0, done.err
    assert (lean.path / "here/report.html").is_file(), done.err
    assert lean("status", "here").status == 0
    assert lean("init", "-o", "starter.yaml").status == 0


def test_the_executor_works_without_extras_and_brings_no_more_than_it_needs(
    site: Path, tmp_path: Path
) -> None:
    done = Launcher(tmp_path, command=python(site, EXECUTOR))()
    assert done.status == 0, done.err
    assert done.out == "cloudpickle msgspec\n42\n"


def test_top_without_its_extra_is_a_line(lean: Launcher) -> None:
    done = lean("top")
    assert (done.status, done.out) == (2, "")
    assert done.err == "gpulaunch: gpulaunch top needs textual: pip install 'gpulaunch[top]'\n"


def test_results_without_their_extra_are_all_but_parquet(lean: Launcher) -> None:
    lean.file("jobs.yaml", "jobs: [{name: a, run: \"printf 'b\\\\n17' > {{out}}/m.csv\"}]\n")
    assert lean("run", "jobs.yaml", "--simulate", "1").status == 0
    for form in ("--csv", "--json"):
        done = lean("results", form, "--file", "m.csv")
        assert (done.status, done.err) == (0, "")
        assert '"b": 17' in done.out or ",17," in done.out
    done = lean("results", "--parquet")
    assert (done.status, done.out) == (2, "")
    assert done.err == "gpulaunch: --parquet needs pyarrow: pip install 'gpulaunch[parquet]'\n"


def test_a_server_for_clients_without_its_extra_is_a_line(lean: Launcher) -> None:
    done = lean("mcp")
    assert (done.status, done.out) == (2, "")
    assert done.err == "gpulaunch: gpulaunch mcp needs mcp: pip install 'gpulaunch[mcp]'\n"


def test_a_script_for_init_without_its_extra_is_a_line(lean: Launcher) -> None:
    lean.file("all.sh", "CUDA_VISIBLE_DEVICES=0 python a.py &\n")
    done = lean("init", "all.sh")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "gpulaunch: reading a script needs tree_sitter and tree_sitter_bash:"
        " pip install 'gpulaunch[init]'\n"
    )
    assert not (lean.path / "jobs.yaml").exists()


def test_a_metrics_port_without_its_extra_is_a_line_before_anything_starts(
    lean: Launcher,
) -> None:
    lean.file("jobs.yaml", "jobs: [{run: 'true'}]\n")
    done = lean("run", "jobs.yaml", "--simulate", "1", "--metrics-port", "0")
    assert done.status == 2
    assert done.err.endswith(
        "gpulaunch: --metrics-port needs prometheus_client: pip install 'gpulaunch[prometheus]'\n"
    )
    assert not (lean.path / "gpulaunch-runs").exists()


@pytest.mark.parametrize("command", ["check", "run"])
def test_an_address_to_tell_without_the_extra_is_a_mistake_at_its_line(
    lean: Launcher, command: str
) -> None:
    lean.file("jobs.yaml", "notify: [{to: env:HOOK}, {run: 'true'}]\njobs: [{run: 'true'}]\n")
    lean.environ["HOOK"] = "https://example.org/secret"
    done = lean(command, "jobs.yaml", "--simulate", "1")
    assert done.status == 2
    assert re.match(r"(gpulaunch: )?jobs.yaml:1:15: notify\[0\].to: ", done.err), done.err
    assert "needs apprise and requests: pip install 'gpulaunch[notify]'" in done.err
    assert "secret" not in done.err
    assert not (lean.path / "gpulaunch-runs").exists()


def test_a_command_that_tells_needs_no_extra(lean: Launcher) -> None:
    lean.file("jobs.yaml", "notify: {run: [sh, -c, 'cat > told.json']}\njobs: [{run: 'true'}]\n")
    done = lean("run", "jobs.yaml", "--simulate", "1")
    assert done.status == 0, done.err
    assert (lean.path / "told.json").stat().st_size
