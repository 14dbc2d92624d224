"""The helper process that asks the driver: one JSON request a line in, one JSON answer a line out;
before them all the line "ready".

    {"ask": "machine"}                                 -> driver, CUDA version, number of cards
    {"ask": "card", "index": 0}                        -> what does not change: UUID, name, MIG ...
    {"ask": "look", "index": 0, "uuid": "GPU-..."}     -> what does: memory, processes, health
    {"ask": "use", "index": 0, "uuid": "GPU-...", "since": 1.7e9} -> what changes all the time, PIDs
    {"ask": "pids", "index": 0, "uuid": "GPU-..."}     -> the PIDs alone

A call into the driver can hang for good on a sick card and cannot be interrupted: hence a process,
that the client (`discover`) kills. One request touches one card, so that the client knows which.
Every field is asked for by itself and may fail by itself ("errors"). Never calls cuInit, never
judges an answer (`parse`, `machine`), standard library and pynvml only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gpulaunch.base.cgroups import memory_available, memory_of_machine, of_meminfo
from gpulaunch.base.files import user_name
from gpulaunch.gpus import parse
from gpulaunch.gpus.socket_locks import command_of

Answer = dict[str, Any]

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_UNCORRECTED, _SINCE_DRIVER_LOAD, _CORE = 1, 0, 0
_WHOLE = 100  # per cent of a card's time
_MOST_CARDS = 64  # of a machine


def main() -> None:
    """Answer requests from standard input; the argument is the PID of the process that asks."""
    die_with_parent(int(sys.argv[2]))
    with contextlib.suppress(ImportError):  # the answer to the first request reports it
        import pynvml  # noqa: F401
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(request | answer(request)) + "\n")
        sys.stdout.flush()


def answer(request: Answer) -> Answer:
    """Return the answer to one request; a failure of the whole is its "error"."""
    try:
        nvml = started()
        if request["ask"] == "machine":
            return machine(nvml)
        handle = nvml.nvmlDeviceGetHandleByIndex(request["index"])
        if request["ask"] == "card":
            return card(nvml, handle)
        if request["ask"] == "use":
            return use(nvml, handle, request["uuid"], request["since"])
        return _LOOKS[request["ask"]](nvml, handle, request["uuid"])
    except Exception as error:
        return {"error": explained(error)}


def started() -> Any:
    """Return pynvml with the driver's library initialised; retried at each request until it is."""
    import pynvml

    if not getattr(pynvml, "_nvmlLib_refcount", 0):
        pynvml.nvmlInit()
    return pynvml


class Fields:
    """Collects values of which each may fail alone."""

    def __init__(self) -> None:
        self.answer: Answer = {"errors": {}}

    def ask(self, name: str, *calls: Callable[[], Any]) -> Any:
        """Set the field to the value of the first of these calls that the driver knows."""
        for call in calls:
            try:
                value = call()
            except Exception as error:
                self.answer["errors"][name] = explained(error)
            else:
                self.answer["errors"].pop(name, None)
                self.answer[name] = value
                return value
        return None


def machine(nvml: Any) -> Answer:
    fields = Fields()
    fields.ask("driver", nvml.nvmlSystemGetDriverVersion)
    fields.ask("cuda", nvml.nvmlSystemGetCudaDriverVersion_v2, nvml.nvmlSystemGetCudaDriverVersion)
    fields.ask("count", nvml.nvmlDeviceGetCount, lambda: counted(nvml))
    return fields.answer


def counted(nvml: Any) -> int:
    """Return the number of cards by their indices, where the driver does not tell it.

    Raises what the driver says of the first card where there is none.
    """
    count = 0
    while count < _MOST_CARDS:
        try:
            nvml.nvmlDeviceGetHandleByIndex(count)
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotFound):
            break
        count += 1
    if not count:
        nvml.nvmlDeviceGetHandleByIndex(0)
    return count


