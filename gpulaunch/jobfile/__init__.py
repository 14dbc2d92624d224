"""The job file: text -> tree with lines -> validated entries -> expanded, named, checked Jobs.

    load(path, Surroundings(os.environ)) ──▶ Plan(jobs=(Job, ...), selection, limits, ...)

Reads files and looks at directories; starts nothing, writes nothing, prints nothing.
"""

from gpulaunch.jobfile.load import load, load_text
from gpulaunch.jobfile.paths import find_conda, read_env_file
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.schema import schema
from gpulaunch.jobfile.surroundings import Look, Surroundings

__all__ = [
    "Look",
    "Plan",
    "Surroundings",
    "find_conda",
    "load",
    "load_text",
    "read_env_file",
    "schema",
]
