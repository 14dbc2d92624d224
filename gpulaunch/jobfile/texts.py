"""Compiles and checks an entry's texts once, and fills them for each of its jobs.

The texts are `name`, `run`, `env`, `outputs`, `service.ready`, `needs` and `after`; each has its
own idea of which placeholders it knows and how a value goes in.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from gpulaunch.core.model import Job, Ladder, Service
from gpulaunch.core.template import Template, Text, fill, literals, parts_of, slots
from gpulaunch.jobfile.convert import UNFIT
from gpulaunch.jobfile.endings import APART, left_running, starts_apart
from gpulaunch.jobfile.fields import Deferred, compiled_names, texts_in
from gpulaunch.jobfile.forms import Matrix
from gpulaunch.jobfile.globs import home_expanded
from gpulaunch.jobfile.items import Items
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.needs import Pattern, pattern_of
from gpulaunch.jobfile.placeholders import START, compile_raw, insert, names_in, numbers, unknown
from gpulaunch.jobfile.shell import Errors, compile_script
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.values import check_ready, dialect

MAX_NAME = 200
MAX_TEXT = 131_071
"""Bytes that Linux takes in one argument or variable (MAX_ARG_STRLEN, less the closing NUL)."""

Fields: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Mapping[str, str]
Add: TypeAlias = Callable[[str, FieldError], None]
Scripts: TypeAlias = dict[tuple[str, str], tuple[Text, Errors]]

DEFAULT_SHELL = Job(name="", run="").shell
_EMPTY: Mapping[str, Text | None] = {}
"""The value that all entries without `env:` share."""
_IN_TEXTS = "run, env, outputs and service.ready"


def clean(value: str) -> str:
    """Return a value as it stands in a name."""
    return UNFIT.sub("_", value)


def _uses_keep(fields: Fields) -> bool:
    """Tell whether the entry's jobs use `{{keep}}`: by that, or by its variable's name."""
    if any("GPULAUNCH_KEEP" in text for text in _of_command(fields)):
        return True
    return _inserts(fields, "keep")


def _inserts(fields: Fields, name: str) -> bool:
    """Tell whether the placeholder stands in what the entry's jobs run, or leave."""
    texts = (text for text in _of_command(fields) if "{{" in text)
    return any(name in names_in(compile_raw(text)) for text in texts)


def _of_command(fields: Fields) -> Iterator[str]:
    texts = [fields.get("run"), fields.get("env"), fields.get("outputs")]
    yield from texts_in([list(text) if isinstance(text, tuple) else text for text in texts])


def _reads_items(fields: Fields) -> bool:
    """Tell whether the entry's items are files that its jobs read.

    Matches of a glob are; values and lines are where they are inserted as `{{path}}`.
    """
    foreach = fields.get("foreach")
    if foreach is None or "batch" in fields:
        return False
    named = foreach.kind in ("values", "lines") and _inserts(fields, "path")
    return foreach.kind == "glob" or named