def card(nvml: Any, handle: Any) -> Answer:
    fields = identity(nvml, handle, whole=True)
    bus = fields.ask("bus", lambda: text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    fields.ask("compute", lambda: list(nvml.nvmlDeviceGetCudaComputeCapability(handle)))
    fields.answer |= parse.place(bus or "", nvml, handle, os.environ)
    fields.ask("links", lambda: parse.links(nvml, handle))
    fields.ask("minor", lambda: nvml.nvmlDeviceGetMinorNumber(handle))
    fields.ask("compute_mode", lambda: nvml.nvmlDeviceGetComputeMode(handle))
    fields.ask("persistence", lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    mode = fields.ask("mig_mode", lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    if mode == 1:
        fields.ask("mig", lambda: [instance(nvml, mig) for mig in instances(nvml, handle)])
    return fields.answer


def instance(nvml: Any, mig: Any) -> Answer:
    fields = identity(nvml, mig, whole=False)
    fields.ask("gi", lambda: nvml.nvmlDeviceGetGpuInstanceId(mig))
    fields.ask("ci", lambda: nvml.nvmlDeviceGetComputeInstanceId(mig))
    return fields.answer


def identity(nvml: Any, handle: Any, whole: bool) -> Fields:
    """Return the fields that a card and a MIG instance both have; `whole`: it is a card."""
    fields = Fields()
    fields.ask("uuid", lambda: text(nvml.nvmlDeviceGetUUID(handle)))
    fields.ask("name", lambda: text(nvml.nvmlDeviceGetName(handle)))
    fields.ask("memory", lambda: memory_of(nvml, handle, whole))
    return fields


def instances(nvml: Any, handle: Any) -> Iterator[Any]:
    for n in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, n)
        except nvml.NVMLError_NotFound:  # a place where no instance has been made
            continue


def look(nvml: Any, handle: Any, uuid: str) -> Answer:
    part = found(nvml, handle, uuid)
    fields = Fields()
    fields.ask("memory", lambda: memory_of(nvml, part, not uuid.startswith("MIG-")))
    for kind, name in (("C", "Compute"), ("M", "MPSCompute"), ("G", "Graphics")):
        fields.ask(f"processes_{kind}", *processes(nvml, part, name))
    # A MIG instance has no health of its own: its card's counts.
    fields.ask("compute_mode", lambda: nvml.nvmlDeviceGetComputeMode(handle))
    fields.ask("persistence", lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    fields.ask("recovery", lambda: recovery_action(nvml, handle))
    fields.ask("remapped", lambda: list(nvml.nvmlDeviceGetRemappedRows(handle)))
    fields.ask("retiring", lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    fields.ask(
        "ecc", lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _SINCE_DRIVER_LOAD)
    )
    fields.ask("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(part).gpu)
    fields.ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, _CORE))
    fields.ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    fields.answer["windows"] = draws_windows(nvml, handle)
    return fields.answer


def use(nvml: Any, handle: Any, uuid: str, since: float) -> Answer:
    """Return the values that are asked every second of every card, by as few calls as possible.

    `since`: seconds since 1970, from when on it is asked what each process did.
    """
    part = found(nvml, handle, uuid)
    fields = pids_of(nvml, part)
    rates = fields.ask("rates", lambda: rates_of(nvml, part))
    if rates is not None:
        fields.answer["utilization"] = rates[0]
    fields.ask("work", lambda: work_of(nvml, part, since))
    fields.ask("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(part))
    fields.ask("used", lambda: used_of(nvml, part, not uuid.startswith("MIG-"), fields.answer))
    fields.ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, _CORE))
    fields.ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    fields.ask(
        "throttled",
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )
    return fields.answer


def rates_of(nvml: Any, part: Any) -> list[int]:
    """Return for how much of the time, in per cent, kernels ran, and its memory was in use."""
    rates = nvml.nvmlDeviceGetUtilizationRates(part)
    return [rates.gpu, rates.memory]


def work_of(nvml: Any, part: Any, since: float) -> list[list[int]]:
    """Return [PID, per cent of its busiest unit] of each process that did something since.

    The driver has an entry for each of its own sample periods, which are shorter than a second.
    Raises ValueError for values that cannot be: drivers have told such after a process became a
    zombie (https://github.com/Syllo/nvtop/issues/110).
    """
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(part, int(since * 1_000_000))
    except nvml.NVMLError_NotFound:  # none of them did anything
        return []
    found = [[s.pid, max(s.smUtil, s.memUtil, s.encUtil, s.decUtil)] for s in samples if s.pid]
    if any(share > _WHOLE for _, share in found):
        raise ValueError("the driver tells more than all of a card's time")
    return found


def pids(nvml: Any, handle: Any, uuid: str) -> Answer:
    return pids_of(nvml, found(nvml, handle, uuid)).answer


def pids_of(nvml: Any, part: Any) -> Fields:
    """Return [PID, memory or None] of the computing processes, with the driver's PIDs."""
    fields = Fields()
    for kind, name in (("C", "Compute"), ("M", "MPSCompute")):
        fields.ask(f"pids_{kind}", *_listed(nvml, part, name, lambda e: [e.pid, e.usedGpuMemory]))
    return fields


def found(nvml: Any, handle: Any, uuid: str) -> Any:
    """Return the handle of the card, or of its MIG instance of that UUID. Raises LookupError.

    A driver that does not tell the card's UUID, or told none when the card was found, contradicts
    nothing: the card at the index is taken. Raises what the driver says of a card that is lost.
    """
    try:
        own = text(nvml.nvmlDeviceGetUUID(handle))
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired):
        raise
    except nvml.NVMLError:
        own = uuid if uuid.startswith("GPU-") else ""
    if uuid.startswith("PCI-"):
        own = "PCI-" + parse.bus_of_kernel(text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    if own == uuid or uuid.startswith("INDEX-"):
        return handle
    if uuid.startswith("MIG-"):
        for mig in instances(nvml, handle):
            if text(nvml.nvmlDeviceGetUUID(mig)) == uuid:
                return mig
        raise LookupError(f"the card has no MIG instance {uuid} any more")
    raise LookupError(f"another card is in its place now: {own}")


def memory_of(nvml: Any, handle: Any, whole: bool) -> Answer:
    """Return the memory's sizes; "unified" is in them where the memory is the host's.

    Such a card (GB10, Jetson) has none of its own: the driver says "Not Supported", or tells 0 or
    exactly the host's size, depending on its version. `whole`: it is a card, and no MIG instance.
    """
    refusals = []
    for call in (memory_v2, memory_v1):
        try:
            told = call(nvml, handle)
        except nvml.NVMLError as error:
            refusals.append(error)
        else:
            if told["total"] not in (0, of_meminfo("MemTotal")):
                return told
            break
    else:
        if not any(isinstance(error, nvml.NVMLError_NotSupported) for error in refusals):
            raise refusals[-1]
    total = memory_of_machine()
    if not whole or total is None:
        raise refusals[-1] if refusals else nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return {"total": total, "free": memory_available(), "unified": True}


def used_of(nvml: Any, handle: Any, whole: bool, answer: Answer) -> int | None:
    """Return the bytes of the card's memory in use; `answer` has its processes.

    Of unified memory what the processes on the card take, None where the driver does not tell that.
    """
    told = memory_of(nvml, handle, whole)
    if not told.get("unified"):
        return int(told["used"])
    each = [memory for kind in "CM" for _, memory in answer.get(f"pids_{kind}", ())]
    return None if "pids_C" not in answer or None in each else sum(each)


def memory_v2(nvml: Any, handle: Any) -> Answer:
    """Return the memory's sizes, with the driver's own reserve apart from `used`."""
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return {"total": info.total, "free": info.free, "used": info.used, "reserved": info.reserved}


def memory_v1(nvml: Any, handle: Any) -> Answer:
    info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"total": info.total, "free": info.free, "used": info.used}


