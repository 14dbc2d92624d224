"""The figures for people: a table between two markers of a document, and a plot beside it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import machine, packing

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
PLOT = ROOT / "examples" / "overhead.svg"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def write(results: dict[str, Any], document: Path = DOCUMENT, plot: Path = PLOT) -> None:
    text = document.read_text()
    if BEGIN in text and END in text:
        before, rest = text.split(BEGIN, 1)
        document.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{rest.split(END, 1)[1]}")
    if "overhead" in results and can_draw():
        draw(results["overhead"], plot)


def can_draw() -> bool:
    """Whether the plot's library is here: the extra `bench` installs it."""
    return importlib.util.find_spec("matplotlib") is not None


# ── The table ───────────────────────────────────────────────────────────────────────────────────


def table(results: dict[str, Any]) -> str:
    """A row per figure; what has not been measured has none."""
    rows = [row for name, show in SHOWN.items() if name in results for row in show(results[name])]
    told = machine.sentence([result["machine"] for result in results.values()])
    lines = ["| | gpulaunch | |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, "", f"Measured on: {told}."])


def _overhead(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    gap, rate = figures["gap_ms"], figures["jobs_per_second"]
    others = (f"{name} {one['median']:.2f}" for name, one in gap.items() if name != "gpulaunch")
    ratio = figures["gap_ratio_to_xargs"]
    ours = f"{gap['gpulaunch']['median']:.2f} ms" + (f" ({ratio:.1f} × xargs)" if ratio else "")
    yield "from a job's exit to the next one's first instruction", ours, ", ".join(others)
    others = (f"{name} {one:,.0f}" for name, one in rate.items() if name != "gpulaunch")
    slots = figures["slots"]["jobs_per_second"]
    count = f", a whole command of {figures['jobs']:,}" if "jobs" in figures else ""
    yield (
        f"empty jobs a second on {slots} slots{count}",
        f"{rate['gpulaunch']:,.0f}",
        ", ".join(others),
    )
    for number, found in figures.get("gap_ratio_by_slots", {}).items():
        ours = f"{figures['gap_ms_by_slots'][number]['gpulaunch']:.2f} ms"
        ratios = ", ".join(f"{name} {one:.2f} ×" for name, one in found.items())
        yield f"from exit to next start, over theirs, slots: {number}", ours, ratios
    if cpu := figures.get("cpu_ms_per_job"):
        others = (f"{name} {one:.2f}" for name, one in cpu.items() if name != "gpulaunch")
        yield (
            "CPU an empty job, of the whole command",
            (f"{cpu['gpulaunch']:.2f} ms"),
            ", ".join(others),
        )
    for name, why in figures["absent"].items():
        yield name, "", f"absent: {why}"


def _cpu(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if used := figures.get("used"):
        parts = ("supervisor", "keepers", "job", "others")
        yield (
            "CPU a further empty job",
            f"{used['all_ms']:.2f} ms",
            ", ".join(f"{part} {used[f'{part}_ms']:.2f}" for part in parts),
        )


def _scale(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    lists = figures["list"]
    ordered = {count: lists[count] for count in sorted(lists, key=int)}
    yield (
        "from exit to next start, by the list's length",
        ", ".join(f"{one['gap_ms']:.2f} ms" for one in ordered.values()),
        ", ".join(f"{int(count):,}" for count in ordered) + " jobs",
    )
    slots = {count: figures["slots"][count] for count in sorted(figures["slots"], key=int)}
    yield (
        "empty jobs a second, by slots",
        ", ".join(f"{one:,.0f}" for one in slots.values()),
        f"{', '.join(slots)} slots",
    )
    count, longest = max(lists.items(), key=lambda item: int(item[0]))
    yield (
        f"supervisor's memory, {int(count):,} jobs",
        f"{longest['memory_mb']:.0f} MB",
        "its highest",
    )
    yield (
        "memory of a resting pair of keepers",
        f"{figures['pair_mb']:.2f} MB",
        "shared pages by shares",
    )
    yield (
        "supervisor's CPU while jobs run",
        f"{figures['idle_cpu_percent']:.2f} % of a core",
        f"{figures['idle_jobs']} long jobs",
    )


def _startup(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield (
        "`--version`, `exec -- true`, `run` to the first job",
        ", ".join(f"{figures[name]:.0f} ms" for name in ("version_ms", "exec_ms", "run_ms")),
        f"a bare Python {figures['python_ms']:.0f} ms",
    )
    whole = figures.get("whole_ms", {})
    for names in (["status", "check", "logs", "wait"], ["run"]) if whole else ():
        yield (
            ", ".join(f"`{name}`" for name in names) + " of one job, to the end",
            ", ".join(f"{whole[name]['time']:.0f} ms" for name in names),
            "CPU " + ", ".join(f"{whole[name]['cpu']:.0f} ms" for name in names),
        )
    if plan := figures.get("plan_s"):
        yield (
            f"`check` of {plan['jobs']:,} jobs, each written out",
            f"{plan['time']:.1f} s",
            f"CPU {plan['cpu']:.1f} s",
        )


def _order(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    ratio = figures["mean_ratio"]
    yield (
        "time to the end over the least possible, skewed durations",
        f"{ratio['longest first']:.3f}",
        f"any order {ratio['any order']:.3f}, split beforehand {ratio['split beforehand']:.3f}",
    )


def _shortcuts(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    titles = {
        "directory_us": "an attempt's output directory, where it stays empty",
        "burst_us": "jobs end on 8 cards at once: until the mean card has its next, in the core",
    }
    for name, title in titles.items():
        found = figures[name]
        yield title, f"{found['as it is']:,.0f} µs", f"the plain way {found['plain']:,.0f} µs"


def _worker(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield from _other("worker")(figures)
    yield "from a worker's item to its next", f"{figures['one_card_gap_ms']:.2f} ms", "one card"
    yield (
        "a worker's empty items a second",
        f"{figures['one_card_items_per_second']:,.0f}",
        "one card",
    )


def _executor(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, ratio in figures["ratio"].items():
        ours, theirs = figures["ms"][name]["gpu"], figures["ms"][name]["processes"]
        told = f"{ours:.3f} ms ({ratio:.2f} ×)"
        yield f"GpuExecutor: {name}", told, f"ProcessPoolExecutor {theirs:.3f} ms"


def _slurm(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if "tasks" not in figures:
        return
    count, each = figures["tasks"], figures["task_seconds"]
    yield (
        f"{count:,} tasks of {each:g} s on a Slurm cluster, {figures['at_once']} at once",
        f"{figures['gpulaunch_seconds']:.0f} s ({figures['over_array_ratio']:.2f} ×),"
        f" {figures['sbatch_calls']} calls of sbatch",
        f"a bare array {figures['array_seconds']:.0f} s",
    )
    yield (
        "a task's own cost on its node",
        f"{figures['node_ms']:.1f} ms, CPU {figures['node_cpu_ms']:.1f} ms",
        "beside a bare batch script",
    )


def _other(title: str) -> Callable[[dict[str, Any]], Iterator[tuple[str, str, str]]]:
    """A section of which only its ratios are shown."""

    def rows(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        ratio = figures.get("ratio")
        found = dict(ratio) if isinstance(ratio, dict) else {"ratio": ratio}
        found |= {key: value for key, value in figures.items() if key.endswith("_ratio")}
        for key, value in found.items():
            if isinstance(value, int | float):
                words = key.removesuffix("_ratio").replace("_", " ")
                yield f"{title}: {words}", f"{value:.2f} ×", ""

    return rows


def _waiting(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    one, many, count = figures["one"], figures["many"], figures["launchers"]
    yield (
        "memory of an `exec` that waits for a card",
        f"{one['private_mb']:.1f} MB",
        f"each of {count}: {many['private_mb']:.1f} MB",
    )
    yield (
        f"CPU of {count} that wait, all together",
        f"{many['cpu_ms_a_minute']:,.0f} ms a minute",
        f"{many['wakeups_a_minute']} wake-ups",
    )


def _packing(figures: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for kind, words in packing.LISTS.items():
        if kind in figures:
            seconds, faster = figures[kind]["seconds"], figures[kind]["times_as_fast"]
            ours = (
                f"{way} {took:.0f} s ({faster[way]:.1f} ×)"
                for way, took in seconds.items()
                if way != packing.ALONE
            )
            yield (
                f"{figures['jobs']} jobs on one {figures['card']}, {words}",
                ", ".join(ours),
                f"{packing.ALONE} {seconds[packing.ALONE]:.0f} s",
            )


SHOWN: dict[str, Callable[[dict[str, Any]], Iterator[tuple[str, str, str]]]] = {
    "overhead": _overhead,
    "cpu": _cpu,
    "scale": _scale,
    "startup": _startup,
    "waiting": _waiting,
    "order": _order,
    "shortcuts": _shortcuts,
    "preload": _other("preload"),
    "worker": _worker,
    "executor": _executor,
    "igfold": _other("IgFold"),
    "slurm": _slurm,
    "packing": _packing,
}


# ── The plot ────────────────────────────────────────────────────────────────────────────────────


def draw(figures: dict[str, Any], file: Path) -> None:
    """Two rows of bars: milliseconds between jobs, and jobs a second."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "gpulaunch", "svg.fonttype": "none"})
    from matplotlib import pyplot

    gaps = {name: one["median"] for name, one in figures["gap_ms"].items()}
    plot, (left, right) = pyplot.subplots(1, 2, figsize=(9, 2.6), layout="constrained")
    _bars(left, gaps, "ms from a job's exit to the next one's start", "{:.2f}")
    _bars(right, figures["jobs_per_second"], "empty jobs a second", "{:,.0f}")
    plot.savefig(file, format="svg", metadata={"Date": None})
    pyplot.close(plot)
    # Matplotlib leaves blanks at the ends of lines.
    file.write_text(re.sub(r"[ \t]+\n", "\n", file.read_text()))


def _bars(axes: Any, values: dict[str, float], title: str, form: str) -> None:
    names = sorted(values, key=lambda name: values[name])
    colors = ["#2563eb" if name == "gpulaunch" else "#9ca3af" for name in names]
    bars = axes.barh(names, [values[name] for name in names], color=colors)
    axes.bar_label(bars, [form.format(values[name]) for name in names], padding=3, fontsize=8)
    axes.set_title(title, fontsize=9)
    axes.margins(x=0.15)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
