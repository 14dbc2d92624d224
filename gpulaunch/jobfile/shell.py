"""Reads shell scripts without running them: quoting, words and simple commands.

    script ──_Scanner──▶ frames ──▶ quoting of placeholders   compile_script, quotings, left_open
                           └──────▶ outline: only the code ─▶ words ─▶ commands   parts_in
                                                  one word as its program gets it: value_of

The scanner follows quotes, substitutions, comments and here-documents exactly as far as it takes
to know the context of each letter. It never guesses: where it cannot know, it is lost, and says
"cannot be quoted here". What is quoted, expanded or in a here-document is no command.

    frames:  bare ── ' ──▶ single      "..." ──▶ double      $'...' ──▶ ansi
             bare, double ── $( ──▶ bare (until its `)`)     ${ ──▶ brace    $(( ──▶ arith
             bare, double ── ` ──▶ backtick

A placeholder is safe in bare, single, double and ansi, unless a brace, arith or backtick frame is
around it with no `$(` between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, takewhile
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from gpulaunch.core.template import Quoting, Slot, Text, text_of
from gpulaunch.jobfile.commands import BUILTINS, PREFIXES
from gpulaunch.jobfile.placeholders import Piece, pieces

MARK = "\0"
"""What stands for a placeholder, in a script that is scanned."""
_WORD = re.compile(r"[\w./,:=+@%^~-]+", re.ASCII)
_WORDS = re.compile(r"(?:[ \t]*(?!case[ \t\n])[\w./,:=+@%^~-]+)+[ \t]*", re.ASCII)
_QUOTED = re.compile(r"[\w./,:=+@%^~ \t\n-]+")
_DEEPEST = 50
_META = frozenset(" \t\n;&|()<>")
_ANSI_SHELLS = frozenset({"bash", "zsh", "ksh", "mksh"})
_CASE = re.compile(r"case(?=[ \t\n])")
_SUBSCRIPT = re.compile(r"(?:^|[\s;&|()<>])[^\W\d]\w*\[[^\]\s]*$", re.ASCII)
_END_MARK = re.compile(
    rf"[ \t]*((?:'[^'{MARK}]*'|\"[^\"{MARK}]*\"|\\[^{MARK}]|[^ \t\n;&|()<>'\"\\$`{MARK}])*)"
)
"""What ends a here-document, as it is announced."""
_QUOTING_IN_MARK = re.compile(r"'([^']*)'|\"([^\"]*)\"|\\(.)", re.DOTALL)
_HERE = {
    "brace": "inside ${...}",
    "arith": "inside arithmetic",
    "bracket": "inside arithmetic",
    "backtick": "inside `...` (write $(...) instead)",
}
_CLOSES = {"single": "'", "double": '"', "ansi": "'", "brace": "}", "bracket": "]", "backtick": "`"}
"""What ends a frame; bare text and arithmetic count their parentheses."""
_EXPANDS = frozenset({"double", "brace", "arith", "bracket"})
"""Frames in which `$`, a backtick and `"` begin something."""
_QUOTING: dict[str, Quoting] = {"single": "single", "double": "double"}
_QUOTES = frozenset({"single", "double", "ansi", "backtick"})
_OF_CODE = frozenset({"top", "paren"})

_ADVICE = "; assign it to a variable before that and use the variable, or pass it in env:"


class _Frame(Struct):
    """`kind`: top paren single double ansi brace arith bracket backtick."""

    kind: str
    depth: int = 0


Errors: TypeAlias = list[tuple[int, str]]
"""A placeholder's number in the script, and what is wrong with it."""


