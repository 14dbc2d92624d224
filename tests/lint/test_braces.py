"""`{path}` where the job has `{{path}}` is pointed out, and nothing that only looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lint.helpers import report_on

FOLD = "name: 'f-{{stem}}', foreach: {values: [a, b]}"
SWEEP = "name: 's-{{lr}}', matrix: {lr: [1, 2]}"


def told(at: Path, fields: str, command: str) -> list[tuple[int, str]]:
    """The column in the command, and the name, of each that is pointed out."""
    text = f"jobs:\n- {{{fields}}}\n".replace("}\n", f", run: {command}}}\n")
    found = report_on(at, text).findings
    assert {one.rule for one in found} <= {"single-brace"}
    start = text.splitlines()[1].index(command) + 1
    return [(one.column - start, one.why.partition("}")[0][1:]) for one in found]


@pytest.mark.parametrize(
    ("fields", "command", "expected"),
    [
        (FOLD, "'x {path} --out={out}/y'", [(3, "path"), (16, "out")]),
        (FOLD, """"x '{item}' {item}" """.strip(), [(12, "item")]),
        (FOLD, "'x {{path}} {stem}.pdb'", [(12, "stem")]),
        (FOLD, "'x {lr}'", []),
        (SWEEP, "'x {path} {lr}'", [(10, "lr")]),
        (SWEEP, "[x, '--lr={lr}', 'f(\"{lr}\")']", [(10, "lr")]),
        (SWEEP, "[bash, -c, 'x {lr}']", [(14, "lr")]),
        ("foreach: {csv: t.csv}, name: 'c{{a}}'", "'x {path} {a}'", [(10, "a")]),
        ("name: one", "'x {path} {out}'", [(10, "out")]),
    ],
)
def test_a_name_that_the_job_has_is_pointed_out(
    tmp_path: Path, fields: str, command: str, expected: list[tuple[int, str]]
) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert told(tmp_path, fields, command) == expected


@pytest.mark.parametrize(
    "script",
    [
        "echo ${path} \\{path} a{path,stem} {1..3}",
        "awk '{print}' x; awk \"{path}\" x",
        """python -c 'print(f"{path}")'""",
        "exec {out}>x; exec {out}<&-",
        "ls | xargs -I {path} cp {path} x",
        "cat <<END\n{path}\nEND",
        "x  # {path}",
        "x {other} {} { path }",
        "x {{path}} \\{{path}}",
        "x {path}  # gpulaunch: ok single-brace",
    ],
)
def test_braces_that_mean_something_else_are_left_alone(tmp_path: Path, script: str) -> None:
    lines = "".join(f"      {line}\n" for line in script.splitlines())
    text = f"jobs:\n  - name: f-{{{{stem}}}}\n    foreach: {{values: [a]}}\n    run: |\n{lines}"
    assert not report_on(tmp_path, text).findings


def test_a_script_of_another_language_is_left_alone(tmp_path: Path) -> None:
    text = "jobs: [{foreach: {values: [a]}, shell: python3 -c, run: 'print({item})'}]"
    assert not report_on(tmp_path, text).findings
