"""Directories, files and Python environments that a job names: found, checked, made absolute.

Looks at the file system and at the environment it is handed; changes neither.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import may, out_of_reach
from gpulaunch.jobfile.convert import check_variable
from gpulaunch.jobfile.items import resolve
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.source import read_bytes

MAX_ENV_BYTES = 1 << 20
_ENV_MISTAKES = 20

_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?([^\s=]+)[ \t]*=[ \t]*(.*)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", **{char: char for char in '"\\$`'}}
_ESCAPED = re.compile(r"\\(.)")
_QUOTED = {"'": re.compile(r"'([^']*)'"), '"': re.compile(r'"((?:[^"\\]|\\.)*)"')}
_USUAL = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "conda")
FIELDS = frozenset({"cwd", "env_file", "python", "venv", "conda"})


def home_of(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or "/"


class Places:
    """Looks each place up once, however many jobs name it."""

    def __init__(self, base: Path, environ: Mapping[str, str]) -> None:
        self.base = base
        self.home = home_of(environ)
        self._environ = environ
        self._seen: dict[tuple[str, str, bool], str | FieldError] = {}

    def find(self, field: str, made_later: bool, text: str) -> str:
        """Return the absolute path. Raises FieldError if it is missing and not made later."""
        key = (field, text, made_later)
        if key not in self._seen:
            try:
                self._seen[key] = str(self._look(field, text, made_later))
            except FieldError as bad:
                self._seen[key] = bad
        found = self._seen[key]
        if isinstance(found, FieldError):
            raise found
        return found

    def _look(self, field: str, text: str, made_later: bool) -> Path:
        by_path = "/" in text or text.startswith("~") or field not in ("python", "conda")
        if made_later and by_path:
            return resolve(text, self.base, self.home)
        if field == "python":
            return find_python(text, self.base, self._environ)
        if field == "conda":
            return find_conda(text, self.base, self._environ)
        path = resolve(text, self.base, self.home)
        if field == "cwd":
            check_is(path, os.path.isdir(path), "directory")
        elif field in ("image", "mount"):
            check_is(path, os.path.exists(path), "file or directory")
        elif field == "worker":
            check_is(path, os.path.isfile(path), "file")
        elif field == "venv":
            check_venv(path)
        else:
            check_env_file(path)
        return path


def check_is(path: Path, right: bool, what: str) -> None:
    """Raise FieldError for a path that is not what it should be."""
    if not right:
        kind = f" is not a {what}" if os.path.exists(path) else _absent(path)
        raise FieldError(f"{path}{kind}")


def _absent(path: Path, otherwise: str = " does not exist") -> str:
    """Return what to say after a path that is not found: it may be there, behind a closed door."""
    why = out_of_reach(path)
    return f": {why}" if why else otherwise


def check_env_file(path: Path) -> None:
    try:
        _, wrong = _env_lines(path)
    except UsageError as error:
        raise FieldError(str(error)) from None
    if wrong:
        bads = [
            FieldError(f"{path}:{number}: {message}") for number, message in wrong[:_ENV_MISTAKES]
        ]
        if len(wrong) > _ENV_MISTAKES:
            bads.append(FieldError(f"{path}: and {len(wrong) - _ENV_MISTAKES:,} more mistakes"))
        bads[0].also = tuple(bads[1:])
        raise bads[0]


def find_python(text: str, base: Path, environ: Mapping[str, str]) -> Path:
    """Return an interpreter's path; a bare name is looked up in PATH. Raises FieldError."""
    if "/" not in text:
        found = shutil.which(text, path=environ.get("PATH", os.defpath))
        if found is None:
            raise FieldError(f"{text} is not in PATH; write the interpreter's path")
        return Path(found).absolute()
    path = resolve(text, base, home_of(environ))
    if not os.path.isfile(path) or not may(path, os.X_OK):
        raise FieldError(f"{path}{_absent(path, ' is not an executable file')}")
    return path


