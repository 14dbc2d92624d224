"""Looking at programs and job files that a test writes."""

from __future__ import annotations

import textwrap
from pathlib import Path

from gpulaunch.diagnose.lint import Finding, python, report
from gpulaunch.diagnose.lint.files import ReadBudget, of_shell
from gpulaunch.diagnose.lint.finding import Given, judged
from gpulaunch.diagnose.lint.report import LintReport
from tests.jobfile.helpers import plan_of

ONE = Given(gpus=1)


def in_python(code: str, given: Given = ONE, main: bool = True) -> list[Finding]:
    """What is found in a program that a job runs; comments that silence are not looked at."""
    text = textwrap.dedent(code)
    return list(judged("x.py", python.look(text, main).placed, text.split("\n"), [given]))


def in_shell(script: str, given: Given = ONE) -> list[Finding]:
    looked = of_shell(textwrap.dedent(script), "bash")
    return list(judged("x.sh", looked.placed, looked.lines, [given]))


def rules(found: list[Finding]) -> list[str]:
    return [one.rule for one in found]


def report_on(
    directory: Path,
    jobs: str,
    files: dict[str, str] | None = None,
    budget: ReadBudget | None = None,
) -> LintReport:
    """The report on a job file in a directory, with these files beside it."""
    for name, text in (files or {}).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return report(plan_of(jobs, base=directory), budget=budget)


def told(found: LintReport, directory: Path) -> list[str]:
    """`name:line rule` of each finding, paths relative to the directory."""
    return [
        f"{one.path.replace(str(directory) + '/', '')}:{one.line} {one.rule}"
        for one in found.findings
    ]
