"""Finds what a shell would expand in texts of a job file that no shell reads.

`$HOME`, `$(date)`, `{a,b}` and, in some fields, `~` stay as they are typed everywhere but in `run`.
"""

from __future__ import annotations

import re

_VARIABLE = re.compile(
    r"\$(?:\{([A-Za-z_]\w*)(?:(?::?[-=?+]|[#%/])[^{}]*)?\}|([A-Za-z_]\w*))", re.ASCII
)
_COMMAND = re.compile(r"\$\([^()]+\)|`[^`]+`")
_BRACES = re.compile(r"(?<!\{)\{(?:[^{},\s]*(?:,[^{},\s]*)+|\w+\.\.\w+)\}(?!\})")
_HOME = re.compile(r"~(?:[a-z_][\w-]*)?(?=/|$)", re.ASCII)
_PLACEHOLDERS = {"GPULAUNCH_OUT": "out", "GPULAUNCH_KEEP": "keep", "GPULAUNCH_JOB": "job"}
"""What jobs find in a variable, and what stands for it in the job file."""
_OPERATORS = frozenset({"&&", "||", "|", "&", ";", ">", ">>", "<", "2>", "2>&1", "&>"})
_GLOBS = frozenset({"foreach", "outputs"})
_KNOWS_HOME = frozenset({"env_file", "python", "venv", "conda", "cwd", "container", "worker"})


def not_expanded(text: str, field: str, key: str = "") -> tuple[str, str] | None:
    """Return why a text of a field does not mean what a shell would make of it, and what to write.

    `key`: the variable of `env:`, or the kind of a `foreach:`. Of `run:` it is one argument. None
    where a shell changes nothing.
    """
    if field == "run":
        return _argument(text)
    if found := _VARIABLE.search(text) or _COMMAND.search(text):
        what = found.group()
        name = next(filter(None, found.groups()), "") if found.re is _VARIABLE else ""
        if name in _PLACEHOLDERS:
            return _why(what), f"write {{{{{_PLACEHOLDERS[name]}}}}}"
        if field == "env":
            return _why(what), f'write export {key}="{text}" at the beginning of run'
        return _why(what), f"write what {what} stands for"
    glob = field in _GLOBS and not key
    if glob and (braces := _BRACES.search(text)):
        each = "a list with a pattern for each" if field == "foreach" else "* in its place"
        return _why(braces.group()), f"write {each}"
    home = _HOME.match(text)
    if home is None or field == "name":
        return None
    if home.group() == "~" and (glob or field in _KNOWS_HOME or key in ("lines", "csv", "fasta")):
        return None
    return _why(home.group()), "write the path of the directory"


def _argument(text: str) -> tuple[str, str] | None:
    """Look at an argument of a command that is a list; code in another language has spaces."""
    mend = "write run as a string, which a shell reads"
    if text in _OPERATORS:
        return f"{text} is an argument here, because no shell reads a list", mend
    found = None if re.search(r"\s", text) else _VARIABLE.search(text) or _HOME.match(text)
    return (_why(found.group()), mend) if found else None


def _why(what: str) -> str:
    return f"{what} is not expanded here, because no shell reads this text"
