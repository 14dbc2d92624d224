"""Commands of the script to one entry of the job list: name, cards, environment, what it awaits."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpulaunch.jobfile.endings import left_running
from gpulaunch.starter.emit import escaped
from gpulaunch.starter.entry import ForeachLoop, StarterEntry, Untranslatable
from gpulaunch.starter.loops import arranged, name_suffix
from gpulaunch.starter.mask import MASK, cards
from gpulaunch.starter.memory import PRINTS
from gpulaunch.starter.render import Rendered, Renderer, mask_value
from gpulaunch.starter.scope import Made, Notes, Order, Scope, StatementPlace
from gpulaunch.starter.shell import Script, behind_wrappers, starts_beside, variables_in, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_FILES = "mkdir cp mv rm ln cat ls touch chmod tar gzip gunzip zip unzip diff md5sum sha256sum find"
_TEXTS = "grep sed awk sort uniq head tail cut tr wc tee paste xargs basename dirname seq test ["
_OTHERS = "wget curl git rsync scp pip aws gsutil cd exit continue true : set source export read"
_BUILTINS = "wait sleep trap kill jobs disown shift alias pushd popd shopt let module ml return . ["
NO_CARD = frozenset(
    {*PRINTS, *_FILES.split(), *_TEXTS.split(), *_OTHERS.split(), *_BUILTINS.split()}
)
_SURE = "mkdir touch basename dirname seq cd set read test [ true : exit continue"
HARMLESS = frozenset({"", *_SURE.split(), *PRINTS})
"""What hardly fails, or is asked whether it does."""
LOOP = ("for_statement", "while_statement")
INDEX = "item_index"
"""The variable that an unfolded script has for an item's number, counted from 0."""
KEPT = frozenset({"SLURM_ARRAY_TASK_ID"})
"""Variables of loops that programs read by themselves."""
_PROCESSES = re.compile(r"--(?:nproc[_-]per[_-]node|num[_-]processes)[= ](\d{1,3})\b")
_PYTHONS = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh|torchrun|accelerate|deepspeed|Rscript|uv)")


