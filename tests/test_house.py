"""The house's own rules: which way imports point, and what is not imported before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import click
import pytest

from gpulaunch.cli import COMMANDS
from gpulaunch.jobfile.fields import JOB

ROOT = Path(__file__).parents[1]
HEAVY = (
    "rich",
    "textual",
    "yaml",
    "pynvml",
    "psutil",
    "tree_sitter",
    "torch",
    "pyarrow",
    "prometheus_client",
    "asyncio",
    "apprise",
    "requests",
    "cloudpickle",
    "gpulaunch.executor",
    "jinja2",
    "mcp",
    "mcp_types",
    "anyio",
)

BUDGET = {
    "lines": 94_200,
    "files": 419,
    "packages": 16,
    "files of a package": 36,
    "commands": 30,
    "options": 84,
    "fields of a job": 50,
}
"""What the product has at most. A feature pays for its lines with those that it makes superfluous.

Whoever changes a number says why in the commit. `lines` and `files` are what git knows of
`gpulaunch` and `plugins`, without uPlot and the plugins' own tests; `options` are the different
ones of all commands.
"""


def test_the_house_stays_within_its_budget() -> None:
    over = {name: (count, BUDGET[name]) for name, count in house().items() if count > BUDGET[name]}
    assert not over, "more than the budget allows (found, allowed): does it pay for itself?"


def house() -> dict[str, int]:
    """Count what the product has; skips where its sources are no checkout."""
    files = product_files()
    params = [param for name in COMMANDS for param in command(name).params]
    options = {name for param in params for name in param.opts if name.startswith("-")}
    folders = Counter(path.parent for path in files if path.suffix in (".py", ".c", ".h"))
    packages = {path.parent for path in files if path.name == "__init__.py"}
    return {
        "lines": sum(path.read_bytes().count(b"\n") for path in files),
        "files": len(files),
        "packages": sum(path.parent == ROOT / "gpulaunch" for path in packages),
        "files of a package": max(folders.values()),
        "commands": len(COMMANDS),
        "options": len(options),
        "fields of a job": len(JOB),
    }


def product_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("these sources are no checkout of a repository")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "gpulaunch", "plugins"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    found = [
        ROOT / name for name in listed if name and "/tests/" not in name and "/uPlot" not in name
    ]
    return [path for path in found if path.is_file()]


def command(name: str) -> click.Command:
    found: click.Command = resolve_name(f"gpulaunch.cli.{COMMANDS[name][0]}")
    return found


def test_imports_point_one_way() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports as lint;"
         " sys.exit(lint(no_cache=True))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "argv",
    [["--version"], ["exec", "--simulate", "1", "--no-wait", "--", "true"]],
    ids=["version", "exec"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(argv: list[str]) -> None:
    script = f"""
import os, sys
os.execvpe = lambda *_: sys.exit(0)
sys.argv = ["gpulaunch", *{argv!r}]
from gpulaunch.__main__ import main
try:
    main()
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


VAGUE = re.compile(
    r"_?(PATIENCE|MOST|SHOWN|AT_ONCE|SPARE|STALE|ENOUGH|LONG|SOON|OFTEN|AGAIN|LONGEST|LIMIT)"
)


def top_level() -> Iterator[tuple[Path, ast.stmt]]:
    for path in sorted(ROOT.glob("gpulaunch/**/*.py")):
        for statement in ast.parse(path.read_text()).body:
            yield path.relative_to(ROOT), statement


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path, statement in top_level():
        if isinstance(statement, ast.ClassDef):
            places.setdefault(statement.name, []).append(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_number_s_name_says_what_it_bounds() -> None:
    vague = []
    for path, statement in top_level():
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(int() | float())):
                if VAGUE.fullmatch(name):
                    vague.append(f"{path}: {name}")
    assert vague == []


def test_a_docstring_s_verb_fits_what_the_function_gives() -> None:
    """`Return` for a value, `Yield` for an iterator, `Tell whether` for a bool."""
    wrong = []
    for path in sorted((ROOT / "gpulaunch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.FunctionDef)
                and node.returns
                and (said := ast.get_docstring(node))
            ):
                given, decorators = ast.unparse(node.returns), map(ast.unparse, node.decorator_list)
                yields = _yields(node) and not any("contextmanager" in each for each in decorators)
                iterates = yields or "Iterator" in given
                if (
                    (said.startswith("Return ") and (yields or given in ("None", "NoReturn")))
                    or (said.startswith("Yield ") and not iterates)
                    or (said.startswith("Tell whether ") and given != "bool")
                ):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} -> {given}")
    assert wrong == []


def _yields(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