def compile_script(script: str, dialect: str) -> tuple[Text, Errors]:
    """Return the script as a Template whose slots know their quoting, and its mistakes.

    A placeholder in a comment stays the text it is.
    """
    found = list(pieces(script))
    names = [piece.name for piece in found if isinstance(piece, Slot)]
    if not names:
        return text_of(found), []
    marked = "".join(piece if isinstance(piece, str) else MARK for piece in found)
    scanned = _Scanner(marked, dialect).scan()
    errors = [(i, f"{{{{{names[i]}}}}} cannot be quoted {why}") for i, why in scanned.errors]
    return text_of(_quoted(found, scanned)), errors


def quotings(marked: str, dialect: str) -> list[Quoting | None]:
    """Return for each MARK of a script how it is quoted; None in comments, and where none helps."""
    scanned = _Scanner(marked, dialect).scan()
    wrong = {number for number, _ in scanned.errors}
    return [None if number in wrong else one for number, one in enumerate(scanned.quoting)]


def left_open(script: str, dialect: str) -> str:
    """Return the quotation mark that a script never closes, or << of a here-document to come.

    Empty if there is none, and where the scanner cannot know.
    """
    scanned = _Scanner(script, dialect).scan()
    if scanned.lost:
        return ""
    kinds = (frame.kind for frame in scanned.frames)
    mark = next((_CLOSES[kind] for kind in kinds if kind in _QUOTES), "")
    return mark or "<<" * bool(scanned.heredocs)


def understood(script: str, dialect: str) -> bool:
    """Return True if the scanner knows to the end of the script what is code there."""
    return not _Scanner(script, dialect).scan().lost


BLANK = "\x01"


def outline(script: str, dialect: str) -> str:
    """Return the script with only its code left, each letter in its place.

    Comments and here-documents become spaces, and BLANKs what is quoted or expanded; `$(` and its
    `)` stay. Spaces, too, from where the scanner can no longer know.
    """
    scanner = _Scanner(script.replace(BLANK, " "), dialect)
    out: list[str] = []
    for kind, start in scanner.steps():
        out.append(_outlined(scanner, kind, scanner.script[start : scanner.at]))
        if scanner.lost:
            break
    text = "".join(out)[: len(script)]
    return text.ljust(len(script))


def _outlined(scanner: _Scanner, kind: str, piece: str) -> str:
    if piece == "$(":
        return piece
    if kind not in _OF_CODE or piece[0] in "'\"`" or (piece[0] == "$" and len(piece) > 1):
        return BLANK * len(piece)
    if piece.startswith("#"):
        return (" " if scanner.word_start else BLANK) * len(piece)
    if piece.startswith("\n"):
        return re.sub(r"[^\n]", " ", piece)
    if piece.startswith("\\"):
        return (" " if piece == "\\\n" else BLANK) * len(piece)
    if piece.startswith("<<") and piece != "<<<":
        return " " * len(piece)
    return BLANK * len(piece) if piece == "((" else piece


def _quoted(found: Sequence[Piece], scanned: _Scanner) -> Iterator[Piece]:
    numbers = count()
    for piece in found:
        if isinstance(piece, str):
            yield piece
            continue
        number = next(numbers)
        quoting = scanned.quoting[number]
        if quoting is None:
            yield f"{{{{{piece.name}}}}}"
        elif number in scanned.ansi:
            yield from ("'", Slot(piece.name, "bare"), "$'")
        else:
            yield Slot(piece.name, quoting)


