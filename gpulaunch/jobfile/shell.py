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
from dataclasses import dataclass, field
from typing import TypeAlias

from gpulaunch.core.template import Quoting, Slot, Text
from gpulaunch.jobfile.placeholders import Piece, pieces, text_of

_MARK = "\0"
_WORD = re.compile(r"[\w./,:=+@%^~-]+", re.ASCII)
_WORDS = re.compile(r"(?:[ \t]*(?!case[ \t\n])[\w./,:=+@%^~-]+)+[ \t]*", re.ASCII)
_QUOTED = re.compile(r"[\w./,:=+@%^~ \t\n-]+")
_DEEPEST = 50
_META = frozenset(" \t\n;&|()<>")
_ANSI_SHELLS = frozenset({"bash", "zsh", "ksh", "mksh"})
_CASE = re.compile(r"case(?=[ \t\n])")
_SUBSCRIPT = re.compile(r"(?:^|[\s;&|()<>])[^\W\d]\w*\[[^\]\s]*$", re.ASCII)
_HERE = {
    "brace": "inside ${...}",
    "arith": "inside arithmetic",
    "backtick": "inside `...` (write $(...) instead)",
}

_ADVICE = "; assign it to a variable before that and use the variable, or pass it in env:"


@dataclass(slots=True)
class _Frame:
    """`kind`: top paren single double ansi brace arith bracket backtick."""

    kind: str
    depth: int = 0


@dataclass(slots=True)
class _Places:
    """Return for each placeholder its quoting, `text` if it is left alone, or an error."""

    quoting: list[Quoting | None] = field(default_factory=list)
    ansi: set[int] = field(default_factory=set)
    errors: list[tuple[int, str]] = field(default_factory=list)


Errors: TypeAlias = list[tuple[int, str]]
"""A placeholder's number in the script, and what is wrong with it."""


def compile_script(script: str, dialect: str) -> tuple[Text, Errors]:
    """Return the script as a Template whose slots know their quoting, and its mistakes.

    A placeholder in a comment stays the text it is.
    """
    found = pieces(script)
    names = [piece.name for piece in found if isinstance(piece, Slot)]
    if not names:
        return text_of(found), []
    marked = "".join(piece if isinstance(piece, str) else _MARK for piece in found)
    places = _Scanner(marked, dialect).scan()
    errors = [(i, f"{{{{{names[i]}}}}} cannot be quoted {why}") for i, why in places.errors]
    return text_of(_quoted(found, places)), errors


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
    if kind not in ("top", "paren") or piece[0] in "'\"`" or (piece[0] == "$" and len(piece) > 1):
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


def _quoted(found: Sequence[Piece], places: _Places) -> list[Piece]:
    out: list[Piece] = []
    number = 0
    for piece in found:
        if isinstance(piece, str):
            new: list[Piece] = [piece]
        else:
            quoting = places.quoting[number]
            if quoting is None:
                new = [f"{{{{{piece.name}}}}}"]
            elif number in places.ansi:
                new = ["'", Slot(piece.name, "bare"), "$'"]
            else:
                new = [Slot(piece.name, quoting)]
            number += 1
        for part in new:
            if out and isinstance(part, str) and isinstance(out[-1], str):
                out[-1] += part
            else:
                out.append(part)
    return out


