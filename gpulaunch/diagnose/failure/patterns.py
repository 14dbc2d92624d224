r"""What the texts of logs mean, as data: which words of an exception, which lines, are which class.

The words come from the sources of the libraries named beside them and from public threads
(tests/failure/corpus). A new one is as narrow as can be, anchored where it stands, and has two
corpus entries: one that needs it, and one that mentions it and is something else. The shapes of
lines stand at the end; no class is named there.
Every repetition is bounded, so that no text costs more than linear time.
"""

from __future__ import annotations

import re

from msgspec import Struct

WRAPPER = "wrapper"
"""Not a class: an error that only says that another process, or an earlier step, failed."""


class Text(Struct, frozen=True):
    """`types`: the exception's types that it holds for; None: all but those whose messages quote.

    `deep`: looked for in the message's later lines as well.
    """

    kind: str
    text: re.Pattern[str]
    types: re.Pattern[str] | None = None
    deep: bool = False


def _raised(kind: str, text: str, types: str | None = None, deep: bool = False) -> Text:
    return Text(kind, re.compile(text), None if types is None else re.compile(types), deep)


def _type(kind: str, types: str, text: str = "") -> Text:
    return _raised(kind, text, types)


def _line(kind: str, text: str) -> Text:
    return Text(kind, re.compile(text))


# What the CUDA runtime and driver say (cudaGetErrorString, cuGetErrorName), whoever prints it.
_OOM = r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|(?:CUDA|HIP|XPU|MUSA|NPU) out of memory"
_STATUS_OOM = r"CU\w{2,6}_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"
_CRASH = (
    r"an illegal memory access was encountered|unspecified launch failure|misaligned address"
    r"|an illegal instruction was encountered|the launch timed out and was terminated"
    r"|hardware stack error|invalid program counter"
    r"|CUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|LAUNCH_TIMEOUT|MISALIGNED_ADDRESS)"
    r"|cudaError(?:IllegalAddress|LaunchFailure|LaunchTimeout|MisalignedAddress)"
)
_LOST = (
    r"uncorrectable (?:ECC|NVLink) error|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE"
    r"|cudaError(?:ECC|NVLink)Uncorrectable|\bGPU is lost\b|GPU has fallen off the bus"
    r"|GPU requires (?:a )?reset|Unable to determine the device handle for GPU"
)
_BUSY = (
    r"CUDA-capable device(?:s are|\(s\) is/are) busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE"
    r"|cudaErrorDevices?Unavailable|exclusive-thread device already in use"
)
_MPS = (  # what cudaGetErrorString says of 805 to 810, and the names of these errors
    r"MPS client failed to connect to the MPS (?:control daemon|server)"
    r"|the remote procedural call between the MPS server and the MPS client failed"
    r"|MPS server is not ready to accept new MPS client requests"
    r"|resources required to create MPS client have been exhausted"
    r"|resources required to support device connections have been exhausted"
    r"|the MPS client has been terminated by the server"
    r"|CUDA_ERROR_MPS_[A-Z_]{4,30}|cudaErrorMps[A-Z]\w{4,30}"
)
_NONE_SEEN = (
    r"No (?:CUDA|HIP) GPUs are available|no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE"
    r"|cudaErrorNoDevice|Found no NVIDIA driver on your system"
    r"|No compatible CUDA device is available|There is no registered Platform called \"CUDA\""
)
_DRIVER = (
    r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
    r"|NVIDIA driver on your system is too old|Driver/library version mismatch"
    r"|forward compatibility was attempted on non supported HW"
    r"|system has unsupported display driver ?/ ?cuda driver combination"
    r"|CUDA error: system not yet initialized|CUDA_ERROR_SYSTEM_(?:NOT_READY|DRIVER_MISMATCH)"
    r"|the provided PTX was compiled with an unsupported toolchain"
    r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
    r"|CUDA unknown error - this may be due to an incorrectly set up environment"
    r"|NVIDIA-SMI has failed because it couldn't communicate"
)
_ARCH = (
    r"no kernel image is available for execution on the device|CUDA_ERROR_NO_BINARY_FOR_GPU"
    r"|cudaErrorNoKernelImageForDevice"
    r"|FlashAttention only supports \w{1,20} GPUs|float16 is only supported on GPUs with compute"
    r"|Feature '[^'\n]{1,60}' requires \.target sm_|invalid value for --gpu-architecture"
    r"|Value 'sm_\w{1,6}' is not defined for option 'gpu-name'"
    r"|Unsupported gpu architecture 'compute_|out of resource: shared memory, Required"
    r"|too old to be supported by the triton GPU compiler"
)
_ASSERT = r"device-side assert triggered|CUDA_ERROR_ASSERT|cudaErrorAssert\b"
_ORDINAL = r"invalid device ordinal|CUDA_ERROR_INVALID_DEVICE|cudaErrorInvalidDevice\b"
_NCCL_PEER = (
    r"remote process exited or there was a network error|ncclRemoteError"
    r"|NCCL communicator was aborted|Connection closed by (?:remote )?peer"
    r"|gloo/transport/tcp/\w{1,20}\.cc:\d{1,6}\] .{0,80}Connection reset by peer"
    r"|(?:recvValue|sendBytes|recvBytes) failed|failed to recv, got 0 bytes"
)
_PORT = r"[Aa]ddress already in use|\bEADDRINUSE\b"
_FULL = r"No space left on device|Disk quota exceeded|database or disk is full"

