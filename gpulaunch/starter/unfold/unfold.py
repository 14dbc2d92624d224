"""Takes the outermost thing that can be spelt out, spells it out, and looks again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gpulaunch.starter.entry import Read, StarterRemark, Untranslatable
from gpulaunch.starter.launch import NO_CARD
from gpulaunch.starter.shell import Script, walk, words_of, wrappers_of
from gpulaunch.starter.unfold import items, parallel, slurm, strings, xargs
from gpulaunch.starter.unfold.calls import Arguments, called

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_UNFOLDED = 400
"""Things that are spelt out; a function that calls itself ends here."""
MAX_SCRIPT_BYTES = 1 << 20
"""Bytes of a script, spelt out."""
_READ = re.compile(r"((?:IFS=\S*\s+)?)read\s+((?:-r\s+)?)([A-Za-z_]\w*(?:\s+[A-Za-z_]\w*)*)")
_HERE = re.compile(r"<<-?\s*['\"\\]?\w")


class Unfolded(Struct):
    """`refused` is why a command stays as it is, by its text; `called` are spelt-out functions."""

    script: Script
    remarks: list[StarterRemark] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)


def unfold(source: str, read: Read) -> Unfolded:
    """Spell the script out; `read` gives the text of a file it names. Raises Untranslatable."""
    script = Script(source)
    asked, told = slurm.header(source)
    ntasks = asked.options.get("--ntasks", "1")
    unfolder = _Unfolder(_batch(script, asked), read, int(ntasks) if ntasks.isdigit() else 1)
    unfolder.done.remarks += told
    for _ in range(MAX_UNFOLDED):
        if not unfolder.step():
            break
    return unfolder.done


def _batch(script: Script, asked: slurm.BatchOptions) -> Script:
    """Return a batch script with what its `#SBATCH` lines ask for as its first words."""
    if not asked.options:
        return script
    options = {**asked.options, "--ntasks": "1"}
    lines = slurm.BatchOptions(options).lines() + "SLURM_SUBMIT_DIR=.; SLURM_NTASKS=1; "
    first = next((one for one in script.root.children if one.type != "comment"), None)
    if first is None:
        return script
    end = len(script.source)
    if tasks := asked.tasks():
        head = f"{lines}for {slurm.TASK} in {' '.join(tasks)}; do ( "
        script = script.replaced(end, end, "\n) & done\n")
        return script.replaced(first.start_byte, first.start_byte, head)
    return script.replaced(first.start_byte, first.start_byte, lines)


class _Unfolder:
    """`tasks` is how many processes a batch script asks for, which a bare `srun` starts."""

    def __init__(self, script: Script, read: Read, tasks: int) -> None:
        self.done = Unfolded(script)
        self.read = read
        self.tasks = tasks
        typed = script.source.decode("utf-8", "replace")
        self.variable = "item" if not re.search(r"\bitem\b", typed) else "each_item"
        names = {self.variable, *(f"{self.variable}{at}" for at in range(1, 10))}
        self.made = frozenset({*names, *(f"{name}_path" for name in names)})
        self.functions: dict[str, Node] = {}

    def step(self) -> bool:
        """Spell out the first thing that can be; False where there is none."""
        script = self.done.script
        self.functions = _functions(script)
        for node in _statements(script.root):
            if script.text(node) in self.done.refused:
                continue
            try:
                new = self._of(script, node)
            except Untranslatable as no:
                self.done.refused[script.text(node)] = str(no)
                continue
            if new is not None and len(script.source) + len(new) < MAX_SCRIPT_BYTES:
                after, end = node.next_sibling, node.end_byte
                if new.endswith("&") and after is not None and after.type == ";":
                    end = after.end_byte  # no `;` can stand behind an `&`
                self.done.script = script.replaced(node.start_byte, end, new, self.made)
                return True
        return False

    def _told(self, node: Node, told: Sequence[tuple[str, str]]) -> None:
        line = self.done.script.line(node)
        self.done.remarks += [StarterRemark(line, text, why) for text, why in told]

    def _of(self, script: Script, node: Node) -> str | None:
        """Return what a statement stands for; None for what stays."""
        if node.type == "variable_assignment":
            return self._assigned(script, node)
        if node.type == "command" and (new := self._command(script, node)) is not None:
            return new
        stages, redirects = _stages(node)
        if node.type == "redirected_statement" and len(stages) == 1 and _is_loop(stages[0]):
            return self._read_loop(script, stages[0], items.of_redirect(script, redirects))
        logs = [stages.pop()] if _program(script, stages[-1]) == "tee" and len(stages) > 1 else []
        takes = _program(script, stages[-1]) in _RUNNERS or _is_loop(stages[-1])
        given = items.of_redirect(script, redirects) if takes else None
        new = self._last_stage(script, stages, given)
        if new is not None:
            self._told(node, [(script.text(log), "each job has a log of its own") for log in logs])
        return new

    def _last_stage(
        self, script: Script, stages: Sequence[Node], given: items.ItemSource | None
    ) -> str | None:
        last, program = stages[-1], _program(script, stages[-1])
        if program == "xargs":
            line = xargs.read_line(script, _behind(script, last))
            if not xargs.starts_jobs(script, line):
                return None
            lines = line.string != "" or "-L" in line.options or "-d" in line.options
            given = given or self._piped(script, stages, lines)
            return xargs.unfolded(script, line, given, self.variable)
        if program in parallel.NAMES:
            words = parallel.read_line(script, _behind(script, last))
            given = given or self._piped(script, stages, True)
            new = parallel.unfolded(script, words, given, self.variable)
            self._told(last, words.told)
            return new
        if _is_loop(last) and len(stages) > 1:
            return self._read_loop(script, last, self._piped(script, stages, True))
        return None

    def _piped(
        self, script: Script, stages: Sequence[Node], lines: bool
    ) -> items.ItemSource | None:
        return items.of_pipe(script, stages[:-1], lines) if len(stages) > 1 else None

    def _read_loop(self, script: Script, loop: Node, given: items.ItemSource | None) -> str | None:
        """`... | while read a b` as a loop over lines that each turn reads its variables from."""
        body = next((one for one in loop.children if one.type == "do_group"), None)
        head = next((one for one in loop.children if one.type in ("command", "list")), None)
        match = _READ.match(script.text(head)) if head is not None else None
        if match is None or body is None or given is None or loop.type != "while_statement":
            return None
        names, text = match.group(3).split(), script.text(body)[2:-4].strip().rstrip(";")
        text = f"{text};" if not text.endswith("&") else text
        if len(names) == 1:
            parent = loop.parent
            of_file = parent is not None and parent.type == "redirected_statement"
            return None if given.file and of_file else given.loop(names[0], f"\n{text}")
        split = f'{match.group(1)}read {match.group(2)}{match.group(3)} <<< "${self.variable}"'
        return given.loop(self.variable, f"{split}\n{text}")

    # ── single commands ─────────────────────────────────────────────────────────────────────────

    def _command(self, script: Script, node: Node) -> str | None:
        program = script.program(node)
        if program in self.functions and not wrappers_of(script.words(node)):
            return self._call(script, node, program)
        if program == "eval":
            return strings.of_eval(script, node)
        if program == "srun":
            text, told = strings.of_srun(script, node, self.tasks)
            self._told(node, told)
            return text
        if program == "sbatch":
            text, told = strings.of_sbatch(script, node, self.read)
            self._told(node, told)
            after = node.next_sibling
            return text if after is not None and after.type == "&" else f"{text} &"
        return strings.of_shell(script, node)

    def _assigned(self, script: Script, node: Node) -> str | None:
        """`id=$(sbatch --parsable job.sh)`: the job in the background, and its number."""
        value = node.child_by_field_name("value")
        commands = [one for one in value.named_children if one.type == "command"] if value else []
        if len(commands) != 1 or _program(script, commands[0]) != "sbatch":
            return None
        text, told = strings.of_sbatch(script, commands[0], self.read)
        self._told(node, told)
        return f"{text} & {script.part(node, 'name')}=$!"

    def _call(self, script: Script, node: Node, name: str) -> str | None:
        body = self.functions[name]
        text = script.text(body)
        if _HERE.search(text) and re.search(r"\$[\d@*{]", text):
            raise Untranslatable(f"calls {name}, a function with a here-document")
        before = [script.text(one) for one in node.children if one.type == "variable_assignment"]
        inside = called(text.strip()[1:-1].strip(), Arguments(script, words_of(node)[1:], name))
        self.done.called.add(name)
        programs = [_program(script, one) for one in walk(body) if one.type == "command"]
        if all(one in NO_CARD or one in self.functions for one in programs):
            return f"{{ {inside}\n}}"
        exported = f"export {' '.join(before)}; " if before else ""
        return f"( {exported}{inside}\n)"


def _statements(root: Node) -> Iterator[Node]:
    """Yield what may be spelt out, outermost first; nothing inside of functions and `$(...)`."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type in ("pipeline", "command", "redirected_statement", "variable_assignment"):
            yield node
        if node.type not in ("function_definition", "command_substitution", "command"):
            pending.extend(reversed(node.children))


