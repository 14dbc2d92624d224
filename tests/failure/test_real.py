"""Real programs that fail, and what is recognised: the words are today's, not the corpus's.

Those of torch and numpy run where they are installed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpulaunch.core.model import Exited, Outcome, Signaled
from gpulaunch.diagnose.failure.evidence import Evidence, diagnose

PYTHON = {
    "host_oom": "x = 'a' * (1 << 62)",
    "not_installed": "import there_is_no_such_module",
    "missing_file": "open('/there/is/none')",
    "port": (
        "import socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen();"
        " b = socket.socket(); b.bind(a.getsockname())"
    ),
    "disk_full": "f = open('/dev/full', 'w'); f.write('x' * 100_000); f.flush()",
    "network": "import urllib.request as u; u.urlopen('http://127.0.0.1:9/')",
    "descriptors": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20));"
        " x = [open('/dev/null') for _ in range(50)]"
    ),
    "corrupt_file": "import zipfile, io; zipfile.ZipFile(io.BytesIO(b'half a file'))",
    "locked": (
        "import sqlite3; a = sqlite3.connect('a.db', timeout=0.1); a.execute('create table t(x)');"
        " a.commit(); a.execute('begin exclusive');"
        " b = sqlite3.connect('a.db', timeout=0.1); b.execute('insert into t values(1)')"
    ),
}
TORCH = {
    "no_gpu_seen": "torch.zeros(1, device='cuda')",
    "host_oom": "torch.zeros(10**13)",
    "corrupt_file": (
        "torch.save(torch.zeros(1000), 'a.pt'); data = open('a.pt', 'rb').read();"
        " open('a.pt', 'wb').write(data[: len(data) // 2]); torch.load('a.pt')"
    ),
    "port": (
        "import torch.distributed as d; a = d.TCPStore('127.0.0.1', 0, 2, True,"
        " wait_for_workers=False); d.TCPStore('127.0.0.1', a.port, 2, True, wait_for_workers=False)"
    ),
    "-": "torch.zeros(2, 3) @ torch.zeros(2, 3)",
}
SHELL = {
    "not_installed": "there_is_no_such_program x",
    "disk_full": "cat /etc/hostname > /dev/full",
    "missing_file": f"{sys.executable} nothing_there.py",
    "shm": "bash -c 'kill -BUS $$'; exit $?",
    "wrong_cpu": "bash -c 'kill -ILL $$'; exit $?",
    "signal": "bash -c 'kill -SEGV $$'; exit $?",
    "-": "echo 'CUDA out of memory is what this job is about'; exit 3",
}


@pytest.mark.parametrize(("kind", "program"), PYTHON.items(), ids=PYTHON)
def test_python_fails_so_today(kind: str, program: str, tmp_path: Path) -> None:
    assert _recognised([sys.executable, "-c", program], tmp_path) == kind


@pytest.mark.parametrize(("kind", "program"), TORCH.items(), ids=TORCH)
def test_torch_fails_so_today(kind: str, program: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if kind == "no_gpu_seen" and torch.cuda.is_available():
        pytest.skip("here is a card")
    assert _recognised([sys.executable, "-c", f"import torch; {program}"], tmp_path) == kind


@pytest.mark.parametrize(("kind", "program"), SHELL.items(), ids=SHELL)
def test_a_shell_fails_so_today(kind: str, program: str, tmp_path: Path) -> None:
    command = f"ulimit -c 0; {program}"
    assert _recognised(["bash", "-o", "pipefail", "-c", command], tmp_path) == kind


def _recognised(argv: list[str], where: Path) -> str:
    done = subprocess.run(
        argv, cwd=where, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    code = done.returncode
    outcome: Outcome = Signaled(-code) if code < 0 else Exited(code)
    failure = diagnose(Evidence(outcome, done.stdout + done.stderr))
    return failure.kind if failure else "-"
