"""Nothing that a script holds, or is, ends or delays the launcher."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulaunch.diagnose.lint import python
from gpulaunch.diagnose.lint.commands import run_of
from gpulaunch.diagnose.lint.files import decoded, of_shell
from gpulaunch.diagnose.lint.finding import Given, judged
from tests.lint.helpers import report_on, told

BIG = 250_000
LONG = 20.0
"""Seconds of a core; what takes no more than two on an idle machine."""

PROGRAMS = {
    "sum": "x = 1" + "+1" * (BIG // 2),
    "attributes": "import torch\na" + ".cuda" * (BIG // 5),
    "calls": "import torch\na" + ".cuda(1)" * (BIG // 8),
    "parentheses": "(" * BIG,
    "minus": "-" * BIG + "1",
    "nested ifs": "".join(" " * n + "if 1:\n" for n in range(90)),
    "elifs": "if a: pass\n" + "elif a: x.to('cuda:1')\n" * 10_000,
    "or": "import torch\nx.to(" + "a or " * (BIG // 5) + "'cuda:1')",
    "fields": "import torch\nx.to(f'" + "{a}" * (BIG // 3) + "')",
    "names": "import os\n" + "".join(f"a{n}=a{n + 1}\n" for n in range(BIG // 16)),
    "masks": "import os\nos.environ['CUDA_VISIBLE_DEVICES']=x\n" * (BIG // 50),
    "systems": "import os\n" + "os.system('python a.py')\n" * (BIG // 25),
    "Python 2": "print 'cuda:1'\nexec 'x'\n",
    "a huge number": "x.cuda(" + "9" * 10_000 + ")",
    "a long text": "x.to('cuda:" + "1" * BIG + "')",
    "surrogates": "x.to('cuda:1\\ud800')  # \\ud800",
    "carriage returns": "import torch\rtorch.cuda.set_device(1)\r",
}
SCRIPTS = {
    "quotes": "'" * BIG,
    "substitutions": "$(" * (BIG // 2),
    "here-documents": "cat <<A <<B\n" * (BIG // 12),
    "growing variables": "A=xxxx\n" + "A=$A$A\n" * 1000 + "p --device $A\n",
    "expanded again and again": "A='" + "a " * 2400 + "'\n" + "p $A $A $A $A\n" * 10_000,
    "assignments": "A=1$A;" * (BIG // 6),
    "devices": "p " + "--device cuda:1 " * (BIG // 16),
    "masks": "CUDA_VISIBLE_DEVICES=1 a;" * (BIG // 25),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_is_soon_done_with(name: str) -> None:
    began = time.process_time()
    assert len(python.look(PROGRAMS[name]).placed) <= python.MAX_SUSPECTS
    assert time.process_time() - began < LONG


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_hostile_script_is_soon_done_with(name: str) -> None:
    began = time.process_time()
    of_shell(SCRIPTS[name], "bash")
    assert time.process_time() - began < LONG


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _directory(path: Path) -> None:
    path.mkdir()


def _unreadable(path: Path) -> None:
    path.write_text("import torch\ntorch.cuda.set_device(1)\n")
    path.chmod(0)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 20)


def _zeros(path: Path) -> None:
    path.write_bytes(b"import torch\ntorch.cuda.set_device(1)\n\0")


def _latin(path: Path) -> None:
    path.write_bytes(b"x = '\xe9'\n")


def _odd_encoding(path: Path) -> None:
    path.write_bytes(b"# coding: punycode\nimport torch\ntorch.cuda.set_device(1)\n")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "make",
    [_fifo, _loop, _directory, _huge, _zeros, _latin, _odd_encoding, _device]
    + ([] if os.getuid() == 0 else [_unreadable]),
)
@pytest.mark.parametrize("command", ["python x.py", "bash x.py", "./x.py"])
def test_what_is_no_script_is_left_alone(
    tmp_path: Path, make: Callable[[Path], None], command: str
) -> None:
    make(tmp_path / "x.py")
    (tmp_path / "y.py").write_text("import x\nimport torch\ntorch.cuda.set_device(1)\n")
    found = report_on(tmp_path, f"jobs:\n- run: {command}\n- run: python y.py\n")
    assert told(found, tmp_path) == ["y.py:3 device-index"]


def test_other_encodings_and_marks_are_read_as_python_reads_them() -> None:
    assert decoded("# coding: latin-1\n# é".encode("latin-1")) == "# coding: latin-1\n# é"
    assert decoded(b"\xef\xbb\xbfx = 1") == "x = 1"
    assert decoded("# coding: gbk\n'，'".encode("gbk")) == "# coding: gbk\n'，'"
    assert decoded(b"# coding: nonsense\n") is None


def test_files_that_import_or_run_each_other_are_read_once(tmp_path: Path) -> None:
    files = {
        "a.py": "import b\nimport a\n",
        "b.py": "import a\nimport torch\ntorch.cuda.set_device(1)\n",
        "x.sh": "bash x.sh a\nbash x.sh b\nbash y.sh\n. ./x.sh\npython a.py\n",
        "y.sh": "bash x.sh\nbash y.sh --c\n",
    }
    (tmp_path / "link.py").symlink_to("b.py")
    found = report_on(tmp_path, "jobs:\n- run: bash x.sh; python link.py\n", files)
    assert {line.split(":")[1] for line in told(found, tmp_path)} == {"3 device-index"}
    assert found.note == ""


def test_columns_are_letters_not_bytes() -> None:
    (placed,) = python.look('é = "𝔘"; x.to("cuda:1")\n').placed
    assert (placed.line, placed.column) == (0, 14)


PIECES = (
    "import torch", "import os", "x.to('cuda:1')", "torch.cuda.set_device(1)", "if a:", "    ",
    "else:", "os.environ['CUDA_VISIBLE_DEVICES']='1'", "def f(device='cuda:1'):", "return", "'",
    '"', "(", ")", "[", "]", "{", "}", "\\", "\n", ",", "=", "f'cuda:{", "lambda", "for d in",
    "#", "# gpulaunch: ok", "%", "!ls", "?", "device_ids=", "nn.DataParallel(m)", "\t", "é",
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_no_text_breaks_the_look(pieces: list[str]) -> None:
    text = "".join(pieces)
    for main in (True, False):
        list(judged("x", python.look(text, main).placed, text.split("\n"), [Given(1)]))
    looked = of_shell(text, "bash")
    for placed in looked.placed:
        assert 0 <= placed.line < len(looked.lines)
        assert 0 <= placed.column <= len(looked.lines[placed.line])


WORDS = ("python", "bash", "-m", "-c", "x.py", "--gpu", "1", "--device=cuda:1", "torchrun", "a=1",
         "docker", "run", "--gpus", "all", "", "-", "--", "./x", "papermill", None)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(WORDS), max_size=10))
def test_no_words_break_the_runs(words: list[str | None]) -> None:
    run = run_of(words, ".")
    assert run is None or words[run.number] == run.what
