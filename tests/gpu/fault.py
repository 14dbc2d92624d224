"""A program that breaks on its card, standard library only: a kernel writes where nothing is.

    python fault.py

Writes one JSON line, {"launch": code, "sync": code}: 700 (illegal address) is what is expected of
the second. The driver reports Xid 31 (memory page fault) of the card, or 13 where the
multiprocessor noticed first; the card stays well.
"""

from __future__ import annotations

import ctypes
import json

ILLEGAL_ADDRESS = 700

# Lowest versions: each newer driver compiles them for its card. The address is far outside of what
# any process has mapped on a card (47 bits on the oldest of them).
KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry broken()
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    mov.u64 %rd1, 0x00007ffffffff000;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    check(cuda.cuInit(0), "cuInit")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    retained = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    check(retained, "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    loaded = cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(KERNEL))
    check(loaded, "cuModuleLoadData")
    got = cuda.cuModuleGetFunction(ctypes.byref(function), module, b"broken")
    check(got, "cuModuleGetFunction")
    one, none = ctypes.c_uint(1), ctypes.c_void_p()
    shape = (one, one, one, one, one, one, ctypes.c_uint(0))
    launch = cuda.cuLaunchKernel(function, *shape, none, none, none)
    print(json.dumps({"launch": launch, "sync": cuda.cuCtxSynchronize()}), flush=True)


def check(code: int, call: str) -> None:
    if code:
        raise SystemExit(f"{call} returned {code}")


if __name__ == "__main__":
    main()
