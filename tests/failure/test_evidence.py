"""What decides: the driver and the kernel before the log, the log before the status alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpulaunch.core.causes import Hint, Quoted
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Interrupted,
    Lost,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    Stopped,
    TimedOut,
)
from gpulaunch.core.retry import POLICIES
from gpulaunch.diagnose.failure.classes import CLASSES, advice_for, title_of
from gpulaunch.diagnose.failure.classes import advice as words
from gpulaunch.diagnose.failure.edge import Counters, Room
from gpulaunch.diagnose.failure.evidence import (
    CardFacts,
    Evidence,
    OwnMemory,
    advice_on_modules,
    advice_on_signal,
    diagnose,
    hint,
)

GIB = 1 << 30
NO_MODULE = "run.sh: line 3: module: command not found\n"
OOM = (
    'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    f()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 23.65 GiB of which 1.00 GiB is free. Process 77 has 12.30 GiB memory in use. "
    "Including non-PyTorch memory, this process has 10.00 GiB memory in use.\n"
)
BUG = "Traceback (most recent call last):\n  File \"x.py\", line 1\n    f()\nKeyError: 'a'\n"


def kind(outcome: Outcome, log: str = "", **more: object) -> str | None:
    failure = diagnose(Evidence(outcome, log, **more))  # type: ignore[arg-type]
    return failure.kind if failure else None


def test_every_class_of_the_core_has_words_and_none_is_beyond_it() -> None:
    assert set(CLASSES) == set(POLICIES)
    for name, each in CLASSES.items():
        assert each.name == name
        assert each.title
        assert 0 < len(advice_for(name)) < 250, name
    assert title_of("gpu_oom") == "out of GPU memory"
    assert (title_of("exit"), title_of("no such class"), advice_for("no such class")) == (
        "",
        "",
        "",
    )


@pytest.mark.parametrize(
    "outcome",
    [
        Cancelled(Exited(1)),
        Interrupted(Quoted("stopped"), Exited(1)),
        Stopped(Exited(1)),
        Lost(Quoted("gone")),
    ],
)
def test_what_the_launcher_ended_or_nobody_saw_is_no_failure(outcome: Outcome) -> None:
    assert kind(outcome, OOM, cards=(CardFacts("GPU-1", sick="fell off the bus"),)) is None


def test_a_timeout_is_a_timeout_whatever_the_log_says() -> None:
    assert kind(TimedOut("timeout", 60.0), OOM) is None
    assert kind(NotStarted("no such file"), OOM) is None


def test_what_the_launcher_itself_killed_has_no_other_cause() -> None:
    assert kind(Signaled(9), OOM, by_launcher=True, rises=Counters(1, 1)) is None


def test_a_sick_card_comes_before_all_that_the_log_says() -> None:
    cards = (CardFacts("GPU-1"), CardFacts("GPU-2", sick="NVML: GPU is lost", xids=(79,)))
    failure = diagnose(Evidence(Exited(1), OOM, cards=cards))
    assert failure is not None
    assert (failure.kind, failure.gpus) == ("gpu_lost", ("GPU-2",))
    assert failure.evidence == "NVML: GPU is lost"
    assert kind(TimedOut("idle_timeout", 60.0), "", cards=cards) == "gpu_lost"
    assert kind(Exited(0), "", cards=cards, succeeded=True) is None


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 119, 120])
def test_a_fatal_xid_is_a_lost_card(xid: int) -> None:
    assert kind(Exited(1), BUG, cards=(CardFacts("GPU-1", xids=(13, xid)),)) == "gpu_lost"


def test_a_programs_own_xid_is_a_crash_where_nothing_else_is_known() -> None:
    cards = (CardFacts("GPU-1", xids=(31,)),)
    assert kind(Signaled(6), "", cards=cards) == "crash"
    assert kind(Exited(1), OOM, cards=cards) == "gpu_oom"
    for xid in (43, 45, 68, 94, 109):
        assert kind(Exited(1), "", cards=(CardFacts("GPU-1", xids=(xid,)),)) is None


# ── Signals and the kernel ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outcome", [Signaled(9), Exited(137)])
@pytest.mark.parametrize("rises", [Counters(1, None), Counters(0, 2), Counters(3, 3)])
def test_a_kill_with_a_rise_of_oom_kill_is_the_machines_memory(
    outcome: Outcome, rises: Counters
) -> None:
    assert kind(outcome, BUG, rises=rises) == "host_oom"


@pytest.mark.parametrize("outcome", [Signaled(9), Exited(137), Exited(1)])
def test_a_kill_at_the_jobs_own_limit_names_the_limit_and_the_peak(outcome: Outcome) -> None:
    memory = OwnMemory(2 * GIB, 2 * GIB, kills=1)
    failure = diagnose(Evidence(outcome, BUG, rises=Counters(1, 1), memory=memory))
    assert failure is not None
    assert failure.kind == "host_oom"
    assert failure.evidence == (
        "out of the 2 GiB that memory: gave it; peak 2 GiB (1 process killed there)"
    )
    assert words(failure.advice).startswith("Raise memory:")


def test_a_limit_at_which_nothing_was_killed_is_not_to_blame() -> None:
    memory = OwnMemory(2 * GIB, 2 * GIB, kills=0)
    assert kind(Exited(1), BUG, memory=memory) is None
    assert kind(TimedOut("timeout", 60.0), "", memory=OwnMemory(GIB, kills=1)) is None


@pytest.mark.parametrize("rises", [Counters(), Counters(0, 0), Counters(None, 0)])
def test_a_kill_without_a_rise_is_somebodys(rises: Counters) -> None:
    assert kind(Signaled(9), "", rises=rises) is None


def test_another_jobs_kill_is_not_this_ones() -> None:
    assert kind(Exited(1), BUG, rises=Counters(1, 1)) is None
    assert kind(Signaled(11), "", rises=Counters(1, 1)) is None


def test_sigbus_is_shared_memory_unless_a_disk_is_full() -> None:
    assert kind(Signaled(7)) == "shm"
    assert kind(Exited(135)) == "shm"
    assert kind(Signaled(7), rooms=(Room("/data", 0), Room("/dev/shm", 0))) == "shm"
    assert kind(Signaled(7), rooms=(Room("/data", 4096), Room("/dev/shm", GIB))) == "disk_full"


def test_sigill_is_the_processor() -> None:
    assert kind(Signaled(4)) == "wrong_cpu"
    assert kind(Exited(132)) == "wrong_cpu"


@pytest.mark.parametrize(("code", "name"), [(134, "SIGABRT"), (136, "SIGFPE"), (139, "SIGSEGV")])
def test_a_shells_status_tells_of_a_signal(code: int, name: str) -> None:
    failure = diagnose(Evidence(Exited(code), ""))
    assert failure is not None
    assert failure.kind == "signal"
    assert name in failure.evidence


@pytest.mark.parametrize("signal", [6, 9, 11])
def test_a_signal_gets_the_advice_that_a_shells_status_of_it_gets(signal: int) -> None:
    passed_on = diagnose(Evidence(Exited(128 + signal), ""))
    assert passed_on is not None
    assert passed_on.advice
    assert advice_on_signal(Evidence(Signaled(signal), "")) == passed_on.advice


@pytest.mark.parametrize("outcome", [Exited(1), Signaled(15), Signaled(2), Signaled(10)])
def test_what_is_no_crash_gets_no_advice_on_one(outcome: Outcome) -> None:
    assert not advice_on_signal(Evidence(outcome, ""))


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("bash: line 1: module: command not found", "no_modules"),
        ("run.sh: line 3: ml: command not found", "no_modules"),
        ("run.sh: 1: module: not found", "not_bash"),
        ("sh: ml: not found", "not_bash"),
    ],
)
def test_where_modules_are_not_found_the_advice_is_for_that_shell(log: str, advice: str) -> None:
    """dash reads no BASH_ENV, and takes no function from its environment."""
    failure = diagnose(Evidence(Exited(127), log + "\n"))
    assert failure is not None
    assert (failure.kind, failure.advice) == ("not_installed", (Hint(advice),))


@pytest.mark.parametrize(
    ("code", "then"),
    [
        (1, "ModuleNotFoundError: No module named 'a'"),
        (127, "run.sh: line 4: gmx: command not found"),
    ],
)
def test_what_is_missing_where_modules_were_not_found_gets_that_advice(
    code: int, then: str
) -> None:
    failure = diagnose(Evidence(Exited(code), f"{NO_MODULE}{then}\n"))
    assert failure is not None
    assert (failure.kind, failure.evidence) == ("not_installed", then)
    assert failure.advice == (Hint("no_modules"),)


def test_whatever_fails_soon_after_modules_were_not_found_gets_that_advice() -> None:
    for code in (1, 2, 127):
        evidence = Evidence(Exited(code), f"{NO_MODULE}it is not set up\n")
        assert advice_on_modules(evidence) == (Hint("no_modules"),)
    assert advice_on_modules(Evidence(Exited(1), NO_MODULE + "step\n" * 100)) == ()
    assert advice_on_modules(Evidence(Signaled(9), NO_MODULE)) == ()
    oom = diagnose(Evidence(Exited(1), NO_MODULE + OOM))
    assert oom is not None
    assert oom.advice != (Hint("no_modules"),)


@pytest.mark.parametrize("code", [1, 2, 128, 130, 143, 255])
def test_other_statuses_tell_of_none(code: int) -> None:
    assert kind(Exited(code)) is None


def test_a_launcher_inside_the_job_may_tell_of_its_childs_signal() -> None:
    killed = "failed (exitcode: -9) local_rank: 0 (pid: 357394)\n"
    assert kind(Exited(1), killed, rises=Counters(1, 1)) == "host_oom"
    assert kind(Exited(1), killed) is None
    assert kind(Exited(1), "train.py exits with return code = -7\n") == "shm"
    assert kind(Exited(1), "Shard was signaled to shutdown with signal 4 rank=0\n") == "wrong_cpu"
    assert kind(Exited(1), "Worker pid 26961 died, exit code: -15\n") is None
    assert kind(Exited(1), "exit code -91\n", rises=Counters(1, 1)) is None


# ── Disks ───────────────────────────────────────────────────────────────────────────────────────


def test_a_full_disk_takes_the_logs_last_words_too() -> None:
    full = (Room("/data", 0), Room("/dev/shm", GIB))
    failure = diagnose(Evidence(Exited(1), "step 3\n", rooms=full))
    assert failure is not None
    assert failure.kind == "disk_full"
    assert "/data" in words(failure.advice)
    assert kind(Exited(1), BUG, rooms=full) is None
    assert kind(Exited(1), "step 3\n", rooms=(Room("/data", GIB),)) is None
    assert kind(Exited(1), "step 3\n", rooms=(Room("/dev/shm", 0),)) is None


# ── Memory ──────────────────────────────────────────────────────────────────────────────────────


def test_out_of_memory_tells_the_numbers_and_whose_they_are() -> None:
    failure = diagnose(Evidence(Exited(1), OOM))
    assert failure is not None
    assert failure.foreign
    assert words(failure.advice).startswith(
        "It asked for 2 GiB more; the card has 23.6 GiB; 10 GiB were its own; "
        "12.3 GiB other processes' (PID 77). "
    )
    assert failure.evidence.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate")


def test_the_driver_knows_better_than_the_message_who_uses_the_card() -> None:
    own = (CardFacts("GPU-1", total=24 * GIB, own=0, foreign=0),)
    others = (CardFacts("GPU-1", total=24 * GIB, own=0, foreign=9 * GIB),)
    failure = diagnose(Evidence(Exited(1), OOM, cards=own))
    assert failure is not None
    assert not failure.foreign
    assert failure.gpus == ("GPU-1",)
    plain = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    failure = diagnose(Evidence(Exited(1), plain, cards=others))
    assert failure is not None
    assert failure.foreign
    assert "9 GiB other processes'." in words(failure.advice)


# ── Successes ───────────────────────────────────────────────────────────────────────────────────


def test_a_success_is_no_failure_and_says_what_its_log_says() -> None:
    assert kind(Exited(0), OOM, succeeded=True) is None
    words = hint(Evidence(Exited(0), OOM, succeeded=True))
    assert words.startswith("exited 0, though its log says: OutOfMemoryError: CUDA out of memory.")
    assert len(words) < 400
    assert hint(Evidence(Exited(1), OOM)) == ""
    assert hint(Evidence(Exited(0), "done\n", succeeded=True)) == ""


def test_missing_outputs_are_explained_by_the_error_before_them() -> None:
    assert kind(MissingOutput(("x",), Exited(0)), OOM) == "gpu_oom"
    assert kind(MissingOutput(("x",), Exited(0)), BUG) is None


def test_a_services_early_end_with_zero_is_looked_at_as_well() -> None:
    assert kind(Exited(0), "ERROR:    [Errno 98] address already in use\n") == "port"


def test_the_words_of_the_classes_cost_no_patterns() -> None:
    program = (
        "import sys; from gpulaunch.diagnose.failure import classes, evidence;"
        " assert classes.advice_for('gpu_oom');"
        " sys.exit('gpulaunch.diagnose.failure.patterns' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_out_of_memory_on_unified_memory_says_whose_memory_that_is() -> None:
    log = OOM
    unified = diagnose(
        Evidence(Exited(1), log, cards=(CardFacts("GPU-1", total=24 * GIB, unified=True),))
    )
    plain = diagnose(Evidence(Exited(1), log, cards=(CardFacts("GPU-1", total=24 * GIB),)))
    assert unified is not None
    assert plain is not None
    assert "The card has unified memory: what programs on the host use" in words(unified.advice)
    assert "unified" not in words(plain.advice)