class Texts:
    """An entry's texts with their slots, made once for all its jobs."""

    def __init__(
        self, fields: Fields, items: Items, group: int, scripts: Scripts, home: str, add: Add
    ) -> None:
        self.fields = fields
        self.group = group
        self.scripts = scripts
        self.add = add
        self.deferred = {k: v for k, v in fields.items() if isinstance(v, Deferred)}
        self.fixed = {k: v for k, v in fields.items() if k not in self.deferred}
        matrix: Matrix | None = fields.get("matrix")
        self.expands = "foreach" in fields or matrix is not None
        self.load = items.names | frozenset(matrix.keys if matrix else ())
        ladder: Ladder | None = fields.get("ladder")
        self.start = START | items.start_names | frozenset(ladder.names if ladder else ())
        self.unfit = items.unfit
        self.batch = "batch_dir" in items.start_names
        self.name_broken = False
        self.name_text = compile_raw(fields["name"]) if "name" in fields else None
        env: Mapping[str, str | None] = fields.get("env") or {}
        self.env = {key: None if v is None else compile_raw(v) for key, v in env.items()} or _EMPTY
        self.env_constant = all(v is None or isinstance(v, str) for v in self.env.values())
        self.run_list: tuple[Text, ...] = ()
        self.script: Text | None = None
        self.fine = True
        self.outputs = tuple(
            compile_raw(home_expanded(text, home)) for text in fields.get("outputs", ())
        )
        self.serves: Service | None = fields.get("service")
        self.ready: Text = "" if self.serves is None else self.serves.ready
        self.plain_ends = not (fields.get("warn") or fields.get("preemptible"))
        self.reads_items = _reads_items(fields)
        self.keeps = _uses_keep(fields) or not self.plain_ends
        self.waits = {
            field: tuple(compile_raw(text) for text in fields.get(field, ()))
            for field in ("needs", "after")
        }
        self.constant = {
            field: tuple(pattern_of(text, {}, clean) for text in texts)
            for field, texts in self.waits.items()
            if all(isinstance(text, str) for text in texts)
        }

    # ── checks before any item is filled in ─────────────────────────────────────────────────────

    def check(self) -> bool:
        """Add a mistake for each placeholder that is unknown where it stands."""
        everything = self.load | self.start | {"job"}
        self.fine = True
        self._check_name()
        self._check_run(everything)
        for key, value in self.env.items() if not self.env_constant else ():
            self._check("env", (key,), names_in(value or ""), everything)
        for i, text in enumerate(self.outputs):
            self._check("outputs", (i,), names_in(text), everything)
        self._check("service", ("ready",), names_in(self.ready), everything)
        for name, texts in self.waits.items():
            for i, text in enumerate(texts):
                self._check(name, (i,), names_in(text), self.load | {"job"})
        for name, deferred in self.deferred.items():
            self._check(name, (), compiled_names(deferred.value), self.load | {"job"})
        if self.unfit:
            self._check_unfit()
        return self.fine

    def _check_unfit(self) -> None:
        """Add a mistake for `{{a b}}`, which is text, if a column is called so."""
        names = "|".join(map(re.escape, self.unfit))
        meant = re.compile(rf"(?<!\\)\{{\{{[ \t]*({names})[ \t]*\}}\}}")
        for field, value in self.fields.items():
            if field in ("foreach", "matrix"):
                continue
            for steps, text in _texts_in(value):
                for name in dict.fromkeys(meant.findall(text)):
                    if field == "name":
                        self.name_broken = True
                    message = (
                        f"{{{{{name}}}}} cannot be inserted: a placeholder's name is letters,"
                        f" digits, _ and -; rename the column {name} of the table"
                    )
                    at = ("ready",) if field == "service" else steps
                    self._wrong(field, FieldError(message, at))

    def _check_run(self, known: frozenset[str]) -> None:
        run = self.fields.get("run")
        if isinstance(run, tuple):
            self.run_list = tuple(compile_raw(item) for item in run)
            for i, text in enumerate(self.run_list):
                self._check("run", (i,), names_in(text), known)
            if starts_apart(run):
                self._wrong("run", FieldError("; ".join(APART)))
            return
        shell = self.fixed.get("shell") or DEFAULT_SHELL
        known_shell = None if "shell" in self.deferred else dialect(shell)
        if run and known_shell and (over := left_running(run, known_shell)):
            self._wrong("run", FieldError(f"{over.why}; {over.mend}"))
        if run is not None and "{{" in run:
            try:
                _short(run)
                self.script = self._script(run, shell)
            except FieldError as bad:
                # A script with mistakes still tells which placeholders are in comments.
                text, _ = self.scripts.get((run, dialect(shell) or ""), (compile_raw(run), []))
                self._check("run", (), names_in(text), known)
                if "shell" not in self.deferred:
                    self._wrong("run", bad)
                return
            self._check("run", (), names_in(self.script), known)

    def _check(self, field: str, steps: Steps, names: Iterable[str], known: frozenset[str]) -> bool:
        wrong = [name for name in dict.fromkeys(names) if name not in known]
        typed = self.fields.get(field) if wrong and not steps else None
        first: dict[str, int] = {}
        if isinstance(typed, str) and len(typed) <= MAX_TEXT:
            first = {name: number for number, name in reversed(numbers(typed))}
        for name in wrong:
            self._wrong(
                field, FieldError(self._why_not(name, known), steps, number=first.get(name))
            )
        return not wrong

    def _wrong(self, field: str, bad: FieldError) -> None:
        self.fine = False
        self.add(field, bad)

    def _why_not(self, name: str, known: frozenset[str]) -> str:
        if name in self.start or name == "batch_dir":
            if name == "batch_dir" and not self.batch:
                return "{{batch_dir}} needs batch:"
            return f"{{{{{name}}}}} is known only when the job starts: it works in {_IN_TEXTS}"
        if name == "job":
            return "{{job}} is the name itself"
        if name == "index" and "item" in known:
            why = "{{index}} would change with each file that comes"
            return f"{why}: with --follow, use {{{{stem}}}} or {{{{path}}}}"
        if self.batch:
            return f"{unknown(name, known)}; a batch has many items: use {{{{batch_dir}}}}"
        return unknown(name, known)

    def _check_name(self) -> None:
        if self.name_text is None:
            return
        typed = self.name_text
        first, literal = parts_of(typed)[0], "".join(literals(typed))
        message = ""
        if isinstance(first, str) and first.startswith("."):
            message = "a name may not start with a dot"
        elif odd := UNFIT.search(literal):
            message = f"a name may not hold {odd.group()!r}: it names files"
        elif literal != literal.strip() and isinstance(typed, str):
            message = "a name may not start or end with a space"
        if message:
            self.name_broken = True
            self._wrong("name", FieldError(message))
        if not self._check("name", (), names_in(typed), self.load):
            self.name_broken = True

    # ── filling ─────────────────────────────────────────────────────────────────────────────────

    def name(self, values: Values, label: str, axes: Values) -> str:
        """Return the job's name, which differs from item to item. Raises FieldError."""
        name = self._name(values, label, axes)
        if len(name) > MAX_NAME // 4 and len(name.encode("utf-8", "replace")) > MAX_NAME:
            raise FieldError(
                f"name {name[:40]}... has more than {MAX_NAME} bytes; set a shorter name:"
            )
        return "_" + name[1:] if name.startswith(".") else name

    def _name(self, values: Values, label: str, axes: Values) -> str:
        text = self.name_text
        if text is not None and not isinstance(text, str):
            name = insert(text, values, clean)
            if not name:
                raise FieldError("the name comes out empty")
            return name
        if not self.expands:
            return text if text is not None else f"job-{self.group + 1}"
        labels = [label, *(f"{key}={value}" for key, value in axes.items())]
        return "-".join([text or "job", *(clean(part) for part in labels if part)])

    def run(self, shell: tuple[str, ...], values: Values) -> Text | tuple[Text, ...]:
        run = self.fields["run"]
        if isinstance(run, tuple):
            filled = tuple(_short(fill(text, values)) for text in self.run_list)
            return self.run_list if filled == self.run_list else filled  # one for all jobs
        if self.script is None:
            return _short(run)
        script = self._script(run, shell) if "shell" in self.deferred else self.script
        return _short(fill(script, values))

    def environment(self, values: Values) -> Mapping[str, Text | None]:
        if self.env_constant:
            return self.env
        return {key: v if v is None else _short(fill(v, values)) for key, v in self.env.items()}

    def files(self, values: Values) -> tuple[Text, ...]:
        """Return the patterns of a field; inserted values match only themselves."""
        if not self.outputs:
            return ()
        plain = {
            slot.name: glob.escape(values[slot.name])
            for text in self.outputs
            for slot in slots(text)
            if slot.name in values
        }
        return tuple(_short(fill(text, plain)) for text in self.outputs)

    def service(self, values: Values) -> Service | None:
        if self.serves is None:
            return None
        ready = fill(self.ready, values)
        check_ready(ready)
        return replace(self.serves, ready=ready)

    def _script(self, run: str, shell: tuple[str, ...]) -> Text:
        kind = dialect(shell)
        if kind is None:
            if names_in(compile_raw(run)):
                raise FieldError(
                    f"placeholders cannot be quoted for {shell[0]}: write run: as a list, or hand"
                    " the value over in env:"
                )
            return compile_raw(run)
        scripts = self.scripts
        if (run, kind) not in scripts:
            if len(scripts) > 1000:
                scripts.clear()
            scripts[run, kind] = compile_script(run, kind)
        text, errors = scripts[run, kind]
        if errors:
            known = numbers(run)
            bads = [FieldError(message, number=known[i][0]) for i, message in errors]
            bads[0].also = tuple(bads[1:])
            raise bads[0]
        return text

    def patterns(self, field: str, values: Values) -> tuple[Pattern, ...]:
        known = self.constant.get(field)
        if known is not None:
            return known
        if not self.fine:
            return ()
        return tuple(pattern_of(text, values, clean) for text in self.waits[field])


def _texts_in(value: Any, steps: Steps = ()) -> Iterator[tuple[Steps, str]]:
    """Yield the texts of a field as typed, with the path to each."""
    if isinstance(value, str):
        yield steps, value
    elif isinstance(value, Deferred):
        yield from _texts_in(value.value)
    elif isinstance(value, Template):
        yield steps, "{{}}".join(literals(value))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts_in(item, (*steps, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _texts_in(item, (*steps, i))


def _short(text: Text) -> Text:
    """Raise an error for a text that no exec can take."""
    length = sum(map(len, literals(text)))
    if length > MAX_TEXT // 4:
        length = sum(len(part.encode("utf-8", "replace")) for part in literals(text))
        if length > MAX_TEXT:
            raise FieldError(
                f"{length:,} bytes; Linux takes at most {MAX_TEXT:,} in one argument: put the"
                " script in a file"
            )
    return text
