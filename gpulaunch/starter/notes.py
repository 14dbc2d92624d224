"""What the job file does not say, gathered while the script is walked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulaunch.starter.entry import StarterRemark
from gpulaunch.starter.shell import Script

if TYPE_CHECKING:
    from tree_sitter import Node


class Notes:
    """`assigned` are the script's own variables, `read` the names that some job reads."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.remarks: list[StarterRemark] = []
        self.assigned: list[tuple[str, Node]] = []
        self.read: set[str] = set()

    def remark(self, node: Node, why: str, text: str | None = None) -> None:
        line = self.script.line(node)
        if text is None:
            compound = not node.type.endswith(("command", "assignment", "redirect"))
            text = self.script.typed.get(line) if compound else None
        shown = self.script.text(node) if text is None else text
        self.remarks.append(StarterRemark(line, shown, why))

    def all(self) -> tuple[StarterRemark, ...]:
        """Each once, in the script's order; at the end, so that unread variables are known."""
        for name, node in self.assigned:
            if name not in self.read and self.script.line(node) not in self.script.typed:
                self.remark(node, "read by no command that is left")
        return tuple(sorted(dict.fromkeys(self.remarks), key=lambda remark: remark.line))
