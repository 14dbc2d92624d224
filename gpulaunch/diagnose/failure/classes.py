"""The failure classes in words: a title, and what a person can do. The decisions are the core's.

A title completes "it failed:", an advice is one or two lines and says what to change, and where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpulaunch.core.classes import POLICIES, Policy


@dataclass(frozen=True, slots=True)
class FailureClass:
    """`plain`: the outcome's own words (exit status, signal, time limit) say as much."""

    name: str
    title: str
    advice: str = ""
    plain: bool = False

    @property
    def policy(self) -> Policy:
        return POLICIES[self.name]


_ALL = (
    FailureClass("exit", "exited with an error", "The end of its log says more.", plain=True),
    FailureClass(
        "signal",
        "killed by a signal",
        "A crash inside the program or one of its libraries (SIGSEGV, SIGABRT, SIGFPE): "
        "PYTHONFAULTHANDLER=1 in env: prints where. Any other signal was sent by somebody.",
        plain=True,
    ),
    FailureClass("timeout", "out of time", "Give it a longer timeout:, or less to do.", plain=True),
    FailureClass(
        "idle_timeout",
        "silent for too long",
        "It wrote nothing for its idle_timeout:; a hang, or a limit too short for its quiet parts.",
        plain=True,
    ),
    FailureClass(
        "not_started",
        "could not be started",
        "Check run:, python:, venv: or conda: of the job, and that the program may be executed.",
        plain=True,
    ),
    FailureClass(
        "missing_output",
        "left no good output",
        "It exited with success, but what outputs: names is absent, empty or old; see its log.",
        plain=True,
    ),
    FailureClass(
        "lost",
        "nobody saw its end",
        "Its keeper was killed or the machine went down; it is run again.",
        plain=True,
    ),
    FailureClass(
        "gpu_oom",
        "out of GPU memory",
        "Ask for a card with more memory free (gpu_memory: 40GB), or make the batch or the input "
        "smaller; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against gaps.",
    ),
    FailureClass(
        "host_oom",
        "out of memory (the machine's, not the card's)",
        "Fewer such jobs at once (cpus:, or a token in uses:), fewer data loading workers, or a "
        "smaller input.",
    ),
    FailureClass(
        "shm",
        "out of shared memory",
        "/dev/shm is full: fewer data loading workers, or a larger /dev/shm (containers: "
        "--shm-size=16g or --ipc=host).",
    ),
    FailureClass(
        "disk_full",
        "no space left on the disk",
        "Make room, or lead its output, TMPDIR and caches (HF_HOME, TORCH_HOME) to another disk.",
    ),
    FailureClass(
        "gpu_lost",
        "the card was lost",
        "A fault of the hardware or the driver: the card is set aside for this run. nvidia-smi -q "
        "and dmesg say more; it needs a reset or a reboot.",
    ),
    FailureClass(
        "gpu_busy",
        "the card was busy or unavailable",
        "Somebody else holds it exclusively (nvidia-smi: compute mode, processes), or the last "
        "program has not let go of it yet.",
    ),
    FailureClass(
        "no_gpu_seen",
        "it saw no card",
        "A CPU build of its framework, a container without the cards' devices, code that changes "
        "CUDA_VISIBLE_DEVICES, or gpus: 0; gpulaunch doctor checks the rest.",
    ),
    FailureClass(
        "wrong_gpu",
        "it used a card that is not its own",
        "It must not set CUDA_VISIBLE_DEVICES itself; its own card is cuda:0. isolation: strict "
        "hides the others.",
    ),
    FailureClass(
        "driver",
        "the driver does not fit",
        "The NVIDIA driver is too old for the program's CUDA, half updated, or not fully up: "
        "update, reload or reboot; or take a build for an older CUDA.",
    ),
    FailureClass(
        "wrong_arch",
        "the build lacks this card's architecture",
        "Install a build of the framework for this card, or name cards that it knows (gpus:).",
    ),
    FailureClass(
        "wrong_build",
        "libraries that do not fit each other",
        "A package was built against another version of torch, CUDA, NumPy or the C library: "
        "reinstall it in this job's environment, matching.",
    ),
    FailureClass(
        "wrong_cpu",
        "the build needs instructions that this processor lacks",
        "Install a build for this processor (without AVX, for instance), or run it elsewhere.",
    ),
    FailureClass(
        "not_installed",
        "a program, module or library is missing",
        "Install it in the job's environment, or name the right one: python:, venv: or conda:.",
    ),
    FailureClass(
        "device_mismatch",
        "tensors or code on another device",
        "The job sees its card as cuda:0 and no other: use cuda:0 or .to(model.device); "
        "explain: true, or gpulaunch.torch.check_devices, names the odd tensor.",
    ),
    FailureClass(
        "assert",
        "a check on the card failed",
        "Mostly an index or a label out of range: run it once with CUDA_LAUNCH_BLOCKING=1, or on "
        "the CPU, to see where.",
    ),
    FailureClass(
        "crash",
        "the program crashed on the card",
        "compute-sanitizer, or CUDA_LAUNCH_BLOCKING=1, shows where; if it runs on other cards, "
        "suspect this one.",
    ),
    FailureClass(
        "gpu_library",
        "a CUDA library failed",
        "Often the card's memory was already full, an index was out of range, or two versions of "
        "the library are installed.",
    ),
    FailureClass(
        "cuda_fork",
        "it forked after using the card",
        "A forked process cannot use CUDA: multiprocessing.set_start_method('spawn'), or keep CUDA "
        "out of data loading workers.",
    ),
    FailureClass(
        "collective",
        "its processes lost touch with each other",
        "One rank was slow, stuck or gone (NCCL): see each rank's last lines; NCCL_DEBUG=INFO says "
        "more.",
    ),
    FailureClass(
        "secondary",
        "one of its other processes failed first",
        "This error only follows from another: look at the first failing process in the log.",
    ),
    FailureClass(
        "nan",
        "the computation blew up (NaN)",
        "Minimise first, take a smaller time step or learning rate, or look at the input.",
    ),
    FailureClass(
        "missing_file",
        "a file was not there",
        "Relative paths start at the job's cwd: (by default the job file's directory).",
    ),
    FailureClass("permission", "not permitted", "Check the owner and the mode of what it names."),
    FailureClass(
        "file_error",
        "the file system failed",
        "A network file system or a disk gave errors; if it comes again, ask who keeps it.",
    ),
    FailureClass(
        "corrupt_file",
        "a file is damaged or incomplete",
        "Mostly a download cut short, or two jobs at once: delete it; first: true lets one job "
        "download before the others.",
    ),
    FailureClass(
        "locked",
        "a lock or a database is held by another process",
        "Give each job its own file or cache, or a token in uses:; a stale lock may be deleted.",
    ),
    FailureClass(
        "descriptors",
        "too many open files",
        "Raise ulimit -n, use fewer workers, or "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
    ),
    FailureClass(
        "threads",
        "no more threads or processes to be had",
        "A limit (ulimit -u, the container's pids) is reached: fewer jobs at once, or cpus: 1 and "
        "OMP_NUM_THREADS=1.",
    ),
    FailureClass(
        "port",
        "its port is taken",
        "Use {{port}} in run:, or leave MASTER_PORT to gpulaunch: each job then has its own.",
    ),
    FailureClass(
        "network",
        "a server could not be reached",
        "Check the address, the proxy and the network of this machine; with everything cached, "
        "HF_HUB_OFFLINE=1.",
    ),
    FailureClass(
        "rate_limit",
        "refused by a server's rate limit",
        "Fewer requests at once: limits: {server: 1} and uses: [server] on these jobs.",
    ),
    FailureClass(
        "access",
        "access refused",
        "Log in or set a token (HF_TOKEN) with the right to it; gated models must be asked for on "
        "their page.",
    ),
    FailureClass(
        "license",
        "no licence to be had",
        "All seats may be taken: limits: {licence: N} and uses: [licence]; or the licence is gone "
        "or out of date.",
    ),
)

CLASSES: Mapping[str, FailureClass] = MappingProxyType({one.name: one for one in _ALL})
"""By name. Holds exactly the names of `core.classes.POLICIES` (a test holds this)."""


def advice_for(kind: str) -> str:
    """One or two lines on what to do; empty for a class that is not known."""
    known = CLASSES.get(kind)
    return known.advice if known else ""


def title_of(kind: str) -> str:
    """`out of GPU memory`; empty for a class whose outcome says as much, and for an unknown one."""
    known = CLASSES.get(kind)
    return known.title if known and not known.plain else ""
