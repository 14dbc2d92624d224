"""Completion in bash, zsh and fish: the scripts that they read, and what they are answered.

    TAB ─▶ gpulaunch.bash ... ─▶ gpulaunch, with _GPULAUNCH_COMPLETE=bash ─▶ answer ─▶ lines
                                                  typed: the words      values: what may stand there

A line is a kind, a tab and a value, and for zsh and fish a tab and words about it: `p` is a value,
`n` one behind which more is typed; `f`, `d` and `c` alone ask the shell for files, directories and
commands. Nothing is started, no error is printed, and after ANSWER_TIMEOUT nothing is answered.
"""