def draws_windows(nvml: Any, handle: Any, wsl: str = "/dev/dxg") -> bool:
    """Tell whether the card draws Windows' desktop, as under WSL.

    There the driver says by which of Windows' models it drives the card (nvidia-container-toolkit
    issue 271); Linux' own knows none. Where it fails to say, the device file that WSL has counts.
    """
    try:
        return bool(nvml.nvmlDeviceGetCurrentDriverModel(handle) == nvml.NVML_DRIVER_WDDM)
    except (nvml.NVMLError, OSError):
        return os.path.exists(wsl)


def processes(nvml: Any, handle: Any, kind: str) -> list[Callable[[], list[Answer]]]:
    return _listed(nvml, handle, kind, lambda entry: process(entry.pid, entry.usedGpuMemory))


def _listed(
    nvml: Any, handle: Any, kind: str, shown: Callable[[Any], Any]
) -> list[Callable[[], list[Any]]]:
    """Return the calls that list such processes, newest first: old drivers lack some."""
    return [
        lambda version=version: [  # type: ignore[misc]
            shown(entry)
            for entry in getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}")(handle)
        ]
        for version in ("v3", "v2")
    ]


def process(pid: int, memory: int | None) -> Answer:
    named: Answer = {"pid": pid, "memory": memory}
    if is_the_same_here(pid):
        try:
            named["user"] = user_name(os.stat(f"/proc/{pid}").st_uid)
            named["command"] = command_of(pid)
        except OSError:
            pass
    return named


def is_the_same_here(pid: int, proc: str = "/proc") -> bool:
    """Tell whether the PID, which is the host's, names the same process in this PID namespace.

    In a container the same number may be another process: it counts as the same only if it has a
    card open.
    """
    try:
        if sees_all_pids(proc):
            return True
        files = f"{proc}/{pid}/fd"
        return any(
            os.readlink(f"{files}/{fd}").startswith("/dev/nvidia") for fd in os.listdir(files)
        )
    except OSError:
        return False


def sees_all_pids(proc: str = "/proc") -> bool:
    """Tell whether this is the PID namespace of the host. Raises OSError."""
    return os.readlink(f"{proc}/self/ns/pid") == _INITIAL_PID_NAMESPACE


def recovery_action(nvml: Any, handle: Any) -> int:
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])
    if field.nvmlReturn:
        raise nvml.NVMLError(field.nvmlReturn)
    return int(field.value.uiVal)


_LOOKS: dict[str, Callable[[Any, Any, str], Answer]] = {"look": look, "pids": pids}


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def explained(error: Exception) -> Answer:
    """Return an error as data: NVML's number, if it has one, and words."""
    code = getattr(error, "value", None)
    try:
        words = str(error)
    except Exception:  # str() asks the driver for the words
        words = type(error).__name__
    return {
        "code": code if isinstance(code, int) else None,
        "kind": type(error).__name__,
        "text": words,
    }


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this helper with its client, whose end a hung helper would not notice.

    `parent` is the client's own PID: a client that was killed while this process started is no
    longer the parent, and no signal would come.
    """
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
