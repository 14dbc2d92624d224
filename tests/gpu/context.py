"""A program with a real CUDA context, standard library only: says which cards it sees.

    python context.py [BYTES]

Writes one JSON line, {"uuids": [...], "error": code of cuInit or null}. With BYTES it first takes
so much memory on its first card, then holds it until its standard input closes.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid

NO_DEVICE = 100


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    error = cuda.cuInit(0)
    uuids = [] if error else [uuid_of(cuda, n) for n in range(count(cuda))]
    if len(sys.argv) > 1:
        allocate(cuda, int(sys.argv[1]))
    print(json.dumps({"uuids": uuids, "error": error or None}), flush=True)
    if len(sys.argv) > 1:
        sys.stdin.read()


def count(cuda: ctypes.CDLL) -> int:
    found = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(found)), "cuDeviceGetCount")
    return found.value


def uuid_of(cuda: ctypes.CDLL, ordinal: int) -> str:
    """As NVML spells it, less the word before the first dash."""
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    check(cuda.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    # The second version tells MIG instances apart; drivers before 11.4 have the first alone.
    ask = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
    check(ask(ctypes.byref(raw), device), "cuDeviceGetUuid")
    return str(uuid.UUID(bytes=bytes(raw)))


def allocate(cuda: ctypes.CDLL, size: int) -> None:
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    retained = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    check(retained, "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)), "cuMemAlloc")
    filled = cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(size))
    check(filled, "cuMemsetD8")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")


def check(code: int, call: str) -> None:
    if code:
        raise SystemExit(f"{call} returned {code}")


if __name__ == "__main__":
    main()