class _Scanner:
    def __init__(self, script: str, dialect: str) -> None:
        self.script = script
        self.dialect = dialect
        self.at = 0
        self.frames = [_Frame("top")]
        # For each placeholder its quoting, None if it stays text; and what is wrong with some.
        self.quoting: list[Quoting | None] = []
        self.ansi: set[int] = set()
        self.errors: list[tuple[int, str]] = []
        self.word_start = True
        self.heredocs: list[tuple[str, bool, int]] = []
        self.lost = ""

    def scan(self) -> _Scanner:
        for _ in self.steps():
            pass
        return self

    def steps(self) -> Iterator[tuple[str, int]]:
        """Yield after each step the kind of its frame, and where it began."""
        while self.at < len(self.script):
            kind, start = self.frames[-1].kind, self.at
            if kind in _OF_CODE:
                self._bare()
            else:
                self._inside(kind, self.script[start])
            yield kind, start

    # ── one step in each kind of frame ──────────────────────────────────────────────────────────

    def _bare(self) -> None:
        plain = _WORDS.match(self.script, self.at)
        if plain:
            self.at = plain.end()
            self.word_start = self.script[self.at - 1] in _META
            return
        char = self.script[self.at]
        starts_word, self.word_start = self.word_start, char in _META
        if char == MARK:
            self._placeholder("bare")
        elif char == "\\":
            # A continued line: the word before the backslash goes on.
            self.word_start = starts_word and self.script.startswith("\n", self.at + 1)
            self.at += 2
        elif char == "\n":
            self.at += 1
            self._here_documents()
        elif char == "#" and starts_word:
            self._comment()
        elif char == "'":
            self._open("single", 1)
        elif char in '"`$':
            self._expansion(char)
        elif char == "<":
            self._less()
        elif char in "()":
            self._parenthesis(char)
        else:
            if starts_word and char == "c" and _CASE.match(self.script, self.at):
                self._case()
            self._skip(_WORD)

    def _inside(self, kind: str, char: str) -> None:
        """Take a step in quotes, a substitution or arithmetic."""
        if char == MARK:
            if kind == "ansi":
                self.ansi.add(len(self.quoting))
            self._placeholder(_QUOTING.get(kind, "bare"))
        elif char == _CLOSES.get(kind):
            self._close()
        elif char == "\\" and kind != "single":
            self.at += 2
        elif kind in _EXPANDS and char in '"`$':
            self._expansion(char)
        elif kind in ("brace", "arith", "bracket"):
            self._expression(kind, char)
        else:
            self._skip()

    def _expression(self, kind: str, char: str) -> None:
        if kind == "arith" and char in "()":
            self._counted(char)
        elif kind == "bracket" and char == "[":
            self._lose("after nested [ inside $[...]")
        elif char != "'":
            self.at += 1
        elif kind != "brace":
            self._lose("after a ' inside arithmetic")
        elif "double" in self._around():  # there a ' may or may not be a quote
            self._lose('after a \' inside "${...}"')
        else:
            self._open("single", 1)

    def _counted(self, char: str) -> None:
        frame = self.frames[-1]
        frame.depth += 1 if char == "(" else -1
        self.at += 1
        if char == ")" and frame.depth == 1 and not self.script.startswith(")", self.at):
            self._lose("after (( that does not end in )): write ( ( for nested subshells")
        elif frame.depth == 0:
            self.frames.pop()

    # ── what opens something ────────────────────────────────────────────────────────────────────

    def _expansion(self, char: str) -> None:
        if char == "$":
            self._dollar()
        else:
            self._open("double" if char == '"' else "backtick", 1)

    def _dollar(self) -> None:
        rest = self.script[self.at + 1 : self.at + 3]
        bare = self.frames[-1].kind in _OF_CODE
        if rest.startswith(MARK):
            self.at += 1
            self._fail("right after a $")
        elif rest == "((":
            self._open("arith", 3, depth=2)
        elif rest.startswith("("):
            self._open("paren", 2)
            self.word_start = True
        elif rest.startswith("["):
            self._open("bracket", 2)
        elif rest.startswith("{"):
            if rest[1:] in (" ", "\t", "\n", "|"):
                self._lose("after ${ with a command inside")
            else:
                # ${#x} and ${'...: the first character is never a closing one.
                self._open("brace", 2)
        elif rest.startswith("'") and bare:
            if self.dialect not in _ANSI_SHELLS:
                self._lose(f"after $' in {self.dialect}, which may not know it")
            else:
                self._open("ansi", 2)
        elif rest[:1] in tuple("$#?!@*-"):
            self.at += 2
        else:
            self.at += 1

    def _less(self) -> None:
        if self.script.startswith("<<<", self.at):
            self.at += 3
        elif self.script.startswith("<<", self.at):
            self._here_document()
        else:
            self.at += 1

    def _parenthesis(self, char: str) -> None:
        frame = self.frames[-1]
        if self.script.startswith("((", self.at):
            self._open("arith", 2, depth=2)
            return
        self.at += 1
        if frame.kind == "paren":
            frame.depth += 1 if char == "(" else -1
            if frame.depth < 0:
                self.frames.pop()
                self.word_start = False

    def _case(self) -> None:
        """Give up at `case` inside `"$( ... )"`: a pattern's `)` hides where that ends."""
        if any(frame.kind not in _OF_CODE for frame in self.frames):
            self._lose('after `case` inside "$(...)"')

    def _comment(self) -> None:
        end = self._line_end()
        marks = self.script.count(MARK, self.at, end)
        self.quoting += [None] * marks
        self.at = end
        self.word_start = True

    # ── here-documents ──────────────────────────────────────────────────────────────────────────

    def _here_document(self) -> None:
        self.at += 2
        strip = self.script.startswith("-", self.at)
        self.at += strip
        start, word = self.at, ""
        while True:
            found = _END_MARK.match(self.script, self.at)
            assert found is not None
            self.at = found.end()
            word += _QUOTING_IN_MARK.sub(lambda one: "".join(filter(None, one.groups())), found[1])
            if self.script.startswith(MARK, self.at):
                self._fail("as the end mark of a here-document")
            elif self.script.startswith(("$", "`"), self.at):
                self._lose("after a here-document with such an end mark")
            else:
                break
        if self.script[start : self.at].strip(" \t"):
            self.heredocs.append((word, strip, len(self.frames)))
        self.word_start = False

    def _here_documents(self) -> None:
        """Read, at a line's end, the bodies of the here-documents that it announced."""
        pending, self.heredocs = self.heredocs, []
        for word, strip, depth in pending:
            if depth != len(self.frames):
                self._lose("after a here-document whose line goes on inside $(...)")
                return
            self._body(word, strip)

    def _body(self, word: str, strip: bool) -> None:
        while self.at < len(self.script):
            end = self._line_end()
            line = self.script[self.at : end]
            if (line.lstrip("\t") if strip else line) == word:
                self.at = min(end + 1, len(self.script))
                return
            for _ in range(line.count(MARK)):
                self._note("in a here-document; set a variable before it, or use printf")
            self.at = min(end + 1, len(self.script))

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────

    def _placeholder(self, quoting: Quoting) -> None:
        why = self.lost or self._unsafe()
        if why:
            self._fail(why)
            return
        self.quoting.append(quoting)
        self.at += 1

    def _line_end(self) -> int:
        end = self.script.find("\n", self.at)
        return len(self.script) if end < 0 else end

    def _unsafe(self) -> str:
        if any(frame.kind == "backtick" for frame in self.frames):
            return _HERE["backtick"]
        for kind in self._around():
            if kind in _HERE:
                return _HERE[kind]
        if self.frames[-1].kind in _OF_CODE and _SUBSCRIPT.search(
            self.script[max(0, self.at - 200) : self.at]
        ):
            return "as a subscript, which the shell would evaluate"
        return ""

    def _fail(self, why: str) -> None:
        self._note(why if "write " in why else why + _ADVICE)
        self.at += 1

    def _note(self, why: str) -> None:
        """Set an error at the next placeholder; its quoting no longer matters."""
        self.errors.append((len(self.quoting), why))
        self.quoting.append("bare")

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        self.at += 1

    def _around(self) -> Iterator[str]:
        """Yield the kinds of the frames around, from the inside out, up to the nearest `$(`."""
        kinds = (frame.kind for frame in reversed(self.frames))
        return takewhile(lambda kind: kind not in _OF_CODE, kinds)

    def _open(self, kind: str, length: int, depth: int = 0) -> None:
        if len(self.frames) > _DEEPEST:
            self._lose("so deep inside")
            return
        self.frames.append(_Frame(kind, depth))
        self.at += length

    def _close(self) -> None:
        self.frames.pop()
        self.at += 1
        self.word_start = False

    def _skip(self, ordinary: re.Pattern[str] = _QUOTED) -> None:
        """Skip characters without a special meaning here, many at once."""
        plain = ordinary.match(self.script, self.at)
        self.at = plain.end() if plain else self.at + 1