# ── Exceptions: the first that fits decides ─────────────────────────────────────────────────────

RAISED: tuple[Text, ...] = (
    # Only says that another failed.
    _type(
        WRAPPER,
        r"ChildFailedError|CalledProcessError|ProcessExitedException|BrokenProcessPool"
        r"|EngineDeadError|BrokenPipeError|EOFError|Empty|RayActorError|ActorDiedError"
        r"|WorkerCrashedError|TerminatedWorkerError|SignalException|ConnectionResetError"
        r"|RayTaskError|ProcessRaisedException|InstantiationException",
        r"(?!Ran out of input|Compressed file ended)",
    ),
    _raised(
        WRAPPER,
        r"Engine (?:core|process)[^\n]{0,20} (?:initialization failed|failed to start)"
        r"|WorkerProc initialization failed|[Ss]ee (?:the )?(?:stack trace|root cause|above)"
        r"|[Cc]heck the warnings above"
        r"|returned non-zero exit status",
    ),
    _raised(  # vLLM, whose model is looked at in a process of its own
        WRAPPER, r"Model architectures \[[^\]\n]{1,200}\] failed to be inspected\.", deep=True
    ),
    _raised(WRAPPER, r"^Error raised in subprocess:"),
    _raised("secondary", _NCCL_PEER),
    _raised("secondary", r"Please check rank \d{1,5} logs for faulty rank"),
    _raised("secondary", r"DataLoader worker \(pid\(s\)[^)\n]{0,200}\) exited unexpectedly"),
    # Limits and file systems, before what they make fail.
    _raised("descriptors", r"Too many open files|received 0 items of ancdata"),
    _raised("shm", r"[Uu]nexpected bus error encountered in worker|killed by signal: Bus error"),
    _raised(
        "shm",
        r"out of shared memory|unable to (?:open|allocate|resize) shared memory"
        r"|unable to write to file </torch_|/dev/shm\S{0,200}.{0,80}No space left on device"
        r"|No space left on device.{0,80}/dev/shm|Error while creating shared memory segment",
        deep=True,
    ),
    _raised("disk_full", _FULL),
    # The card's memory.
    _raised("host_oom", r"Java heap space|GC overhead limit exceeded"),
    _raised(
        "host_oom", r"OOM when allocating tensor[^\n]{0,400} by allocator (?:cpu|mklcpu)", deep=True
    ),
    _raised("gpu_oom", _OOM),
    _raised("gpu_oom", r"(?i:\bcuda\b)[^\n]{0,160}\bout of memory\b", deep=True),
    _raised("gpu_oom", _STATUS_OOM),
    _type("gpu_oom", r"OutOfMemoryError", r"(?i)\b(?:cuda|hip|xpu|gpu|device|allocat\w{1,8})\b"),
    _raised(
        "gpu_oom",
        r"(?:RESOURCE_EXHAUSTED|Resource exhausted): (?:Out of memory|OOM|XLA:"
        r"|[^\n]{0,80}(?i:\ballocat))",
    ),
    _raised("gpu_oom", r"OOM when allocating tensor", deep=True),
    _raised(
        "gpu_oom",
        r"^No available memory for the cache blocks"  # vLLM
        r"|^Free memory on device [^\n]{0,60} on startup is less than desired"
        r"|larger than the (?:maximum number of tokens that can be stored in|available) KV cache",
    ),
    _raised("gpu_oom", r"CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_RESOURCES"),
    # The card, the driver, the build.
    _raised("gpu_lost", _LOST),
    _raised("gpu_busy", _BUSY),
    _raised("mps", _MPS),
    _raised("driver", _DRIVER),
    _raised("no_gpu_seen", _NONE_SEEN),
    _raised("no_gpu_seen", r"Torch not compiled with CUDA enabled", r"AssertionError|RuntimeError"),
    _raised(
        "no_gpu_seen",
        r"Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available"
        r"|CUDAAccelerator` can not run on your system|No supported gpu backend found"
        r"|no supported devices found for platform CUDA|^Failed to infer device type"
        r"|libcuda\.so(?:\.1)?: cannot open shared object file",
    ),
    _raised("wrong_arch", _ARCH),
    _raised(
        "wrong_cpu", r"built using AVX instructions, which your CPU|compiled to use \w{1,10} instr"
    ),
    # UUIDs in CUDA_VISIBLE_DEVICES, read as numbers, or (torch before 2.0, where the runtime's own
    # is_available() is true) as no card at all.
    _raised("uuid_mask", r"^invalid literal for int\(\) with base 10: '(?:GPU|MIG)-", "ValueError"),
    _raised(
        "uuid_mask",
        r"^Attempting to deserialize object on CUDA device \d{1,4} but torch\.cuda\.device_count"
        r"\(\) is 0\b",
        r"RuntimeError",
    ),
    # The program on the card.
    _raised("device_mismatch", _ORDINAL),
    _raised(
        "device_mismatch",
        r"Expected all tensors to be on the same device"
        r"|Expected object of (?:device type|backend) \w{1,10} but got (?:device type|backend)"
        r"|Attempting to deserialize object on CUDA device \d{1,4} but torch\.cuda\.device_count"
        r"|module must have its parameters and buffers on device|found two different devices"
        r"|indices should be either on \w{1,10} or on the same device as the indexed tensor"
        r"|cannot be accessed from Triton \(cpu tensor\?\)|arguments are located on different GPUs"
        r"|[Tt]ensors? (?:are|is) on different (?:GPUs|devices)|Invalid CUDA 'device="
        r"|Received incompatible devices for jitted computation"
        r"|Input type \([\w.]{0,20}cuda[^)\n]{0,60}\) and weight type \((?![^)\n]{0,40}cuda)"
        r"|Input type \((?![^)\n]{0,40}cuda)[^)\n]{0,60}\) and weight type \([\w.]{0,20}cuda"
        r"|Tensor for argument #\d{1,3} '\w{1,60}' is on (?:CPU|GPU), but expected",
    ),
    _raised("device_mismatch", r"^Invalid device id$", r"AssertionError"),
    _raised("assert", _ASSERT),
    _raised("crash", _CRASH),
    _raised("cuda_fork", r"Cannot re-initialize CUDA in forked subprocess"),
    _raised("collective", r"collective operation timeout|ncclSystemError|ncclInternalError"),
    _raised(
        "collective",
        r"NCCL error in|NCCL Error \d|ncclInvalidUsage|Timed out waiting \d{1,9}ms for "
        r"|Timed out after \d{1,6} seconds waiting for clients|RendezvousTimeoutError",
    ),
    _raised(
        "gpu_library",
        r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_\w{1,40}|\bCUFFT_\w{1,40}|cuDNN error"
        r"|DNN library (?:initialization failed|is not found)|no algorithm worked!"
        r"|[Uu]nable to find an engine to execute this computation"
        r"|operation cu(?:solver|blas|dnn|sparse|fft)\w{1,40}\([^)\n]{0,40}\) failed",
    ),
    _raised("nan", r"(?:[Pp]article (?:coordinate|position)|[Ee]nergy) is (?:NaN|nan)\b"),
    _raised("nan", r"^Function '\w{1,80}' returned nan values in its"),
    # The machine's memory, after the card's.
    _type("host_oom", r"_?(?:Array)?MemoryError"),
    _raised(
        "host_oom",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|\bstd::bad_alloc\b"
        r"|\[Errno 12\]|killed by signal: Killed|Unable to allocate \S{1,12} \w{1,5} for an array"
        r"|due to the node running low on memory",
    ),
    _type("host_oom", r"bad_alloc"),
    _raised("threads", r"can't start new thread|\bpthread_create\b[^\n]{0,80}failed"),
    _type("threads", r"BlockingIOError|system_error", r"Resource temporarily unavailable"),
    # The environment's packages.
    _raised(
        "wrong_build",
        r"undefined symbol: |version `?GLIBC(?:XX)?_[\d.]{1,10}'? not found|version `?CXXABI_"
        r"|numpy\.dtype size changed|numpy\.core\.multiarray failed to import|_ARRAY_API not found"
        r"|PyTorch and torchvision (?:were|was) compiled with different"
        r"|torchvision::nms does not exist"
        r"|cuDNN version incompatibility|The detected CUDA version \([\d.]{1,10}\) mismatches",
    ),
    _type("not_installed", r"ModuleNotFoundError|PackageNotFoundError"),
    _type(
        "not_installed",
        r"ImportError|OSError|RuntimeError",
        r"^No module named|cannot open shared object file: No such file"
        r"|(?:seems to be |is )?not installed\b|n't installed\b|not found in your environment"
        r"|Ninja is required to load|[Ff]ailed to find C compiler",
    ),
    _type(
        "not_installed", r"OSError|EnvironmentError", r"^CUDA_HOME environment variable is not set"
    ),
    _raised("not_installed", r"^Could not find path to the \"\w{1,40}\" binary"),
    # Files.
    _type("corrupt_file", r"BadZipFile|BadGzipFile|UnpicklingError"),
    _type(
        "corrupt_file", r"ReadError", r"not a gzip file|end of data|empty (?:file|header)|truncated"
    ),
    _type("corrupt_file", r"EOFError", r"Ran out of input|Compressed file ended before"),
    _raised(
        "corrupt_file",
        r"PytorchStreamReader failed reading|unexpected EOF, expected \d{1,12} more bytes"
        r"|deserializing header: (?:Header|Metadata|[Ii]ncomplete|[Ii]nvalid)|invalid hash value"
        r"|Consistency check failed: file should be of size|model is corrupted or incomplete"
        r"|(?i:checksum|sha256|md5)[^\n]{0,80}(?i:mismatch|does not match|did not match)"
        r"|CRC check failed",
    ),
    _raised("locked", r"database is locked|The file lock '[^'\n]{1,300}' could not be acquired"),
    _raised(
        "locked", r"unable to lock file|Unable to (?:synchronously )?open file \(unable to lock"
    ),
    _raised("port", _PORT),
    _raised("port", r"Cannot find empty port in range"),
    _raised(
        "file_error",
        r"\[Errno (?:5|107|112|116|121)\]|Stale file handle|Transport endpoint is not connected"
        r"|fd \d{1,6} failed with Input/output error",
    ),
    # Servers.
    _type("rate_limit", r"RateLimitError"),
    _raised(
        "rate_limit",
        r"\b429 Client Error|HTTP(?: Error)? 429\b|\b429:? Too Many Requests"
        r"|too many 429 error responses|RATELIMIT\b",
    ),
    _type("access", r"GatedRepoError|AuthenticationError|NoCredentialsError"),
    _raised(
        "access",
        r"Cannot access gated repo|You are trying to access a gated repo|\b40[13] Client Error"
        r"|HTTP Error 40[13]\b|Invalid user token",
        deep=True,
    ),
    _raised("access", r"api_key not configured", r"UsageError"),
    _type("license", r"GurobiError", r"(?i)licen[sc]|authorized user list|HostID mismatch"),
    _raised(
        "license",
        r"No Gurobi license found|Licensed number of users already reached|FlexNet Licensing error"
        r"|[Ll]icen[sc]e (?:has )?expired",
    ),
    _raised(
        "network",
        r"Max retries exceeded with url|Failed to establish a new connection"
        r"|Name or service not known|Temporary failure in name resolution|Network is unreachable"
        r"|[Rr]ead timed out|We couldn't connect to 'https?://|\b50[0234] Server Error"
        r"|HTTP Error 50[0234]\b|MMseqs2 API is giving errors|Remote end closed connection"
        r"|outgoing traffic has been disabled|offline mode is enabled",
    ),
    _type(
        "network", r"ConnectionRefusedError|gaierror|LocalEntryNotFoundError|OfflineModeIsEnabled"
    ),
    _type(
        "network", r"Connect(?:ion)?(?:Error|Timeout)|ReadTimeout(?:Error)?|URLError|MaxRetryError"
    ),
    # Last, for they say least.
    _type("permission", r"PermissionError|OSError", r"\[Errno (?:1|13|30)\]"),
    _type("missing_file", r"FileNotFoundError"),
)