class Launcher:
    def __init__(self, script: Script, renderer: Renderer, notes: Notes) -> None:
        self.script = script
        self.renderer = renderer
        self.notes = notes
        self.entries: list[StarterEntry] = []
        self.bases: set[str] = set()
        self.prefixes: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.worked = False

    def launch(
        self, groups: Sequence[Sequence[Node]], here: StatementPlace, comments: Sequence[str]
    ) -> None:
        """Make a job of commands; each group is a stretch of the source. Raises Untranslatable."""
        scope, order, must = here.scope, here.order, here.must or here.scope.errexit
        loops = arranged(scope.loops)
        before = self._preamble(groups, scope)
        rendered = self.renderer.render([*before, *groups], loops)
        if not rendered.text:
            raise Untranslatable("nothing is left to run")
        run = rendered.text
        if not must and sum(map(self._steps_of, groups)) > 1:
            # bash goes on where a command fails; a job's shell does not
            run = ("set +e\n" if "\n" in run else "set +e; ") + run
        self._refuse_background(run, groups)
        nodes = [node for group in [*before, *groups] for node in group]
        read = {name for node in nodes for name in variables_in(self.script, node)}
        self.notes.read |= read
        gpus, remarks = self._gpus(nodes, rendered, scope)
        self._of_slurm(nodes[0], read, scope)
        base = self._base(nodes)
        name = base + name_suffix(loops)
        needs, after, in_turn = _waits_for(order, scope)
        entry = StarterEntry(
            name=name,
            run=run,
            gpus=gpus,
            loops=loops,
            needs=needs,
            after=after,
            cwd=scope.cwd and escaped(scope.cwd),
            env=self._env(read, rendered.variables, scope),
            venv=scope.venv and escaped(scope.venv),
            conda=scope.conda and escaped(scope.conda),
            modules=tuple(map(escaped, scope.modules)),
            timeout=scope.timeout,
            cpus=scope.cpus,
            comments=(*comments, *remarks),
            in_turn=in_turn,
        )
        self.entries.append(entry)
        self.worked = self.worked or self.works(nodes)
        self.notes.remarks += rendered.remarks
        covered = frozenset().union(*(one.made.before | {one.made.base} for one in order.ended))
        made = Made(base, name, scope.loops, covered - {base})
        order.started(made, here.background, must)

    def _refuse_background(self, run: str, groups: Sequence[Sequence[Node]]) -> None:
        """Raise Untranslatable if the job would end before a command that it starts has ended."""
        nodes = [inner for group in groups for node in group for inner in walk(node)]
        if any(starts_beside(node) for node in nodes) or left_running(run, "bash"):
            raise Untranslatable(
                "starts a command in the background that a job would not wait for: write the"
                " command without &, because jobs run side by side anyway"
            )

    def _steps_of(self, group: Sequence[Node]) -> int:
        """Count the steps of a stretch of the source; what `&&` joins is one."""
        joined = group[0].parent is not None and group[0].parent.type == "list"
        return min(1, self._steps(group)) if joined else self._steps(group)

    def _steps(self, nodes: Iterable[Node]) -> int:
        """How many times, at least, it comes to something that may fail: a loop's body is two."""
        steps = 0
        for node in nodes:
            if node.type in ("command", "pipeline", "list", "redirected_statement"):
                steps += any(self.script.program(inner) not in HARMLESS for inner in walk(node))
            elif node.type != "function_definition":
                steps += self._steps(node.children) * (1 + node.type.endswith(LOOP))
        return steps

    def _preamble(self, groups: Sequence[Sequence[Node]], scope: Scope) -> list[list[Node]]:
        """Return the remembered lines that these commands need, in the script's order."""
        wanted = {v for group in groups for node in group for v in variables_in(self.script, node)}
        chosen: list[list[Node]] = []
        for name, node in reversed(scope.preamble):
            if name is None or name in wanted:
                wanted |= variables_in(self.script, node)
                chosen.append([node])
        return chosen[::-1]

    def _env(self, read: set[str], items: Sequence[ForeachLoop], scope: Scope) -> dict[str, str]:
        read = read - self.renderer.idle
        env = {name: escaped(value) for name, value in scope.exported.items() if name != MASK}
        for name, value in scope.literals.items():
            if name in read:
                env[name] = escaped(value)
        for loop in (*items, *(loop for loop in scope.loops if loop.variable in KEPT)):
            env[loop.variable] = f"{{{{{loop.placeholder}}}}}"
        if INDEX in read:
            env[INDEX] = "{{index}}"
        return env

    def _of_slurm(self, node: Node, read: set[str], scope: Scope) -> None:
        for name in read - {*scope.literals, *(loop.variable for loop in scope.loops)}:
            if name.startswith("SLURM_"):
                self.notes.remark(node, "empty here: only Slurm sets it", f"${name}")

    def _gpus(
        self, nodes: Sequence[Node], rendered: Rendered, scope: Scope
    ) -> tuple[int, tuple[str, ...]]:
        masks = dict.fromkeys(rendered.masks) or ([] if scope.mask is None else [scope.mask])
        spelt = [mask_value(mask, scope.literals) for mask in masks]
        counted = [cards(mask) for mask in spelt]
        for mask, (_, odd) in zip(spelt, counted, strict=True):
            if odd:
                self.notes.remark(nodes[0], odd, f"{MASK}={mask}")
        if counted:
            return max(count for count, _ in counted), ()
        if not self.works(nodes) and MASK not in rendered.text:
            return 0, ()
        if (several := _PROCESSES.search(rendered.text)) and int(several.group(1)) > 1:
            return int(several.group(1)), ()
        return 1, (f"Without {MASK} it saw every card. Here it gets one; gpus: 0 hides them.",)

    def works(self, nodes: Sequence[Node]) -> bool:
        """Tell whether a statement may need a card: more than files, texts and the shell itself."""
        names = [self.script.program(inner) for node in nodes for inner in walk(node)]
        return any(name not in NO_CARD for name in names if name)

    def _base(self, nodes: Sequence[Node]) -> str:
        """Return a name from the command: the script that python runs, or the program."""
        found = "job"
        for command in (inner for node in nodes for inner in walk(node)):
            if program := self.script.program(command):
                found = _called(self.script.words(command))
                if program not in NO_CARD:
                    break
        return self._distinct(found)

    def _distinct(self, found: str) -> str:
        """No name twice, and none that another's pattern `base-*` would match as well."""
        if self._matched(found):
            found = found.replace("-", "_")
        base, number = found, self.numbers.get(found, 1)
        while base in self.bases or self._matched(base):
            number += 1
            base = f"{found}{number}"
        self.numbers[found] = number
        self.bases.add(base)
        self.prefixes |= _prefixes(base)
        return base

    def _matched(self, base: str) -> bool:
        return base in self.prefixes or not self.bases.isdisjoint(_prefixes(base))


def _prefixes(base: str) -> set[str]:
    """Return what stands before each `-` of a name."""
    return {base[: match.start()] for match in re.finditer("-", base)}


def _called(words: Sequence[str]) -> str:
    words = behind_wrappers([word for word in words if "=" not in word]) or ["job"]
    name = words[0]
    if "-c" in words[1:-1] and _PYTHONS.fullmatch(name):
        return _called(words[-1].strip("'\"").split() or ["job"])
    if _PYTHONS.fullmatch(name):
        plain = [word.strip("'\"") for word in words[1:] if not word.startswith("-")]
        plain = [word for word in plain if "$" not in word]
        scripts = [word for word in plain if re.search(r"\.(py|sh|R)$", word)]
        name = (scripts or [word for word in plain if word not in ("run", "launch")] or [name])[0]
    name = posixpath.basename(name.strip("'\"").rstrip("/"))
    name = re.sub(r"\.(py|sh|R)$", "", name)
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-")[:60] or "job"


def _waits_for(order: Order, scope: Scope) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    needs = [one.made.seen_from(scope.loops) for one in order.ended if one.must]
    after = [one.made.seen_from(scope.loops) for one in order.ended if not one.must]
    in_turn = any(not one.waited for one in order.ended)
    return tuple(dict.fromkeys(needs)), tuple(dict.fromkeys(after)), in_turn
