"""A shell script, or one command's words: what is suspect, and which files are run.

The commands are those of jobfile.shell, so what is quoted, expanded or in a here-document is none,
except for what a shell is handed as a script (`sh -c`, `eval`), which is read as one. Of the words
of every other program only those count that speak of the mask: `tmux new -d '...'`, `ssh HOST`.
Variables are followed as far as they are plain texts: `GPU=1; python x.py --gpu_id $GPU`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, takewhile

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.containers.options import image_in
from gpulaunch.diagnose.lint import commands, finding
from gpulaunch.diagnose.lint.finding import MASK, ORDER, PORT, ProgramRun, Suspect
from gpulaunch.jobfile.commands import SETTERS, daemon_of, sets_mask, use_container
from gpulaunch.jobfile.endings import AT_ONCE, hidden, left_running
from gpulaunch.jobfile.shell import ShellCommand, Word, command_of, commands_in, value_of
from gpulaunch.jobfile.values import SHELLS

MAX_SUSPECTS = 100
"""Suspects of one script; and files that it runs."""
COMMANDS = 3000
"""Commands of one script that are looked at."""
MAX_ENDING_CHARACTERS = 200_000
"""Characters of a script whose end is looked at."""
WORDS = 50_000
"""Words of one script that are looked at, those of expanded variables included."""

_EXPANDED = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*)", re.ASCII)
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)", re.DOTALL)
_BARE = re.compile(r"\$(?:\w+|\{\w+\})", re.ASCII)
_SETTING = re.compile(r"(?:--?)?[A-Za-z][\w.-]*=", re.ASCII)
_TESTS = frozenset({"[", "[[", "test"})
_OWN_DIRECTORY = re.compile(r"[ \t]+\S*\$\([^\n]*dirname[^\n]*(?:\$\{?0|BASH_SOURCE)[^\n/]*$", re.M)
_MORE = re.compile(
    r"\$\{?[@*1-9]|\$\{?\w*(?:arg|opt|flag|param|extra)\w*|\$\{\w+\[[@*]", re.IGNORECASE
)
DEEPEST = 4
"""Commands in a string of a command in a string ..."""
_RUNS_A_STRING = re.compile(r"-[a-z]*c")
_SOURCES = (":::", "::::", ":::+", "::::+")
_GIVEN = re.compile(r"(?:-e|--[\w-]+=)?(?:[A-Za-z]\w*(?:=[^,\s]*)?,)*(?=CUDA_VISIBLE_DEVICES=)")


class SuspectWord(Struct, frozen=True):
    """`word` is where it stands; `number` is its place in a command that no shell reads."""

    word: Word
    suspect: Suspect
    number: int = 0


class ShellScan(Struct, frozen=True):
    """`runs` are the files that its commands run."""

    found: tuple[SuspectWord, ...] = ()
    runs: tuple[ProgramRun, ...] = ()


def look(
    script: str,
    dialect: str,
    masks: Collection[str] = (),
    shell: Sequence[str] = (),
) -> ShellScan:
    """Everything in a script, in the order of its commands.

    `masks`: variables of the job's that hand its cards' mask on. `shell`: the words that start it.
    """
    reader = _ShellReader(script, masks=masks)
    reader.read_all(dialect)
    found = [*reader.found[:MAX_SUSPECTS], *_of_ending(script, dialect, shell)]
    found.sort(key=lambda one: one.word.start)
    runs = [
        one if number >= reader.latest else replace(one, last=False)
        for number, one in enumerate(reader.runs[:MAX_SUSPECTS])
    ]
    return ShellScan(tuple(found), tuple(runs))


def _of_ending(script: str, dialect: str, shell: Sequence[str]) -> Iterator[SuspectWord]:
    """Yield what the script's end leaves running, or hides. `shell`: the words that start it."""
    if len(script) > MAX_ENDING_CHARACTERS:
        return
    if over := left_running(script, dialect):
        yield SuspectWord(over.word, Suspect("left-running", over.why, over.mend))
    errexit = any(re.fullmatch(r"-[a-z]*e[a-z]*|errexit", one) for one in shell)
    for one in hidden(script, dialect, errexit, "pipefail" in shell):
        yield SuspectWord(one.word, Suspect("hidden-status", one.why, one.mend))


class ScriptStep(Struct, frozen=True):
    """A command of a script: its words, what each stands for (None: nobody knows), and the
    directory where it runs, relative to the script's (None: nobody knows)."""

    command: ShellCommand
    words: tuple[Word, ...]
    values: tuple[str | None, ...]
    cwd: str | None


def steps(script: str, dialect: str, variables: Mapping[str, str]) -> Iterator[ScriptStep]:
    """Yield the commands of a script in turn, those without a program left out."""
    reader = _ShellReader(script)
    reader.known.update(variables)
    for command in islice(commands_in(script, dialect), COMMANDS):
        reader.read(command)
        if command.name is not None and reader.spent <= WORDS:
            words, values = reader.handed_on((command.name, *command.arguments))
            yield ScriptStep(command, tuple(words), tuple(values), reader.cwd)


