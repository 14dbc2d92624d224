"""What in a job's command, and in the scripts that it runs, does not suit the cards it gets.

    job file ──report──▶ commands ──commands──▶ files ──files──▶ modules, scripts
                   └──────── suspects, judged by each job's cards ────────▶ Finding ...

Python by its syntax tree (commands, python), shell by the commands of jobfile.shell (shell).
Reads files (only in files.py, bounded in number, size and time), runs nothing, prints nothing, and
fails for nothing that a script may hold. Rules: finding.RULES.
"""

from gpulaunch.diagnose.lint.files import ReadBudget
from gpulaunch.diagnose.lint.finding import RULES, Finding
from gpulaunch.diagnose.lint.report import LintReport, report

__all__ = ["RULES", "Finding", "LintReport", "ReadBudget", "report"]