WEAK = frozenset(
    {"missing_file", "permission", "not_installed", "network", "file_error", "access", "locked"}
)
"""Classes that programs expect and handle: not looked for behind "during handling of"."""

FOLLOWS = frozenset({"gpu_library", "collective", "crash"})
"""Classes that an earlier failure on the card brings about: what came first in the log wins."""

# ── Lines that are no exception ─────────────────────────────────────────────────────────────────

LINES: tuple[Text, ...] = (
    _line("gpu_oom", r"CUDA out of memory\. Tried to allocate \d"),
    _line("gpu_oom", r"(?:ggml_\w{1,60}: )?[^\n]{0,120}\bcudaMalloc failed: out of memory$"),
    _line("gpu_oom", r"CUDA error(?: \d{1,3})?(?: at [^\n]{1,200}:\d{1,6})?: out of memory$"),
    _line("gpu_oom", r"CUDA error !{1,9} <out of memory>"),  # SPECFEM
    _line("gpu_oom", r"[^\n]{1,300}: cuda runtime error \(2\) : out of memory at "),  # Lua Torch
    _line("crash", rf"CUDA error(?: \d{{1,3}})?(?: at [^\n]{{1,200}}:\d{{1,6}})?: (?:{_CRASH})"),
    _line("gpu_lost", rf"CUDA error(?: \d{{1,3}})?(?: at [^\n]{{1,200}}:\d{{1,6}})?: (?:{_LOST})"),
    _line(
        "wrong_arch", rf"CUDA error(?: \d{{1,3}})?(?: at [^\n]{{1,200}}:\d{{1,6}})?: (?:{_ARCH})"
    ),
    _line("gpu_lost", r"Unable to determine the device handle for GPU\b"),
    _line(
        "driver", r"Failed to initialize NVML: (?:Driver/library version mismatch|Unknown Error)$"
    ),
    _line(
        "driver", r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
    ),
    _line("no_gpu_seen", r"No devices were found$"),
    _line("no_gpu_seen", r"docker: Error response from daemon: could not select device driver"),
    _line("collective", r"(?:\[Rank \d{1,5}\] )?Watchdog caught collective operation timeout: "),
    _line("wrong_arch", r"nvcc fatal {1,3}: Unsupported gpu architecture '"),
    _line("wrong_arch", r"ptxas fatal {1,3}: Value 'sm_\w{1,6}' is not defined"),
    _line("shm", r"Unexpected bus error encountered in worker\."),
    _line(
        "wrong_cpu", r"The TensorFlow library was compiled to use \w{1,10} instructions, but these"
    ),
    _line("host_oom", r"slurmstepd: error: Detected \d{1,6} oom[-_]kill event"),
    _line(  # agent/container
        "host_oom",
        r"gpulaunch: the kernel killed \d{1,6} process(?:es)? of the container for memory",
    ),
    _line(
        "host_oom", r"[^\n]{0,120}: Task was killed due to the node running low on memory"
    ),  # Ray
    _line("host_oom", r"memory allocation of \d{1,20} bytes failed$"),
    _line("threads", r"(?:libgomp|OMP: Error)[^\n]{0,80}: Thread creation failed"),
    _line("threads", r"OpenBLAS blas_thread_init: pthread_create failed for thread"),
    _line("threads", r"[^\n]{0,200}: fork: Resource temporarily unavailable$"),
    _line(
        "not_installed", r"Could not load library lib\S{1,80}\. Error: .{0,200}cannot open shared"
    ),
    _line("not_installed", r"Unable to load any of \{lib"),
    _line("not_installed", r"[\w./-]{1,200}: error while loading shared libraries: "),
    _line(
        "wrong_build", r"[^\n]{1,300}: version `GLIBC(?:XX)?_[\d.]{1,10}' not found \(required by "
    ),
    _line("missing_file", r"[\w./-]{1,200}: can't open file '"),
    _line("disk_full", rf"[\w./\[\]-]{{1,60}}: [^\n]{{1,300}}: (?:{_FULL})$"),
    _line("port", r"\[Errno 98\] [^\n]{0,200}address already in use$"),
    _line("network", r"wget: unable to resolve host address"),
    _line(
        "license",
        r"(?:Error: )?(?:No Gurobi license found|Licensed number of users already reached)",
    ),
    _line("nan", r"Loss is nan, stopping training$"),
    _line("corrupt_file", r"sha256sum: WARNING: \d{1,6} computed checksums? did NOT match$"),
    _line(
        "corrupt_file",
        r"llama_model_load: error loading model: [^\n]{0,200}corrupted or incomplete",
    ),
)
"""Matched from the line's beginning, prefixes off; not in lines of the levels info and warning."""