class _Scanner:
    def __init__(self, script: str, dialect: str) -> None:
        self.script = script
        self.dialect = dialect
        self.at = 0
        self.frames = [_Frame("top")]
        self.places = _Places()
        self.word_start = True
        self.heredocs: list[tuple[str, bool, int]] = []
        self.lost = ""

    def scan(self) -> _Places:
        for _ in self.steps():
            pass
        return self.places

    def steps(self) -> Iterator[tuple[str, int]]:
        """Yield after each step the kind of its frame, and where it began."""
        steps = {
            "top": self._bare,
            "paren": self._bare,
            "single": self._single,
            "double": self._double,
            "ansi": self._ansi,
            "brace": self._brace,
            "arith": self._arith,
            "bracket": self._bracket,
            "backtick": self._backtick,
        }
        while self.at < len(self.script):
            kind, start = self.frames[-1].kind, self.at
            steps[kind]()
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
        if char == _MARK:
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
        elif char == '"':
            self._open("double", 1)
        elif char == "`":
            self._open("backtick", 1)
        elif char == "$":
            self._dollar()
        elif char == "<":
            self._less()
        elif char in "()":
            self._parenthesis(char)
        else:
            if starts_word and char == "c" and _CASE.match(self.script, self.at):
                self._case()
            self._skip(_WORD)

    def _single(self) -> None:
        char = self.script[self.at]
        if char == _MARK:
            self._placeholder("single")
        else:
            self._close() if char == "'" else self._skip()

    def _double(self) -> None:
        char = self.script[self.at]
        if char == _MARK:
            self._placeholder("double")
        elif char == "\\":
            self.at += 2
        elif char == '"':
            self._close()
        elif char == "`":
            self._open("backtick", 1)
        elif char == "$":
            self._dollar()
        else:
            self._skip()

    def _ansi(self) -> None:
        char = self.script[self.at]
        if char == _MARK:
            self.places.ansi.add(len(self.places.quoting))
            self._placeholder("bare")
        elif char == "\\":
            self.at += 2
        else:
            self._close() if char == "'" else self._skip()

    def _brace(self) -> None:
        char = self.script[self.at]
        if char == _MARK:
            self._placeholder("bare")
        elif char == "\\":
            self.at += 2
        elif char == "}":
            self._close()
        elif char == '"':
            self._open("double", 1)
        elif char == "`":
            self._open("backtick", 1)
        elif char == "$":
            self._dollar()
        elif char == "'" and self._inside_double():
            self._lose('after a \' inside "${...}"')
        elif char == "'":
            self._open("single", 1)
        else:
            self.at += 1

    def _arith(self) -> None:
        char = self.script[self.at]
        frame = self.frames[-1]
        if char == _MARK:
            self._placeholder("bare")
        elif char == "(":
            frame.depth += 1
            self.at += 1
        elif char == ")":
            frame.depth -= 1
            self.at += 1
            if frame.depth == 1 and not self.script.startswith(")", self.at):
                self._lose("after (( that does not end in )): write ( ( for nested subshells")
            elif frame.depth == 0:
                self.frames.pop()
        else:
            self._expression(char)

    def _bracket(self) -> None:
        char = self.script[self.at]
        if char == _MARK:
            self._placeholder("bare")
        elif char == "]":
            self._close()
        elif char == "[":
            self._lose("after nested [ inside $[...]")
        else:
            self._expression(char)

    def _expression(self, char: str) -> None:
        if char == "\\":
            self.at += 2
        elif char == '"':
            self._open("double", 1)
        elif char == "`":
            self._open("backtick", 1)
        elif char == "$":
            self._dollar()
        elif char == "'":
            self._lose("after a ' inside arithmetic")
        else:
            self.at += 1

    def _backtick(self) -> None:
        char = self.script[self.at]
        if char == _MARK:
            self._placeholder("bare")
        elif char == "\\":
            self.at += 2
        else:
            self._close() if char == "`" else self._skip()

    # ── what opens something ────────────────────────────────────────────────────────────────────

    def _dollar(self) -> None:
        rest = self.script[self.at + 1 : self.at + 3]
        bare = self.frames[-1].kind in ("top", "paren")
        if rest.startswith(_MARK):
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
        if any(frame.kind not in ("top", "paren") for frame in self.frames):
            self._lose('after `case` inside "$(...)"')

    def _comment(self) -> None:
        end = self.script.find("\n", self.at)
        end = len(self.script) if end < 0 else end
        marks = self.script.count(_MARK, self.at, end)
        self.places.quoting += [None] * marks
        self.at = end
        self.word_start = True

    # ── here-documents ──────────────────────────────────────────────────────────────────────────

    def _here_document(self) -> None:
        self.at += 2
        strip = self.script.startswith("-", self.at)
        self.at += strip
        while self.at < len(self.script) and self.script[self.at] in " \t":
            self.at += 1
        start = self.at
        word = ""
        quote = ""
        while self.at < len(self.script):
            char = self.script[self.at]
            if char == _MARK:
                self._fail("as the end mark of a here-document")
                continue
            if not quote and char in _META:
                break
            self.at += 1
            if char == quote:
                quote = ""
            elif not quote and char in "'\"":
                quote = char
            elif not quote and char == "\\" and self.at < len(self.script):
                word += self.script[self.at]
                self.at += 1
            elif not quote and char in "$`":
                self._lose("after a here-document with such an end mark")
            else:
                word += char
        if self.at > start:
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
            end = self.script.find("\n", self.at)
            end = len(self.script) if end < 0 else end
            line = self.script[self.at : end]
            if (line.lstrip("\t") if strip else line) == word:
                self.at = min(end + 1, len(self.script))
                return
            for _ in range(line.count(_MARK)):
                self._note("in a here-document; set a variable before it, or use printf")
            self.at = min(end + 1, len(self.script))

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────

    def _placeholder(self, quoting: Quoting) -> None:
        why = self.lost or self._unsafe()
        if why:
            self._fail(why)
            return
        self.places.quoting.append(quoting)
        self.at += 1

    def _unsafe(self) -> str:
        if any(frame.kind == "backtick" for frame in self.frames):
            return _HERE["backtick"]
        for frame in reversed(self.frames):
            if frame.kind in ("top", "paren"):
                break
            if frame.kind == "bracket":
                return _HERE["arith"]
            if frame.kind in _HERE:
                return _HERE[frame.kind]
        bare = self.frames[-1].kind in ("top", "paren")
        if bare and _SUBSCRIPT.search(self.script[max(0, self.at - 200) : self.at]):
            return "as a subscript, which the shell would evaluate"
        return ""

    def _fail(self, why: str) -> None:
        self._note(why if "write " in why else why + _ADVICE)
        self.at += 1

    def _note(self, why: str) -> None:
        """Set an error at the next placeholder; its quoting no longer matters."""
        self.places.errors.append((len(self.places.quoting), why))
        self.places.quoting.append("bare")

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        self.at += 1

    def _inside_double(self) -> bool:
        """Whether "..." is around, with no $( between: then a ' may or may not be a quote."""
        for frame in reversed(self.frames):
            if frame.kind in ("top", "paren"):
                break
            if frame.kind == "double":
                return True
        return False

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
