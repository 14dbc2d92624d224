"""What gpulaunch costs, measured against what else people use: `python -m tests.benchmarks`.

A section is a module here with one function:

    def measure(quick: bool) -> dict[str, object]

It returns plain JSON: figures with their units in the keys' names (`_ms`, `_seconds`, `_mb`,
`_ratio`), and what could not be measured as a line of text under `absent`. Whatever is compared is
measured in turns within the call, so that a busy machine is equally busy for all. `quick` asks for
the smallest sizes that still go all the way. Run by path, or as `python -m tests.benchmarks.NAME`,
a section prints its JSON alone.

Nothing here is collected by pytest, and no test judges a time.
"""