# ── words and commands ──────────────────────────────────────────────────────────────────────────

_TOKEN = re.compile(
    r"(?P<end>\n|;+&?|&&|\|[|&]?|&(?!>))|(?P<open>\()|(?P<close>\))"
    r"|(?P<redirect>[0-9]*(?:&>>?|>>?[&|]?|<<<|<[&>]?))|(?P<word>[^\s;&|()<>]+)|[^\S\n]+"
)
_OPERATOR = re.compile(r"[\n;&|()<>]")
_KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "coproc"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_PROGRAM = re.compile(r"[\w./+@%:-]+", re.ASCII)
_OF_PREFIX = re.compile(r"-.*|[0-9][0-9.,:-]*[smhd]?|\{\}")
_PLAIN = re.compile(r"[^\\'\"$`*?\[\]{}~]+")
_PART = re.compile(
    r"'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\`]|\\.)*)\"|\$(?:\{(?P<braced>\w+)\}|(?P<name>\w+))"
    r"|\\(?P<escaped>.)|(?P<plain>[^\\'\"$`*?\[\]{}~]+)",
    re.DOTALL | re.ASCII,
)
_PART_IN_DOUBLE = re.compile(
    r"\$(?:\{(?P<braced>\w+)\}|(?P<name>\w+))|\\(?P<escaped>[\\\"$`\n])|(?P<plain>[^\\$]+|\\)",
    re.DOTALL | re.ASCII,
)
_LONGEST_VALUE = 10_000