def _functions(script: Script) -> dict[str, Node]:
    """Bodies by name, of functions that are defined once and do not call themselves."""
    found: dict[str, Node | None] = {}
    for node in walk(script.root):
        if node.type == "function_definition":
            name, body = script.part(node, "name"), node.child_by_field_name("body")
            if body is not None and body.type == "compound_statement":
                found[name] = None if name in found else body
    once = {name: body for name, body in found.items() if body is not None}
    calls = {
        name: {_program(script, one) for one in walk(body) if one.type == "command"} & once.keys()
        for name, body in once.items()
    }
    return {name: body for name, body in once.items() if name not in _reached(name, calls)}


def _reached(name: str, calls: Mapping[str, set[str]]) -> set[str]:
    """Every function that a call of this one comes to; itself among them where it never ends."""
    found: set[str] = set()
    pending = set(calls[name])
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending |= calls[one]
    return found


def _stages(node: Node) -> tuple[list[Node], list[Node]]:
    """Return the stages of a pipe, and their redirections."""
    if node.type == "redirected_statement":
        bare, redirects = _stages(node.children[0])
        return bare, [one for one in node.children[1:] if one.type.endswith("redirect")] + redirects
    if node.type != "pipeline":
        return [node], []
    both = [_stages(stage) for stage in node.named_children]
    return [one for bare, _ in both for one in bare], [one for _, found in both for one in found]


def _program(script: Script, stage: Node) -> str:
    words = script.words(stage)
    at = wrappers_of([word for word in words if word != "xargs"])
    if "xargs" in words[: at + 1]:
        return "xargs"
    return words[at].rpartition("/")[2] if at < len(words) else ""


def _behind(script: Script, command: Node) -> list[Node]:
    """Return the words behind the program's name."""
    names = [word.rpartition("/")[2] for word in script.words(command)]
    at = next(at for at, name in enumerate(names) if name in _RUNNERS)
    return words_of(command)[at + 1 :]


_RUNNERS = frozenset({*parallel.NAMES, "xargs"})


def _is_loop(node: Node) -> bool:
    return node.type == "while_statement"