ANY_LINE = re.compile("|".join(line.text.pattern for line in LINES))
"""Whether any of LINES fits: one look for the many lines that none does."""

SOFT: tuple[Text, ...] = (
    _line("gpu_oom", r"(?i).{0,400}\bran out of memory, skipping batch\b"),  # Boltz
    # ColabFold asks so whatever went wrong; only what follows tells.
    _line("", r"Could not predict \S{1,200}\. Not Enough GPU memory\? (?P<rest>.+)"),
)
"""What programs say that go on without the result and exit 0: decides where outputs are missing.
Without a class: the exception behind `rest` decides."""

STATUSES: tuple[tuple[frozenset[int], Text], ...] = (
    # bash, dash and env: 127 where a program is not there, 126 where it may not be executed.
    (frozenset({127}), _line("not_installed", r"[^\n]{1,300}: (?:command )?not found$")),
    (frozenset({127}), _line("not_installed", r"[^\n]{1,300}: No such file or directory$")),
    (frozenset({126}), _line("permission", r"[^\n]{1,300}: Permission denied$")),
    # agent/container, in a job's place: what docker and podman themselves say stands above it.
    (
        frozenset({125}),
        _line("not_started", r"gpulaunch: \w{1,20} could not start the container \(status \d"),
    ),
    (
        frozenset({125}),
        _line(
            "not_started", r"gpulaunch: \w{1,20} does not answer; the container was not started$"
        ),
    ),
    (frozenset({127}), _line("not_started", r"gpulaunch: [^\n]{1,300} is not in the image ")),
    (frozenset({126}), _line("not_started", r"gpulaunch: [^\n]{1,600} \(in the image ")),
    # load_modules.sh, in a job's place: what the module program itself says stands above it.
    (
        frozenset({126}),
        _line(
            "not_started",
            r"gpulaunch: (?:module load [^\n]{1,600}"
            r"(?:: there is none on |failed on |leaves no PATH)"
            r"|modules: (?:neither Lmod nor |[^\n]{1,600} defines no module command))",
        ),
    ),
    (frozenset({6, 7, 28, 35, 52, 56}), _line("network", r"curl: \(\d{1,2}\) ")),
    (frozenset({22}), _line("rate_limit", r"curl: \(22\) The requested URL returned error: 429")),
    (frozenset({22}), _line("access", r"curl: \(22\) The requested URL returned error: 40[13]")),
    (frozenset({4, 5, 8}), _line("rate_limit", r"[^\n]{0,60}ERROR 429: Too Many Requests")),
)
"""Lines that decide together with the exit status that their program gave: a script may print them
of something that it can do without, and fail of another."""