class Word(Struct, frozen=True):
    """A word from `start` to `end` of a script; `text` has BLANK for what is not plain."""

    text: str
    start: int
    end: int

    @property
    def program(self) -> str:
        """The name of the program that it may be, without its directory."""
        return self.text.rpartition("/")[2]


class ShellCommand(Struct, frozen=True):
    """A command: `assignments`, its own name (after `nohup`, `env` ...) and its arguments.

    `before` are those other programs and their options.
    """

    assignments: tuple[Word, ...]
    name: Word | None
    arguments: tuple[Word, ...]
    before: tuple[Word, ...] = ()

    @property
    def program(self) -> str:
        return self.name.program if self.name else ""


class ScriptPart(NamedTuple):
    """A command of a script. `end`: the operator after it, empty at the end of the script.

    `expanded`: the command stands in `$(...)` or `<(...)`.
    """

    command: ShellCommand
    end: str
    expanded: bool


def commands_in(script: str, dialect: str) -> Iterator[ShellCommand]:
    """Yield a script's commands, in the order in which they end."""
    return (part.command for part in parts_in(script, dialect))


def parts_in(script: str, dialect: str) -> Iterator[ScriptPart]:
    """Yield a script's commands with what joins them, in the order in which they end."""
    outer: list[tuple[list[Word], bool]] = []
    words: list[Word] = []
    target = expanded = False
    for match in _TOKEN.finditer(outline(script, dialect)):
        kind = match.lastgroup
        if kind == "word" and not target:
            words.append(Word(match.group(), match.start(), match.end()))
        if kind == "end":
            yield ScriptPart(command_of(words), match.group(), expanded)
            words = []
        elif kind == "open":
            outer.append((words, expanded))
            words = []
            expanded = expanded or script[match.start() - 1 : match.start()] in ("$", "<", ">")
        elif kind == "close" and not outer:
            words = []  # the pattern of a `case`
        elif kind == "close":
            yield ScriptPart(command_of(words), ")", expanded)
            words, expanded = outer.pop()
            if script[match.start() - 1] == "(":
                words = []  # `f()` before a function's body
        if kind is not None:
            target = kind == "redirect"
    yield ScriptPart(command_of(words), "", expanded)