def look_words(
    words: Sequence[str],
    masks: Collection[str] = (),
) -> ShellScan:
    """Return what is suspect in a command that no shell reads, and what it runs."""
    places = [Word(word, 0, 0) for word in words]
    reader = _ShellReader("", typed=True, masks=masks)
    reader.read(command_of(places))
    numbers = {id(place): number for number, place in enumerate(places)}
    found = tuple(replace(one, number=numbers[id(one.word)]) for one in reader.found)
    run = commands.run_of([known(word) for word in words], ".")
    return ShellScan(found, (run,) if run else ())


def known(word: str | None) -> str | None:
    """Return the word, None where a part of it is known only once it runs."""
    return None if word is None or "{{" in word or "${_}" in word else word


class _ShellReader:
    def __init__(
        self,
        script: str,
        typed: bool = False,
        depth: int = 0,
        masks: Collection[str] = (),
    ) -> None:
        self.script = script
        self.verbatim = typed
        self.depth = depth
        self.known: dict[str, str] = {}
        self.cwd: str | None = "."
        self.found: list[SuspectWord] = []
        self.runs: list[ProgramRun] = []
        self.asked: str = ""
        self.own = set(masks)
        self.spent = 0
        self.latest = 0

    def read_all(self, dialect: str) -> None:
        """Read the commands of the script, unless there are too many, or enough is found."""
        for command in islice(commands_in(self.script, dialect), COMMANDS):
            self.read(command)
            if len(self.found) >= MAX_SUSPECTS or self.spent > WORDS:
                break

    def read(self, command: ShellCommand) -> None:
        program = command.program
        if program in _TESTS:
            self.asked = " ".join(map(self._typed, command.arguments))
        elif program in ("fi", "done"):
            self.asked = ""
        self._pass_on(command)
        self._asks_a_daemon(command)
        self._changes_mask(command)
        exported = command.arguments if program in SETTERS else ()
        for word in (*command.assignments, *exported):
            self._assigned(word, command)
        if command.name is None or program in _TESTS:
            return
        if program not in AT_ONCE:
            self.latest = len(self.runs)
        self._slots(command)
        self._inside(command)
        words, values = self.handed_on((command.name, *command.arguments))
        handed_on = any(map(finding.hands_on, (*self.own, *self.known)))
        for number, suspect in commands.check(values, handed_on):
            # A port by a variable was found where that got its value.
            if suspect.rule != "fixed-port" or "$" not in self._typed(words[number]):
                self._add(words[number], suspect, command.name)
        if program == "cd":
            self._cd(values, command.name)
        elif self.cwd is not None:
            typed = [self._typed(word) for word in words] if not self.verbatim else []
            run = commands.run_of(values, self.cwd, any(map(_MORE.search, typed)))
            if run is not None:
                self.runs.append(run)

    def _slots(self, command: ShellCommand) -> None:
        """`xargs --process-slot-var=CUDA_VISIBLE_DEVICES`: a mask for each of its processes."""
        for word in command.before:
            option, _, value = self._typed(word).partition("=")
            if option == "--process-slot-var" and value == MASK:
                self.found.append(SuspectWord(word, finding.mask(f"{MASK} (by xargs)")))

    def _inside(self, command: ShellCommand) -> None:
        """Commands in the strings of this one; what is found there is told at the string."""
        words = command.arguments
        if self.depth >= DEEPEST or not words or (self.verbatim and command.program in SHELLS):
            return
        if commands.is_textual(command.program):
            return
        texts = [self.value(word) or _loosely_unquoted(self._typed(word)) for word in words]
        for number, text in _scripts_in(command.program, texts):
            found = self._read_inside(text)
            self.found += [SuspectWord(words[number], one.suspect) for one in found]

    def _read_inside(self, text: str) -> list[SuspectWord]:
        """Return what is found in a script inside of this one; adds what it runs."""
        inner = _ShellReader(text, depth=self.depth + 1)
        inner.known, inner.own, inner.asked = dict(self.known), set(self.own), self.asked
        inner.cwd, inner.spent = self.cwd, self.spent
        inner.read_all("bash")
        self.spent = inner.spent
        self.runs += [replace(run, number=0, last=False) for run in inner.runs]
        return inner.found

    def handed_on(self, words: Sequence[Word]) -> tuple[list[Word], list[str | None]]:
        """Return the words as the program gets them; a known bare `$ARGS` falls into several."""
        pairs: list[tuple[Word, str | None]] = []
        for word in words:
            value = self.value(word)
            if value and not self.verbatim and _BARE.fullmatch(self._typed(word)):
                parts = value.replace("\\\n", " ").split()[:200]
                pairs += [(word, part if "$" not in part else None) for part in parts]
            else:
                pairs.append((word, value))
        self.spent += len(pairs)
        return [word for word, _ in pairs], [value for _, value in pairs]

    def _add(self, word: Word, suspect: Suspect, name: Word) -> None:
        """Add a container with cards of its own once, the daemon that starts it included."""
        before = self.found[-1] if self.found else None
        if before and before.suspect.rule == "daemon" and before.word is name:
            self.found.pop()
            suspect = finding.by_daemon(suspect, before.suspect.mend)
        self.found.append(SuspectWord(word, suspect))

    def _asks_a_daemon(self, command: ShellCommand) -> None:
        """Add a command that has a daemon start what then does not end with the job."""
        kind, shown = daemon_of(command.program, [word.text for word in command.arguments])
        if not kind or command.name is None:
            return
        words = [command.name.text, *map(self.value, command.arguments)]
        mend = use_container(image_in(words)) if kind == "container" else "run the program itself"
        suspect = Suspect("daemon", f"{shown} {finding.DAEMONS[kind]}", mend)
        self.found.append(SuspectWord(command.name, suspect))

    def _changes_mask(self, command: ShellCommand) -> None:
        """Add each word of a command that sets or removes the mask."""
        if command.program == "unset":
            removed = (word for word in command.arguments if word.text == MASK)
            self.found += [SuspectWord(word, finding.no_mask()) for word in removed]
        setters = command.arguments if command.program in SETTERS else ()
        for word in (*command.assignments, *setters):
            typed = self._typed(word)
            passed_on = MASK in self.asked or not self.own.isdisjoint(_names(typed))
            if sets_mask(typed) and not passed_on:
                self.found.append(SuspectWord(word, finding.mask()))

    def _pass_on(self, command: ShellCommand) -> None:
        """Variables that get their value from the launcher's mask: `IFS=, read -ra g <<<"$..."`."""
        first = command.assignments[0] if command.assignments else command.name
        if first is None or self.verbatim:
            return
        start = first.start
        end = self.script.find("\n", start)
        line = self.script[start : end if end >= 0 else None][:2000]
        if MASK not in line and "GPULAUNCH_" not in line and self.own.isdisjoint(_names(line)):
            return
        self.own |= {word.text.partition("=")[0] for word in command.assignments} - {MASK}
        if command.program in ("read", "mapfile", "readarray", "for", *SETTERS):
            self.own |= {word.text.partition("=")[0] for word in command.arguments} - {MASK}

    def _assigned(self, word: Word, command: ShellCommand) -> None:
        name, equals, typed = self._typed(word).partition("=")
        if not equals:
            return
        value = typed if self.verbatim else value_of(typed, self.known)
        if command.name is None or command.assignments == () or not self.verbatim:
            self.known.pop(name, None)
            if value is not None and len(value) < 5000:
                self.known[name] = value
        if value is None:
            return
        if name == PORT and value.isdigit() and value != "0" and PORT not in self.asked:
            self.found.append(SuspectWord(word, finding.port(f"{PORT}={value}")))
        elif name == ORDER and (suspect := finding.order(value)):
            self.found.append(SuspectWord(word, suspect))

    def _cd(self, values: Sequence[str | None], name: Word) -> None:
        target = values[1] if len(values) > 1 else None
        if _OWN_DIRECTORY.match(self.script, name.end):
            self.cwd = "<script>"
        elif target is None or target == "-":
            self.cwd = None
        elif self.cwd is not None:
            self.cwd = target if target.startswith("/") else f"{self.cwd}/{target}"

    def _typed(self, word: Word) -> str:
        return word.text if self.verbatim else self.script[word.start : word.end]

    def value(self, word: Word) -> str | None:
        """Return what a word stands for, where that is certain."""
        if self.verbatim:
            return None if "${_}" in word.text else word.text
        typed = self._typed(word)
        value = value_of(typed, self.known)
        # Of `--device=$D` at least the option is known.
        return typed if value is None and _SETTING.match(typed) else value


def _scripts_in(program: str, words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (number of the word, its script) of a command's arguments: the text handed on."""
    if program in SHELLS:
        flags = [at for at, word in enumerate(words[:-1]) if _RUNS_A_STRING.fullmatch(word)]
        if flags:
            yield flags[0] + 1, words[flags[0] + 1]
        return
    if program == "eval" and words:
        yield 0, " ".join(words)
        return
    for at, word in enumerate(words):
        if MASK in word:
            handed = takewhile(lambda one: one not in _SOURCES, words[at:])
            yield at, _GIVEN.sub("", " ".join(handed), count=1)
            return


def _names(text: str) -> set[str]:
    """Return the variables that a text expands."""
    return set(_EXPANDED.findall(text))


def _loosely_unquoted(typed: str) -> str:
    """Return a word without its quotes, expansions left as they are."""

    def bare(match: re.Match[str]) -> str:
        single, double, escaped = match.groups()
        if double is not None:
            return re.sub(r"\\([\\\"$`])", r"\1", double)
        return single if single is not None else escaped

    return _QUOTED.sub(bare, typed)
