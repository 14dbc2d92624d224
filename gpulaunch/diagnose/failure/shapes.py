"""The shapes of logs' lines: prefixes that loggers put, tracebacks, aborts, signs of life.

Structure only; no class is named here. Every repetition is bounded, as in `patterns`.
"""

from __future__ import annotations

import re

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
