"""A job file from a script of which every line is understood for certain.

The grammar: assignments of plain words, `for` over words, numbers and files, masked commands with
or without `&`, `wait`, `mkdir -p`, `echo`, `set -e`, comments, and `cd` to the script's own
directory. Anything else raises Unfit. Loops over words are spelt out; a loop over files, whose
commands all end in `&`, is one entry. Order is kept: what had ended in the script when a command
began is what its job comes after.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.init.programs import OWN_SHELL, refuse_no_program, refuse_outside
from gpulaunch.init.script import (
    MASK,
    Script,
    Unfit,
    assignments_of,
    edited,
    statements_of,
    walk,
    words_of,
)
from gpulaunch.init.values import (
    EXPANSIONS,
    UNKNOWN,
    Known,
    Value,
    entries_of,
    plain,
)
from gpulaunch.jobfile.convert import MASKS

if TYPE_CHECKING:
    from tree_sitter import Node


_PLACEHOLDER = re.compile(r"(\\*)(\{\{[ \t]*[^\W\d][\w-]*[ \t]*\}\})")


class InitEntry(Struct, frozen=True):
    """An entry of `jobs:`, with a job for each file of `pattern` if there is one.

    `cards` are those that the script named, of which a job has `count`. `beside`: how many jobs
    the script ran on one card at once.
    """

    name: str
    run: str
    count: int
    pattern: str = ""
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cards: frozenset[str] = frozenset()
    beside: int = 1

    @property
    def group(self) -> str:
        """How other entries name all jobs of this one."""
        return f"{self.name.partition('-')[0]}-*" if self.pattern else self.name


def escaped(text: str) -> str:
    """Return text for a field with placeholders, such that it stands for itself.

    Raises Unfit where the job file has no way to say it.
    """

    def guard(match: re.Match[str]) -> str:
        if len(match.group(1)) % 2:
            raise Unfit(f"{match.group()} would be a placeholder of the job file")
        return f"{match.group(1)}\\{match.group(2)}"

    if re.search(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]", text):
        raise Unfit("a character of it cannot be written into a job file")
    return _PLACEHOLDER.sub(guard, text)


def job_file(title: str, entries: Sequence[InitEntry]) -> str:
    """Return the whole file."""
    title = re.sub(r"[^ -~]", "?", title)
    lines = [
        f"# Made from {title} by `gpulaunch init`. Each job gets a card that is free, and sees it",
        "# as cuda:0. To see the plan: gpulaunch check FILE",
    ]
    cards = sorted({int(card) for entry in entries for card in entry.cards if card.isdigit()})
    if cards and cards != list(range(len(cards))):
        lines.append(f"# gpus: {cards}    # the cards of the script; without this line, any card")
    for number in sorted({entry.beside for entry in entries} - {1}):
        names = ", ".join(entry.name for entry in entries if entry.beside == number)
        lines.append(f"# The script ran {number} commands on a card at once (per_gpu: {number}):")
        lines.append(f"#     {names}")
    return "\n".join([*lines, "jobs:", ""]) + "".join(map(_spelt, entries))


def _spelt(entry: InitEntry) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes a text of several lines as it stands, and a list on one line."""

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, "|" if "\n" in data else None)

    def names(dumper: yaml.SafeDumper, data: list[str]) -> yaml.Node:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(str, text)
    Dumper.add_representer(list, names)
    fields: dict[str, Any] = {"name": entry.name, "foreach": entry.pattern, "gpus": entry.count}
    fields |= {"needs": [*entry.needs], "after": [*entry.after], "env": dict(entry.env)}
    fields = {key: value for key, value in fields.items() if value or key == "gpus"}
    if entry.count == 1:
        del fields["gpus"]
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 1 << 30}
    made: str = yaml.dump({**fields, "run": entry.run}, Dumper=Dumper, **options)
    return "\n  - " + made.replace("\n", "\n    ").rstrip(" ")


# ── The grammar ───────────────────────────────────────────────────────────────────────────────────