def command_of(words: Sequence[Word]) -> ShellCommand:
    """Return the command of these words, without leading keywords."""
    at = 0
    while at < len(words) and words[at].text in _KEYWORDS:
        at += 1
    assignments: list[Word] = []
    before: list[Word] = []
    for number in range(at, len(words)):
        word = words[number]
        if _ASSIGNMENT.match(word.text):
            assignments.append(word)
        elif word.program in PREFIXES or (before and _OF_PREFIX.fullmatch(word.text)):
            before.append(word)
        else:
            return ShellCommand(tuple(assignments), word, tuple(words[number + 1 :]), tuple(before))
    return ShellCommand(tuple(assignments), None, (), tuple(before))


def first_program(script: str, environ: Mapping[str, str]) -> str:
    """Return the program that a bash script starts first; empty if uncertain, or bash itself.

    What the shell inherits as a function is none; where the script defines functions, nobody knows.
    """
    command = next(commands_in(script, "bash"), None)
    if command is None or command.name is None or "(" in outline(script, "bash"):
        return ""
    name = command.name
    typed = script[name.start : name.end]
    inherited = f"BASH_FUNC_{typed}%%" in environ
    if any(script.startswith("PATH=", word.start) for word in command.assignments):
        return ""
    plain = BLANK not in name.text and _PROGRAM.fullmatch(typed)
    return typed if plain and typed not in BUILTINS and not inherited else ""


def literal_words(script: str) -> list[tuple[str, str]] | None:
    """Return each word of a bash script that is one command: as typed, and as the program gets it.

    None where only a shell can run the script: it has an operator, an expansion or a comment.
    """
    code = outline(script, "bash")
    if _OPERATOR.search(code):
        return None
    if any(one == " " and typed not in " \t" for one, typed in zip(code, script, strict=True)):
        return None
    words = [script[match.start() : match.end()] for match in re.finditer(r"[^ \t]+", code)]
    pairs = [(word, value) for word in words if (value := value_of(word, {})) is not None]
    return pairs if len(pairs) == len(words) and _KEYWORDS.isdisjoint(words[:1]) else None


def value_of(typed: str, variables: Mapping[str, str]) -> str | None:
    """Return a word as the shell hands it on; None where that is not certain.

    `variables`: what is known of them; HOME is that of a `~/` too.
    """
    if _PLAIN.fullmatch(typed):
        return typed
    if typed == "~" or typed.startswith("~/"):
        home, rest = variables.get("HOME"), typed[1:]
        tail = value_of(rest, variables) if rest else ""
        return None if home is None or tail is None else home + tail
    return _joined(typed, variables, _PART)


def _joined(text: str, variables: Mapping[str, str], parts: re.Pattern[str]) -> str | None:
    out: list[str] = []
    at = 0
    while at < len(text):
        match = parts.match(text, at)
        value = None if match is None else _part(match.groupdict(), variables)
        if match is None or value is None or len(value) > _LONGEST_VALUE:
            return None
        out.append(value)
        at = match.end()
    return "".join(out)


def _part(found: Mapping[str, str | None], variables: Mapping[str, str]) -> str | None:
    name = found.get("braced") or found.get("name")
    if name is not None:
        return variables.get(name)
    if (double := found.get("double")) is not None:
        return _joined(double, variables, _PART_IN_DOUBLE)
    if (escaped := found.get("escaped")) is not None:
        return "" if escaped == "\n" else escaped
    return found.get("single") if found.get("single") is not None else found["plain"]
