"""The helper process that listens to the driver; it prints a line of JSON for each of these:

    {"said": "asking", "gpus": [UUID, ...]}              before the driver is asked about a card
    {"said": "hears", "gpus": [...], "types": ["xid"]}   from now on these events come
    {"said": "deaf", "gpus": [...], "error": {...}}      none will come from there
    {"said": "event", "gpus": [...], "kind": "xid", "code": 79, "recovery": null}
    {"said": "end"}                                      nothing to listen to: not to be tried again

Waiting for an event blocks, and any call may hang for good on a sick card: hence a process of its
own, which the kernel kills when a call outlasts its time. Its client (`xid`) starts another.
MIG: the driver reports events by card; a line names the instances that an event concerns.
Standard library and pynvml only; never calls cuInit, never judges an event (`xid`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpulaunch.gpus.probe import (
    die_with_parent,
    explained,
    instances,
    recovery_action,
    started,
    text,
)
from gpulaunch.gpus.xid import EVENT_TYPES

ANY = 0xFFFFFFFF  # the event concerns every instance, or there are none
RECOVERY_CHANGED = 154
REGISTRATION_TIMEOUT = 60  # seconds; a card without persistence mode takes several to wake
RECHECK_INTERVAL = 30
REPEAT = 1.0  # one fault in a kernel is reported by every multiprocessor that runs it
XID, BASIC = EVENT_TYPES["xid"], EVENT_TYPES["xid"] | EVENT_TYPES["double_bit_ecc"]
# Not to be tried again: nothing that happens later makes them go away.
_FOR_GOOD = (
    "NotSupported",
    "FunctionNotFound",
    "LibraryNotFound",
    "LibraryMismatchError",
    "NoPermission",
)

# A MIG instance's place on its card: GPU instance and compute instance. None: the whole card.
Place = tuple[int, int] | None


def main() -> None:
    """Listen; arguments: the launcher's PID, the longest wait in seconds, [[index, UUID], ...]."""
    parent, period, gpus = int(sys.argv[2]), float(sys.argv[3]), json.loads(sys.argv[4])
    die_with_parent(parent)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    try:
        with limited(REGISTRATION_TIMEOUT):
            nvml = started()
            events = nvml.nvmlEventSetCreate()
    except Exception as error:
        say("deaf", gpus=[uuid for _, uuid in gpus], error=explained(error))
        if not for_good(error):
            raise SystemExit(1) from None
    else:
        cards = RegisteredCards(nvml, events)
        cards.register(gpus)
        cards.listen(period)
    say("end")


def say(said: str, **what: Any) -> None:
    sys.stdout.write(json.dumps({"said": said, **what}) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Have the kernel end this process, wherever it is stuck, unless the block ends in time."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class RegisteredCards:
    """The cards whose events are registered, by the address of the driver's handle."""

    def __init__(self, nvml: Any, events: Any) -> None:
        self._nvml = nvml
        self._events = events
        self._places: dict[int | None, dict[str, Place]] = {}
        self._last: dict[tuple[object, ...], float] = {}

    def register(self, gpus: Sequence[tuple[int, str]]) -> None:
        for index in dict.fromkeys(index for index, _ in gpus):
            uuids = [uuid for where, uuid in gpus if where == index]
            say("asking", gpus=uuids)
            try:
                with limited(REGISTRATION_TIMEOUT):
                    types = self._register(index, uuids)
            except Exception as error:
                say("deaf", gpus=uuids, error=explained(error))
            else:
                say("hears", gpus=uuids, types=types)

    def _register(self, index: int, uuids: Sequence[str]) -> list[str]:
        handle = handle_of(self._nvml, index, uuids[0])
        there = places(self._nvml, handle)
        wanted = self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & sum(EVENT_TYPES.values())
        if not wanted & XID:
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_InvalidArgument):
            wanted &= BASIC
            self._nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)
        self._places[address(handle)] = {uuid: there[uuid] for uuid in uuids if uuid in there}
        return [name for name, bit in EVENT_TYPES.items() if wanted & bit]

    def listen(self, period: float) -> None:
        """Print events until no card is left. An error of the driver ends the process."""
        while self._places:
            began = time.monotonic()
            try:
                with limited(period + RECHECK_INTERVAL):
                    data = self._nvml.nvmlEventSetWait_v2(self._events, int(period * 1000))
            except self._nvml.NVMLError_Timeout:
                # The driver's timeout may come early; this loop must not spin.
                time.sleep(max(0.0, min(1.0, period) - (time.monotonic() - began)))
            except self._nvml.NVMLError as error:
                if for_good(error):
                    say("deaf", gpus=self._uuids(), error=explained(error))
                    return
                # Perhaps one card's fault: registering the cards again shows whose.
                raise SystemExit(1) from None
            else:
                self._tell(data)

    def _tell(self, data: Any) -> None:
        card, place = address(data.device), (data.gpuInstanceId, data.computeInstanceId)
        gpus = concerned(self._places.get(card, {}), place)
        kind = next((name for name, bit in EVENT_TYPES.items() if bit == data.eventType), None)
        code = data.eventData if kind == "xid" else None
        if kind is None or not gpus or self._repeated(card, place, kind, code):
            return
        action = None
        if kind == "recovery" or code == RECOVERY_CHANGED:
            with limited(REGISTRATION_TIMEOUT), contextlib.suppress(self._nvml.NVMLError):
                action = recovery_action(self._nvml, data.device)
        say("event", gpus=gpus, kind=kind, code=code, recovery=action)

    def _repeated(self, *event: object) -> bool:
        """Tell whether the same event was printed less than REPEAT seconds ago."""
        now = time.monotonic()
        recent = {key: at for key, at in self._last.items() if now - at < REPEAT}
        self._last = {event: now} | recent
        return event in recent

    def _uuids(self) -> list[str]:
        return [uuid for there in self._places.values() for uuid in there]


def handle_of(nvml: Any, index: int, uuid: str) -> Any:
    """Return the card at that index; by UUID if another card has left and the indices moved.

    By index first: a search by UUID touches every card, and one of them may hang.
    """
    with contextlib.suppress(nvml.NVMLError_InvalidArgument):  # there are fewer cards now
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if uuid in places(nvml, handle):
            return handle
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError_NotFound:
        raise LookupError(f"{uuid} is not there any more") from None
    if uuid.startswith("MIG-"):
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return handle


def places(nvml: Any, handle: Any) -> dict[str, Place]:
    """Return the card's UUID (None) and its MIG instances' UUIDs, with their places."""
    found: dict[str, Place] = {text(nvml.nvmlDeviceGetUUID(handle)): None}
    with contextlib.suppress(nvml.NVMLError):  # a card that knows no MIG
        for mig in instances(nvml, handle):
            found[text(nvml.nvmlDeviceGetUUID(mig))] = (
                nvml.nvmlDeviceGetGpuInstanceId(mig),
                nvml.nvmlDeviceGetComputeInstanceId(mig),
            )
    return found


def concerned(there: dict[str, Place], event: tuple[int, int]) -> list[str]:
    """Return the UUIDs that an event at that place concerns."""
    return [
        uuid
        for uuid, place in there.items()
        if place is None or (event[0] in (ANY, place[0]) and (ANY in event or event[1] == place[1]))
    ]


def address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def for_good(error: Exception) -> bool:
    return isinstance(error, ImportError) or type(error).__name__.endswith(_FOR_GOOD)


if __name__ == "__main__":
    main()