MAX_ENTRIES = 200
"""Entries written at most; a script that needs more stays a script."""
MAX_TURNS = 8
_TYPES = frozenset({
    "word", "number", "string", "string_content", "raw_string", "concatenation", "command_name",
    "simple_expansion", "expansion", "arithmetic_expansion", "binary_expression", "variable_name",
    "parenthesized_expression", "regex", "file_redirect", "file_descriptor", "variable_assignment",
    "command", "redirected_statement", "subscript", "array",
})  # fmt: skip
_OF_OTHERS = frozenset({"HOME", "USER", "PWD"})
"""Variables that a job has from where the script has them."""
_SPECIAL = frozenset({"IFS", "PATH", "HOME", "ENV", "BASH_ENV", "GLOBIGNORE", "POSIXLY_CORRECT"})
_SAFE = re.compile(r"[\w./:@%+-]+( [\w./:@%+-]+)*", re.ASCII)
_PATTERN = re.compile(r"(?!~)[\w./*?@%+:-]*[*?][\w./*?@%+:-]*", re.ASCII)
_HERE = re.compile(
    r"""cd "?\$\(dirname "?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\)"?( *\|\| *exit( 1)?)?"""
)
_PURE = re.compile(r"\$\{\w+(?:(?:%%?|##?|//?)[^}$`]*)?\}")
_OUT = "this line is more than a job file can say for certain"


