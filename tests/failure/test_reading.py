"""A log's end taken apart: prefixes, tracebacks, chains, ranks, and what the program survived."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.core.model import Exited, MissingOutput, Signaled
from gpulaunch.diagnose.failure.evidence import Evidence, diagnose, hint
from gpulaunch.diagnose.failure.judge import errors_of, judge, lines_of

HEADER = "Traceback (most recent call last):\n"
FRAME = '  File "x.py", line 3, in <module>\n    run()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def kind(log: str, status: int = 1) -> str | None:
    failure = diagnose(Evidence(Exited(status), log))
    return failure.kind if failure else None


@pytest.mark.parametrize(
    ("raw", "text", "stream", "level"),
    [
        ("[rank1]: RuntimeError: x", "RuntimeError: x", "1", ""),
        ("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] x", "x", "0", "E"),
        ("[W socket.cpp:401] [c10d] x", "x", "", "W"),
        ("(Engine_DP0 pid=17) ERROR 09-28 15:47:24 [core.py:7] x", "x", "Engine_DP0 pid=17", "E"),
        ("ERROR 01-11 13:09:40 engine.py:366] x", "x", "", "E"),
        ("2024-09-11 10:04:30,411 - chai_lab.main - ERROR - x", "x", "", "E"),
        ("[2025-07-09 16:56:31] [INFO] [mmseqs2.py:195:run] x", "x", "", "I"),
        ("2021-10-15 15:28:47.361367: W external/tf/device_host_allocator.h:46] x", "x", "", "W"),
        ("I0309 12:51:51.372677 140505975940928 run_docker.py:247] x", "x", "", "I"),
        ("WARNING:root:x", "x", "", "W"),
        ("ERROR:    x", "x", "", "E"),
        ("| WARNING: x", "x", "", "W"),
        ("(pid=3959, ip=172.31.41.219) x", "x", "pid=3959", ""),
        ("Warning signs", "Warning signs", "", ""),
        ("\x1b[31mRuntimeError: x\x1b[0m", "RuntimeError: x", "", ""),
        (" 10%|# | 1/10\r 20%|## | 2/10", " 20%|## | 2/10", "", ""),
        ("x\r", "x", "", ""),
    ],
)  # fmt: skip
def test_a_lines_prefixes_come_off(raw: str, text: str, stream: str, level: str) -> None:
    line = lines_of(raw)[0]
    assert (line.text, line.stream, line.level) == (text, stream, level)


def test_frames_keep_their_indentation_behind_a_prefix() -> None:
    log = f'[rank0]: {HEADER}[rank0]:   File "x.py", line 3\n[rank0]:     run()\n[rank0]: {OOM}\n'
    (error,) = errors_of(lines_of(log))
    assert [raised.type for raised in error.raised] == ["OutOfMemoryError"]
    assert (error.start, error.end, error.stream) == (0, 3, "0")


def test_interleaved_ranks_are_taken_apart() -> None:
    log = (
        f"[rank0]: {HEADER}[rank1]: {HEADER}"
        '[rank1]:   File "a.py", line 1\n[rank0]:   File "a.py", line 1\n'
        "[rank1]: ValueError: b\n[rank0]: KeyError: 'a'\n"
    )
    found = [(e.stream, e.raised[0].type) for e in errors_of(lines_of(log))]
    assert found == [("1", "ValueError"), ("0", "KeyError")]


def test_a_chain_is_one_error_with_its_links() -> None:
    log = (
        f"{HEADER}{FRAME}KeyError: 1\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        f"{HEADER}{FRAME}ValueError: 2\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        f"{HEADER}{FRAME}RuntimeError: 3\n"
    )
    (error,) = errors_of(lines_of(log))
    assert [raised.type for raised in error.raised] == ["KeyError", "ValueError", "RuntimeError"]
    assert error.explicit == (False, True)


def test_a_message_goes_on_over_lines() -> None:
    log = f"{HEADER}{FRAME}RuntimeError: a\nb\nc\n"
    assert errors_of(lines_of(log))[0].raised[0].message.startswith("a\nb\nc")


# ── What counts ─────────────────────────────────────────────────────────────────────────────────


def test_the_last_uncaught_error_wins() -> None:
    assert kind(f"{HEADER}{FRAME}{OOM}\n{HEADER}{FRAME}KeyError: 'a'\n") is None
    assert kind(f"{HEADER}{FRAME}KeyError: 'a'\n{HEADER}{FRAME}{OOM}\n") == "gpu_oom"


@pytest.mark.parametrize(
    "after",
    [
        "epoch 2 loss 0.3\n",
        "retrying with batch size 16\n",
        "Falling back to the CPU\n",
        "line\n" * 40,
        "".join(f"{n}0%|### | {n}/10 [00:01<00:01]\n" for n in range(1, 5)),
    ],
)
def test_what_the_program_survived_does_not_decide(after: str) -> None:
    assert kind(f"{HEADER}{FRAME}{OOM}\n") == "gpu_oom"
    assert kind(f"{HEADER}{FRAME}{OOM}\n{after}") is None


def test_a_traceback_that_a_warning_announces_was_survived() -> None:
    log = f"WARNING:root:sample 7 failed\n{HEADER}{FRAME}{OOM}\n"
    assert kind(log) is None
    assert kind(f"INFO:root:sample 7\n{HEADER}{FRAME}{OOM}\n") == "gpu_oom"


def test_a_traceback_right_after_a_logged_one_is_the_programs_own() -> None:
    """As torch logs one: each line of it has the prefix of a warning."""
    prefix = "W1120 11:16:05.178000 18482 torch/export/__init__.py:348] "
    logged = "".join(
        f"{prefix}{line}\n"
        for line in (
            "Ran into the following error when deserializing",
            *f"{HEADER}{FRAME}".splitlines(),
            "torch.AcceleratorError: CUDA error: invalid device ordinal",
        )
    )
    assert kind(f"{logged}{HEADER}{FRAME}{OOM}\n") == "gpu_oom"
    assert kind(f"{logged}{HEADER}{FRAME}KeyError: 'name'\n") is None
    # torch 2.9 to 2.13: torch.export.load raises without it what it has logged.
    points_back = (
        "RuntimeError: We ran into an error when deserializing the saved file. "
        "Please check the warnings above for possible errors. \n"
    )
    assert kind(f"{logged}{HEADER}{FRAME}{points_back}") == "device_mismatch"
    assert kind(f"{HEADER}{FRAME}{points_back}") is None


def test_what_is_logged_as_a_warning_does_not_decide() -> None:
    words = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 4.00 GiB total capacity)\n"
    assert kind(f"ERROR:root:{words}") == "gpu_oom"
    assert kind(f"WARNING:root:{words}") is None
    assert kind(f"2024-09-11 10:04:30,411 - a.b - INFO - RuntimeError: {words}") is None


@pytest.mark.parametrize(
    "after",
    [
        "wandb: Waiting for W&B process to finish... (failed 1).\n",
        "srun: error: node1: task 0: Exited with exit code 1\n",
        "make: *** [Makefile:3: fold] Error 1\n",
        "Error: step fold failed with exit code 1\n",
        "fold.sh: the prediction ended badly\n",
        "[W CudaIPCTypes.cpp:15] Producer process has been terminated before all tensors\n",
    ],
)
def test_what_wrappers_add_takes_nothing_away(after: str) -> None:
    assert kind(f"{HEADER}{FRAME}{OOM}\n{after}") == "gpu_oom"


def test_another_error_after_it_takes_it_away() -> None:
    between = "loading\nchecking\nwriting\n"
    assert kind(f"{HEADER}{FRAME}{OOM}\n{between}Error: no such split\n") is None


def test_the_first_rank_that_failed_decides() -> None:
    log = (
        f"[rank1]: {HEADER}[rank1]: {OOM}\n"
        f"[rank0]: {HEADER}[rank0]: ValueError: lost rank 1\n"
        f"{HEADER}{FRAME}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: x\n"
    )
    assert kind(log) == "gpu_oom"


def test_what_was_expected_and_handled_is_no_root_cause_beside_another() -> None:
    missing = f"{HEADER}{FRAME}FileNotFoundError: [Errno 2] No such file or directory: 'c'\n"
    crash = f"{HEADER}{FRAME}RuntimeError: CUDA error: unspecified launch failure\n"
    wrapper = f"{HEADER}{FRAME}subprocess.CalledProcessError: x returned non-zero exit status 1.\n"
    assert kind(missing + crash) == "crash"
    assert kind(missing + f"{HEADER}{FRAME}{OOM}\n" + wrapper) == "gpu_oom"
    assert kind(missing + wrapper) == "missing_file"
    assert kind(wrapper) is None


def test_what_crashes_after_a_lack_of_memory_only_follows_from_it() -> None:
    crash = f"{HEADER}{FRAME}RuntimeError: CUDA error: unspecified launch failure\n"
    assert kind(f"{HEADER}{FRAME}{OOM}\n{crash}") == "gpu_oom"
    assert kind(f"{crash}{HEADER}{FRAME}{OOM}\n") == "gpu_oom"


def test_a_handled_missing_file_is_not_why_its_handler_failed() -> None:
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    weak = f"{HEADER}{FRAME}FileNotFoundError: [Errno 2] No such file or directory: 'c'\n"
    last = f"{HEADER}{FRAME}ValueError: other\n"
    assert kind(weak + link + last) is None
    assert kind(f"{HEADER}{FRAME}{OOM}\n{link}{last}") == "gpu_oom"


def test_what_was_given_up_on_decides_only_where_outputs_are_missing() -> None:
    log = "0%| | 0/1 [00:00<?]| WARNING: ran out of memory, skipping batch\ndone\n"
    missing = diagnose(Evidence(MissingOutput(("x",), Exited(0)), log))
    assert missing is not None
    assert missing.kind == "gpu_oom"
    assert diagnose(Evidence(Exited(3), log)) is None
    assert diagnose(Evidence(Exited(0), log, succeeded=True)) is None
    assert "skipping batch" in hint(Evidence(Exited(0), log, succeeded=True))


# ── Whatever stands there ───────────────────────────────────────────────────────────────────────

_PIECES = st.sampled_from(
    [
        HEADER, FRAME, f"{OOM}\n", "[rank0]: ", "WARNING: ", "Error: ", "skipping", "50%|#|", "╭─ ",
        "terminate called after throwing an instance of 'c10::Error'\n", "  what():  CUDA error\n",
        "During handling of the above exception, another exception occurred:\n", "\0", "\b", "\n",
        "\r", "\x1b[31m", "Exception ignored in: <x>\n", "Process Process-1:\n", "ran out of",
    ]
)  # fmt: skip


@given(st.binary(max_size=3000))
def test_any_bytes_are_read(data: bytes) -> None:
    for outcome in (Exited(1), Signaled(7), MissingOutput(("x",), Exited(0))):
        diagnose(Evidence(outcome, data.decode("utf-8", "replace")))


@given(st.lists(st.one_of(_PIECES, st.text(max_size=20)), max_size=60))
def test_any_mixture_of_shapes_is_read(pieces: list[str]) -> None:
    verdict = judge("".join(pieces))
    assert verdict.finding is None or verdict.finding.kind


@pytest.mark.parametrize(
    "piece",
    [
        "\n", "x\n", "E\n", "a", "A.", ".", " ", "[", "\x1b[", "\b", "a\r", ":", "1%", "/", "exit ",
        "CUDA ", "WARNING: ", "[rank0]: ", "Error: ", "error: x\n", "RuntimeError: boom\n", HEADER,
        "RuntimeError: " + "cuda " * 700 + "\n", "RESOURCE_EXHAUSTED: " * 190 + "\n",
        HEADER + "E: x\n\nDuring handling of the above exception, another exception occurred:\n\n",
        "terminate called after throwing an instance of 'a'\n", "(" * 80 + "\n", "9" * 3000 + "\n",
    ],
)  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * (64 * 1024 // len(piece) + 1))[: 64 * 1024]
    began = time.process_time()
    diagnose(Evidence(Exited(1), text))
    diagnose(Evidence(Exited(1), "RuntimeError: " + text))
    # Measured: under 0.2 s each; a regular expression that backtracks takes minutes.
    assert time.process_time() - began < 3