# ── the shapes of lines: prefixes of loggers, tracebacks, aborts, signs of life ───────────────────

_LEVELS = r"DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
PREFIX = re.compile(
    r"\[(?:rank|default|Rank )(?P<rank>\d{1,5})\]:? ?"  # torchrun, torch
    r"|\((?P<process>(?:[A-Za-z_][\w.:<>-]{0,60}(?: \w{1,20}=\d{1,9})? )?pid=\d{1,9})"
    r"(?:, ip=[\d.]{1,20})?\) ?"  # vLLM, Ray
    r"|\[\d{1,9},\d{1,9}\]<std(?:err|out)>: ?"  # mpirun
    rf"|(?P<level_a>{_LEVELS}) \d\d-\d\d [\d:.]{{8,20}} \[?[^\]\n]{{1,80}}\] ?"  # vLLM
    r"|(?P<level_b>[IWEF])\d{3,4} [\d:]{8}\.\d{1,9} +\d{1,20} [\w./-]{1,120}:\d{1,6}\] ?"  # glog
    r"|(?P<level_c>[IWEF]) [\w./-]{1,120}:\d{1,6}\] ?"  # TensorFlow, after its time
    r"|\[(?P<level_d>[IWEF])(?:\d{3,4} [\d:.]{8,20})? ?[\w./-]{1,60}:\d{1,6}\] ?(?:\[c10d\] ?)?"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[ T,][\d:.,]{5,20}(?:Z|[+-]\d\d:?\d\d)?(?: \w{1,4}\d{1,4})?\]?"
    r"(?: [-|] | |: )?"
    r"|\d\d/\d\d [\d:]{8} - "
    rf"|(?:\| )?(?P<level_e>{_LEVELS})(?::[\w.]{{1,60}}:|:? {{1,8}}(?:- )?|: ?)"
    rf"|\[(?P<level_f>{_LEVELS})\](?: - |:? ?)"
)
INNER_PREFIX = re.compile(
    rf"\[[\w.:/-]{{1,80}}\](?: - |:? ?)|[\w.]{{1,60}} - (?=(?:{_LEVELS})\b)|- "
)
"""What may stand behind a first prefix: `[core.py:12]`, `module - `."""

EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}"
    r"(?P<type>(?:[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Failed|Failure|Timeout|Died|Killed|File|Empty|Found)"
    r"|_ArrayMemoryError|Error|Exception|Timeout|Empty|gaierror|UnpicklingError))"
    r"(?:\(\w{1,60}\))?(?:: (?P<message>.*)|:)?$"
)
TERMINATE = re.compile(
    r"terminate called after throwing an instance of '(?:[\w]{1,60}::){0,6}(?P<type>\w{1,60})"
)
WHAT = re.compile(r" {0,4}what\(\): {1,3}(?P<message>.*)")
LINK = re.compile(
    r"(?:During handling of the above exception, another exception occurred:"
    r"|(?P<cause>The above exception was the direct cause of the following exception:))$"
)
CHILD = re.compile(r"(?:Process [\w:-]{1,80}|Exception in thread [\w ()-]{1,80}):$")
IGNORED = re.compile(
    r"Exception ignored in|Error in (?:atexit|sys\.excepthook)|--- Logging error ---"
)
SURVIVED = re.compile(
    r"(?i)\b(?:retrying|re-trying|trying again|skipping|skipped|continuing|falling back|fallback"
    r"|reducing|halving|resuming|recovered|recovering|ignoring|ignored|restarting|will retry)\b"
)
WENT_WRONG = re.compile(r"(?i)\b(?:failed|failure|could not|cannot|exception|error|caught)\b")
# torch.export.load: the error is in the warning, and is raised without it.
WARNED = re.compile(r"(?i)\b(?:check|see) the warnings? above\b")
PROGRESS = re.compile(
    r"(?i)\W{0,4}(?:epoch|step|iter|iteration|batch|round|fold|sample|query|generation)s?\b.{0,20}\d"
)
BAR = re.compile(r".{0,200}\d{1,3}%\|")
ENDED = re.compile(
    r"(?i).{0,200}\b(?:exit(?:ed|code)?|return(?:ed)?|failed|terminated)\b.{0,60}\b(?:code|status|exitcode)\b"
)
"""A wrapper's or a scheduler's echo of a status."""
CHILD_SIGNAL = re.compile(
    r"(?i)(?:\b(?:exitcode|exit code|return code)\W{1,6}-|\bwith signal )(?P<signal>[479])\b"
)
"""How launchers inside the job say that one of its processes was killed."""
NOISE = re.compile(
    r"\s|[│╭╰|]|wandb:|srun:|slurmstepd:|mpirun|prterun|make(?:\[\d{1,3}\])?: |/\S{1,300}Warning: "
    r"|CUDA kernel errors might|For debugging consider|Compile with|Search for `"
    r"|Exception raised from"
    r"|frame #\d|#\d|@ |\*\*\*|[-=~_*]{3}|Fatal Python error|Current thread|Thread 0x"
    r"|Extension modules|Abort(?:ed\b|\(\d)|Segmentation fault|Set the environment variable"
    r"|Stack trace|goroutine |For simplicity, JAX|The stack trace below|Hint:|terminate called"
    r"|Sending process|Last error:|Killed|\S{0,200}resource_tracker|ERROR conda\.cli"
    r"|Error executing job|Terminated"
    r"|[\w.-]{1,60}:\d{1,9}:\d{1,9} \[\d{1,3}\] NCCL|Root Cause|Failures:|See https?://|Failed core"
    r"|current device: |\w{1,60} FAILED$|BufferAssignment|Buffer \d|Peak buffers|Total bytes"
)
"""What follows an error without being one, nor a sign of life."""
VAGUE = re.compile(r"(?i)(?:\S{1,60}: )?(?:fatal|error|critical|panic|abort(?:ed|ing)?|usage)\b")
QUOTING = re.compile(
    r"AssertionError|KeyError|NameError|SyntaxError|IndentationError|TabError|AttributeError"
    r"|TypeError|IndexError|UsageError|BadParameter|Failed|KeyboardInterrupt|SystemExit|"
)
"""Types whose messages quote other texts, or say nothing of the machine."""