class GrammarReader:
    """Reads one script. `environ`: names of variables that programs have anyway.

    `must` is the job without whose success `set -e` ends the script, `done` what has ended, and
    `running` what may still run. Within a loop over files, `pattern` and `item` are the loop's;
    `trial` is True while its turns are only read.
    """

    def __init__(self, script: Script, environ: Collection[str]) -> None:
        self.script = script
        self.environ = environ
        self.known = Known(script)
        self.env: dict[str, str] = {}
        self.jobs: list[InitEntry] = []
        self.errexit = self.own_directory = self.trial = False
        self.must = self.pattern = self.item = ""
        self.done: list[str] = []
        self.running: list[InitEntry] = []

    def read(self, title: str) -> str:
        """Return the job file. Raises Unfit at the first line that does not belong."""
        self._block(statements_of(self.script.root))
        self._wait()
        if not any(job.cards for job in self.jobs):
            raise Unfit(f"no command in it chooses a card by {MASK}")
        return job_file(title, self.jobs)

    # ── statements ──────────────────────────────────────────────────────────────────────────────

    def _block(self, statements: Sequence[tuple[Node, bool]]) -> None:
        for node, background in statements:
            try:
                self._statement(node, background)
            except Unfit as unfit:
                unfit.line = unfit.line or self.script.line(node)
                raise

    def _statement(self, node: Node, background: bool) -> None:
        kind, typed = node.type, self.script.text(node)
        if kind == "comment":
            return
        if kind in ("command", "redirected_statement") and not _HERE.fullmatch(typed):
            self._command(node, background)
        elif background:
            raise Unfit(_OUT)
        elif kind == "for_statement" and typed.startswith("for"):
            self._for(node)
        elif kind in ("variable_assignment", "variable_assignments"):
            for part in [node] if kind == "variable_assignment" else node.named_children:
                self._assign(part)
        elif kind == "declaration_command" and re.fullmatch(r"export( +\w+=.*)+", typed):
            for part in node.named_children:
                self._assign(part, exported=True)
        elif kind == "compound_statement" and typed.startswith("((") and not self.errexit:
            for child in node.named_children:
                self.known.number(child)
        elif _HERE.fullmatch(typed) and not self.jobs and not self.pattern:
            self.own_directory = True
        else:
            raise Unfit(_OUT)

    def _assign(self, node: Node, exported: bool = False) -> None:
        name, value = self.script.part(node, "name"), node.child_by_field_name("value")
        if not name.isidentifier() or self.script.text(node).startswith(f"{name}+="):
            raise Unfit(_OUT)
        if name in MASKS | _SPECIAL or (name in self.environ and name not in self.env):
            raise Unfit(f"changes {name}, which programs may read")
        self._refuse_other(node)
        self.known.assign(node)
        if value is not None and value.type == "array" and name not in self.known.lists:
            raise Unfit("only the shell can know what the list holds")
        if exported or name in self.env:
            value_then = plain(self.known.get(name))
            if value_then is None or self.pattern:
                raise Unfit(f"only the shell can know the value of {name}")
            self.env[name] = escaped(value_then)

    # ── loops ───────────────────────────────────────────────────────────────────────────────────

    def _for(self, node: Node) -> None:
        values, body = node.children_by_field_name("value"), node.child_by_field_name("body")
        name = self.script.part(node, "variable")
        if body is None or not values or name in self.environ:
            raise Unfit(_OUT)
        if pattern := self._pattern_of(values):
            self._over_files(name, pattern, statements_of(body))
            return
        found = self.known.items(values)
        items = [plain(value) for value in found[0]] if found and found[1] else [None]
        if self.pattern or None in items:
            raise Unfit("only the shell can know over what the loop goes")
        for item in items:
            self.known.set(name, frozenset({str(item)}))
            self._block(statements_of(body))

    def _over_files(self, name: str, pattern: str, turn: Sequence[tuple[Node, bool]]) -> None:
        """Read the body of a loop once for all its turns, which run side by side."""
        if self.pattern:
            raise Unfit("one loop over files stands within another")
        self.pattern, self.item, self.trial = pattern, name, True
        for _ in range(MAX_TURNS):  # until all that an earlier turn may have left is known
            before = self.known.copy()
            self.known.set(name, UNKNOWN)
            self._block(turn)
            self.known.join(before, widen=True)
            if self.known == before:
                break
        self.trial = False
        self._block(turn)
        self.known.forget(name)
        self.pattern = self.item = ""

    def _pattern_of(self, values: Sequence[Node]) -> str:
        """Return the pattern of files that a loop goes over; empty if it goes over words."""
        if len(values) != 1 or values[0].type not in ("word", "concatenation"):
            return ""
        text = self.script.text(values[0])
        for name in re.findall(r"\$\{?(\w+)", text):
            value = plain(self.known.get(name))
            if value is None or not _SAFE.fullmatch(value) or " " in value:
                return ""
            text = re.sub(rf"\$\{{{name}\}}|\${name}\b", value, text)
        text = re.sub(r'"([\w./@%+:-]*)"', r"\1", text)
        return text if _PATTERN.fullmatch(text) and "**" not in text else ""

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    def _command(self, node: Node, background: bool) -> None:
        command = node if node.type == "command" else node.child_by_field_name("body")
        if command is None or command.type != "command":
            raise Unfit(_OUT)
        self._refuse_other(node)
        typed = [self.script.text(word) for word in words_of(command)]
        own = [one for one in assignments_of(command) if self.script.part(one, "name") == MASK]
        if own:
            self._masked(node, command, own[-1], background)
        elif background or node is not command or assignments_of(command) or not typed:
            raise Unfit(_OUT)
        elif typed == ["wait"] and not self.pattern:
            self._wait()
        elif typed[:2] == ["mkdir", "-p"] and not self.pattern:
            self._add("mkdir", self._run(node), (0, frozenset()), background=False)
        elif typed[0] == "set" and re.fullmatch(r"set( -[euxo]+( pipefail)?)+", " ".join(typed)):
            self.errexit = self.errexit or any("e" in word for word in typed[1:] if word[0] == "-")
        elif typed[0] != "echo":
            raise Unfit(_OUT)

    def _masked(self, node: Node, command: Node, own: Node, background: bool) -> None:
        if self.pattern and not background:
            raise Unfit("the turns of a loop over files run one after the other")
        words, value = words_of(command), own.child_by_field_name("value")
        typed = [self.script.text(word) for word in words]
        if not typed or typed[0] in OWN_SHELL or any(MASK in word for word in typed):
            raise Unfit(_OUT)
        refuse_outside(typed)
        refuse_no_program(self.known.value(words[0]), (), False)
        mask = self.known.mask(own, value)
        self._add(_name_of(typed), self._run(node, own), mask, background)

    def _refuse_other(self, node: Node) -> None:
        """Raise Unfit for what is neither a plain word nor the pure expansion of a variable."""
        for one in walk(node):
            text = self.script.text(one)
            impure = one.type == "expansion" and not _PURE.fullmatch(text)
            impure = impure and not re.fullmatch(r"\$\{#?\w+\[[^\n]*\]\}", text)
            sets = one.type == "arithmetic_expansion" and "=" in text
            if impure or sets or (one.is_named and one.type not in _TYPES):
                raise Unfit(_OUT)

    def _run(self, node: Node, mask: Node | None = None) -> str:
        """Return a command's text without its mask, and with values in place of what is known."""
        edits, pending, start = [], [node], node.start_byte
        for one in pending:
            if mask is not None and one == mask:
                after = mask.next_sibling
                edits.append((one.start_byte, after.start_byte if after else one.end_byte, ""))
            elif one.type in EXPANSIONS:
                edits.append((one.start_byte, one.end_byte, self._expanded(one)))
            else:
                pending.extend(one.children)
        moved = [(left - start, right - start, text) for left, right, text in edits]
        text = edited(self.script.source[start : node.end_byte], moved)
        if not re.search("['\"]", text):
            text = re.sub(r"[ \t]*\\\n[ \t]*", " ", text)
        if self.item and re.search(rf"\$\{{?{self.item}\b", text):
            text = f"{self.item}=\0\n{text}"
        return "{{item}}".join(map(escaped, text.split("\0")))

    def _expanded(self, node: Node) -> str:
        """Return what stands in place of `$x`. Raises Unfit where its value is not known."""
        value, spelt = plain(self.known.value(node)), self.script.text(node)
        quoted = node.parent is not None and node.parent.type == "string"
        names = {self.script.text(one) for one in walk(node) if one.type == "variable_name"}
        if names and names <= (_OF_OTHERS - self.known.texts.keys()) | self.env.keys():
            return spelt
        if names == {self.item} and value is None:
            return "\0" if quoted and spelt.strip("${}") == self.item else spelt
        if value is None or names & self.env.keys():
            raise Unfit(f"the value of {spelt} is not known before the script runs")
        if quoted:
            return re.sub(r'([\\"$`])', r"\\\1", value)
        around = self.script.slice(node.start_byte - 1, node.end_byte + 1)
        apart = node.parent is not None and node.parent.type == "command"
        joined = re.search(r"[<>{}]", around[0] + around[-1]) or (" " in value and not apart)
        if joined or not _SAFE.fullmatch(value):
            raise Unfit(f"the shell may take the value of {spelt} apart")
        return value

    # ── jobs and their order ────────────────────────────────────────────────────────────────────

    def _add(self, base: str, run: str, mask: tuple[int, Value], background: bool) -> None:
        if self.trial:
            return
        taken = {job.name.partition("-")[0] for job in self.jobs}
        names = (base if number < 2 else f"{base}{number}" for number in range(1, 10_000))
        name = next(name for name in names if name not in taken)
        if self.pattern:
            alike = re.fullmatch(r"(?:[^*?]*/)?[^/]*\.[^./*?]+", self.pattern)
            name += "-{{stem}}" if alike else "-{{index}}"
        needs = (self.must,) if self.must else ()
        env = tuple(self.env.items())
        waits = needs, tuple(self.done)
        job = InitEntry(name, run, mask[0], self.pattern, *waits, env, entries_of(mask[1]))
        self.jobs.append(job)
        if len(self.jobs) > MAX_ENTRIES:
            raise Unfit(f"would need more than {MAX_ENTRIES} entries of a job file")
        if background:
            self.running.append(job)
        elif self.errexit:
            self.must, self.done = job.group, []
        else:
            self.done = [job.group]

    def _wait(self) -> None:
        """Count all that runs as ended, and note how many ran on one card at once."""
        load = Counter(card for job in self.running for card in job.cards if not job.pattern)
        for job in self.running:
            beside = max((load[card] for card in job.cards), default=1)
            if beside > 1 and job.count == 1:
                self.jobs[self.jobs.index(job)] = replace(job, beside=beside)
        covered = {name for job in self.running for name in job.after}
        self.done = [name for name in self.done if name not in covered]
        self.done += [job.group for job in self.running]
        self.running = []


def _name_of(typed: Sequence[str]) -> str:
    """Return a name for a command's job: that of the script it runs, or of its program."""
    plain_words = [word.strip("\"'").rpartition("/")[2] for word in typed if "$" not in word]
    scripts = [word for word in plain_words if re.search(r"\w\.(py|sh|R)$", word)]
    name = re.sub(r"\.(py|sh|R)$", "", (scripts or plain_words or ["job"])[0])
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:60] or "job"