def check_venv(path: Path) -> None:
    if not os.path.exists(path / "bin" / "python"):
        python = path / "bin" / "python"
        kind = " has no bin/python" if os.path.isdir(path) else " does not exist"
        kind = f"{kind}; expected a virtual environment's directory"
        raise FieldError(f"{path}{_absent(python, kind)}")


# ── conda ───────────────────────────────────────────────────────────────────────────────────────


def find_conda(text: str, base: Path, environ: Mapping[str, str]) -> Path:
    """Return the prefix of a conda environment given by name or prefix. Raises FieldError."""
    if "/" in text or text.startswith("~"):
        prefix = resolve(text, base, home_of(environ))
        if not _is_prefix(prefix):
            kind = " is not a conda environment (no conda-meta in it)"
            raise FieldError(f"{prefix}{_absent(prefix / 'conda-meta', kind)}")
        return prefix
    for prefix in _candidates(text, environ):
        if _is_prefix(prefix):
            return prefix
    raise FieldError(
        f"no conda environment called {text}: write its prefix, the path that"
        " `conda env list` shows"
    )


def _is_prefix(path: Path) -> bool:
    return os.path.isdir(path / "conda-meta")


def _candidates(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    for directories in ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"):
        for directory in filter(None, environ.get(directories, "").split(":")):
            yield Path(directory) / name
    for root in _roots(environ):
        yield root if name in ("base", "root") else root / "envs" / name
    home = Path(home_of(environ))
    yield home / ".conda" / "envs" / name
    try:
        known = (home / ".conda" / "environments.txt").read_text(errors="replace")
    except OSError:
        known = ""
    for line in known.splitlines():
        if line.strip() and Path(line.strip()).name == name:
            yield Path(line.strip())


def _roots(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the directories where conda itself, and so its `envs/`, may be installed."""
    for variable in ("CONDA_ROOT", "MAMBA_ROOT_PREFIX"):
        if environ.get(variable):
            yield Path(environ[variable])
    if environ.get("CONDA_EXE"):
        yield Path(environ["CONDA_EXE"]).parent.parent
    if environ.get("CONDA_PREFIX"):
        prefix = Path(environ["CONDA_PREFIX"])
        yield prefix.parent.parent if prefix.parent.name == "envs" else prefix
    for directory in (Path(home_of(environ)), Path("/opt")):
        for name in _USUAL:
            yield directory / name


# ── env_file ────────────────────────────────────────────────────────────────────────────────────


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of a file of `KEY=VALUE` lines. Raises UsageError with file and line.

    `export KEY=...`, `# comments` and quotes are understood: '...' is verbatim, "..." knows \\n,
    \\t, \\" and \\\\. Nothing is expanded: `$HOME` is five characters.
    """
    found, wrong = _env_lines(path)
    for number, message in wrong:
        raise UsageError(f"{path}:{number}: {message}")
    return found


def _env_lines(path: Path) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Return the variables, and the lines that are wrong. Raises UsageError if unreadable."""
    data = read_bytes(path, "a file of KEY=VALUE lines", MAX_ENV_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8; save the file as UTF-8") from None
    found: dict[str, str] = {}
    wrong: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            name, value = _assignment(line)
        except FieldError as bad:
            wrong.append((number, bad.message))
        else:
            found[name] = value
    return found, wrong


def _assignment(line: str) -> tuple[str, str]:
    match = _ASSIGNMENT.fullmatch(line)
    if match is None or "\0" in line:
        raise FieldError("expected KEY=VALUE")
    name, value = match.groups()
    check_variable(name)
    if value[:1] in ("'", '"'):
        return name, _quoted(value)
    return name, re.split(r"(?:^|\s)#", value, maxsplit=1)[0].rstrip()


def _quoted(value: str) -> str:
    mark = value[0]
    match = _QUOTED[mark].match(value)
    if match is None:
        raise FieldError(f"the {mark} is not closed in this line")
    rest = value[match.end() :].strip()
    if rest and not rest.startswith("#"):
        raise FieldError(f"text after the closing {mark}")
    return match[1] if mark == "'" else _ESCAPED.sub(_unescaped, match[1])


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[0])
