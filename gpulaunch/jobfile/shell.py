"""Finds where in a shell script each placeholder stands, and so how to quote its values.

A scanner, not a parser: it follows quotes, substitutions, comments and here-documents exactly as
far as it takes to know each placeholder's context, and says "cannot be quoted here" wherever it
cannot know. Never guesses.

    frames:  bare ── ' ──▶ single      "..." ──▶ double      $'...' ──▶ ansi
             bare, double ── $( ──▶ bare (until its `)`)     ${ ──▶ brace    $(( ──▶ arith
             bare, double ── ` ──▶ backtick

A placeholder is safe in bare, single, double and ansi, unless a brace, arith or backtick frame is
around it with no `$(` between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from typing import TypeAlias

from msgspec import Struct

from gpulaunch.core.template import Quoting, Slot, Text, text_of
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
