from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Cancel, GoOn, Pause, Retry
from gpulaunch.core.model import AttemptId, End, Exited, Failure, Interrupted
from gpulaunch.observe.metrics.model import AttemptUse, CardSample
from tests.views.history import History
from tests.views.top.pilot import FakeLink, FakeSamples, Seat, watch


def night() -> History:
    """Three cards; three finished, one failed, three running, four waiting."""
    run = History(3).open().jobs(*(f"fold-{n}" for n in range(10))).jobs("plan", group=1, cards=0)
    for name in ("fold-0", "fold-1", "fold-2"):
        run.start(name, 0).pass_(60).succeed(name)
    run.start("fold-3", 0).start("fold-4", 1).start("plan").pass_(5)
    run.add(
        f.AttemptEnded(
            AttemptId("fold-4", 1),
            End(
                Exited(1),
                Failure(
                    "gpu_oom",
                    "torch.OutOfMemoryError: tried to allocate 20.00 GiB",
                    (Quoted("Ask for a card with more memory free (gpu_memory: 40GB)."),),
                ),
            ),
            charged=True,
        )
    )
    run.add(f.JobSettled("fold-4", "failed", Quoted("exited with status 1"))).start("fold-5", 1)
    run.add(f.GpuChanged("GPU-2", "occupied", Quoted("python (pid 7) of ann, 40 GiB")))
    return run.pass_(20)


def test_one_look_shows_cards_jobs_reasons_and_failures() -> None:
    link = FakeLink(night())
    link.why = {"fold-6": "waits for a card: GPU 0 is busy", "fold-7": "waits behind fold-6"}

    async def act(seat: Seat) -> None:
        assert seat.lines == [
            " nanobodies  running  3:25  about 5 min to go  gpulaunch-runs/nanobodies-202611…",
            " ██████████▏                   4 of 11 · 3 done · 1 failed · 3 running · 4 left",
            "━Cards 3━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━",
            "GPU 0      0:25  fold-3  about 1 min to go",
            "GPU 1      0:20  fold-5  about 1 min to go",
            "GPU 2            in use: python (pid 7) of ann, 40 GiB",
            "CPU        0:25  plan",
            "─Waiting 4──────────────────────────────────────────────────────────────────────",
            "fold-6  waits for a card: GPU 0 is busy",
            "fold-7  waits behind fold-6",
            "fold-8",
            "fold-9",
            "─Failed 1───────────────────────────────────────────────────────────────────────",
            "✗ fold-4  gpu_oom  out of GPU memory · GPU 1 · after 0:05 · 0:20 ago",
            "  torch.OutOfMemoryError: tried to allocate 20.00 GiB",
            "  Ask for a card with more memory free (gpu_memory: 40GB).",
            *[""] * 7,
            " ? help  q quit  Enter log  / filter  e all ended  c cancel  r retry  p pause  …",
        ]

    watch(link, act)


def test_the_screen_follows_the_run() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        link.run.succeed("fold-3").start("fold-6", 0).pass_(7)
        lines = await seat.look()
        assert lines[1].strip().endswith("5 of 11 · 4 done · 1 failed · 3 running · 3 left")
        assert lines[3] == "GPU 0      0:07  fold-6  about 1 min to go"
        assert lines[7].startswith("─Waiting 3─")

    watch(link, act)


# ── What is measured ────────────────────────────────────────────────────────────────────────────


def measured(run: History) -> FakeSamples:
    samples, now = FakeSamples(), run.now.utc
    for step in range(60):
        at = now - 600 + 10 * step + 9
        samples.all.append(CardSample("GPU-0", at, step, (step + 10) << 30, 310.4, 61))
        samples.all.append(CardSample("GPU-1", at, 97, 8 << 30, 650.0, 88, ("thermal",)))
    return samples


def test_cards_have_bars_and_curves_where_something_is_measured() -> None:
    link = FakeLink(night())
    link.measured = measured(link.run)

    async def act(seat: Seat) -> None:
        assert seat.lines[3:9] == [
            "GPU 0  █████▉      59 %  ▁▁▁▁▂▂▂▂▃▃▃▃▃▄▄▄▄▅▅▅"
            "  ████████▋      69 GiB of 80 GiB  ▂▂▂▃▃▃▃▄▄▄▅▅▅▆▆▆▆▇▇▇  61 °C 310 W",
            "           0:25  fold-3  about 1 min to go",
            "GPU 1  █████████▊  97 %  ████████████████████"
            "  █               8 GiB of 80 GiB  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  88 °C 650 W slowed: thermal",
            "           0:20  fold-5  about 1 min to go",
            "GPU 2            in use: python (pid 7) of ann, 40 GiB",
            "CPU        0:25  plan",
        ]

    watch(link, act, columns=130)


def test_narrow_screens_keep_the_figures_and_drop_the_curves() -> None:
    link = FakeLink(night())
    link.measured = measured(link.run)

    async def act(seat: Seat) -> None:
        assert (
            seat.lines[3] == "GPU 0  █████▉      59 %  ████████▋      69 GiB of 80 GiB  61 °C 310 W"
        )
        lines = await seat.resize(44, 24)
        assert lines[3] == "GPU 0    59 %       69 GiB of 80 GiB"

    watch(link, act)


def test_a_card_without_samples_of_late_says_so() -> None:
    link = FakeLink(night())
    link.measured = measured(link.run)
    link.run.pass_(60)

    async def act(seat: Seat) -> None:
        assert seat.lines[3] == "GPU 0  not measured for 1:01"

    watch(link, act)


def test_pretend_cards_show_what_runs_there_and_no_figures() -> None:
    run = History(2, simulated=True).open().jobs("a", "b").start("a", 0).pass_(3)
    link = FakeLink(run)
    link.measured = FakeSamples()
    link.measured.all.append(CardSample("SIM-0", run.now.utc, 0, 0))

    async def act(seat: Seat) -> None:
        assert "simulated cards" in seat.lines[0]
        assert seat.lines[2].startswith("━Simulated cards 2━")
        assert seat.lines[3:5] == ["GPU 0      0:03  a", "GPU 1            free"]
        assert "%" not in seat.text

    watch(link, act)


# ── Moving, and the log ─────────────────────────────────────────────────────────────────────────


def test_a_jobs_log_opens_at_its_end_and_is_followed(tmp_path: Path) -> None:
    link = FakeLink(night(), tmp_path)
    log = tmp_path / "fold-3.1.log"
    log.write_bytes(b"".join(b"step %d\n" % n for n in range(50)) + b" 10%|#   |\r 20%|##  |")

    async def act(seat: Seat) -> None:
        lines = await seat.press("enter")
        assert lines[0] == " fold-3  running  attempt 1 of 1 · GPU 0 · 0:25 · about 1 min to go"
        assert lines[1].startswith("━Log of attempt 1, followed━")
        assert [line.rstrip(" ▁▂▃▄▅▆▇█▉▊▋▌▍▎▏") for line in lines[-4:-1]] == [
            "step 48", "step 49", " 20%|##  |"]  # fmt: skip
        with log.open("ab") as file:
            file.write(b"\r100%|####|\nsaved \x1b[32mit\x1b[0m\n")
        assert (await seat.look())[-3:-1] == ["100%|####|", "saved it"]
        await seat.press("pageup", "pageup")
        with log.open("ab") as file:
            file.write(b"more\n")
        lines = await seat.look()
        assert "followed" not in lines[1]
        assert "more" not in lines
        assert (await seat.press("f"))[-2] == "more"
        assert (await seat.press("escape"))[0].startswith(" nanobodies")

    watch(link, act)


def test_a_failed_jobs_log_begins_with_why_and_what_to_do(tmp_path: Path) -> None:
    link = FakeLink(night(), tmp_path)
    link.measured = FakeSamples()
    use = AttemptUse(AttemptId("fold-4", 1), peak_gpu_memory=70 << 30, mean_gpu_utilization=83.2)
    link.measured.used[use.attempt] = use
    link.run.add(f.JobRequeued("fold-4", Quoted("retried by a person"))).start("fold-4", 2)
    (tmp_path / "fold-4.1.log").write_text("loading\n")

    async def act(seat: Seat) -> None:
        lines = await seat.press("/", *"fold-4", "enter", "enter")
        assert lines[0].startswith(" fold-4  running  attempt 2 of 2 · GPU 2 · 0:00")
        assert lines[2] == "there is no log yet"
        lines = await seat.press("left")
        assert lines[:5] == [
            " fold-4  running  attempt 1 of 2 · GPU 1 · 0:05 · out of GPU memory (exited with",
            "status 1)",
            " GPU memory at most 70 GiB, 83 % utilised",
            " torch.OutOfMemoryError: tried to allocate 20.00 GiB",
            " Ask for a card with more memory free (gpu_memory: 40GB).",
        ]
        assert "loading" in lines

    watch(link, act)


def test_the_cursor_stays_with_its_job_when_the_list_changes() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        await seat.press("tab", "down", "down")
        assert seat.app._lists["waiting"].job == "fold-8"
        link.run.succeed("fold-3").start("fold-6", 0)
        await seat.look()
        assert seat.app._lists["waiting"].job == "fold-8"
        await seat.press("end")
        assert seat.app._lists["waiting"].job == "fold-9"
        await seat.press("tab", "shift+tab", "home")
        assert seat.app._lists["waiting"].job == "fold-7"

    watch(link, act)


def test_all_that_ended_can_be_listed_newest_first() -> None:
    async def act(seat: Seat) -> None:
        lines = await seat.press("e")
        at = next(n for n, line in enumerate(lines) if line.startswith("─Ended 4"))
        assert lines[at + 1 : at + 5] == [
            "✗ fold-4     0:05  GPU 1, exited with status 1",
            "✓ fold-2     1:00  GPU 0",
            "✓ fold-1     1:00  GPU 0",
            "✓ fold-0     1:00  GPU 0",
        ]
        assert "─Failed 1" in "\n".join(await seat.press("e"))

    watch(FakeLink(night()), act)


def test_a_failure_leaves_the_list_once_the_job_has_succeeded() -> None:
    run = History(1).open().jobs("a", "b").start("a", 0).pass_(1)
    run.end("a", Exited(1), "exit").add(f.JobDelayed("a", Quoted("attempt 1 failed"), 30.0))
    link = FakeLink(run)

    async def act(seat: Seat) -> None:
        assert "✗ a  exit  GPU 0 · after 0:01 · 0:00 ago · waits to run again" in seat.lines
        run.start("a", 0)
        assert "· runs again" in "\n".join(await seat.look())
        run.pass_(1).succeed("a")
        await seat.look()
        assert "✗" not in seat.text

    watch(link, act)


# ── The filter ──────────────────────────────────────────────────────────────────────────────────


def test_typing_narrows_every_list_and_escape_brings_all_back() -> None:
    async def act(seat: Seat) -> None:
        lines = await seat.press("slash", *"FOLD-8")
        assert "─Waiting 1 of 4" in seat.text
        assert "GPU 0            1 job not shown" in lines
        assert "gpu_oom" not in seat.text
        lines = await seat.press("enter")
        assert lines[-1].startswith(" filter: FOLD-8 (Esc: all)  ? help")
        assert seat.app._lists["waiting"].has_focus
        lines = await seat.press("escape")
        assert "─Waiting 4" in seat.text or "━Waiting 4" in seat.text
        assert lines[-1].startswith(" ? help")

    watch(FakeLink(night()), act)


def test_a_filter_finds_failure_classes_and_all_its_words_count() -> None:
    async def act(seat: Seat) -> None:
        await seat.press("slash", *"oom fold")
        assert "Failed 1─" in seat.text
        assert "Waiting 0 of 4" in seat.text
        await seat.press("space", *"no")
        assert "gpu_oom" not in seat.text

    watch(FakeLink(night()), act)


def test_keys_typed_into_the_filter_do_nothing_else() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        await seat.press("slash", *"qcrpyn?e[", "left", "tab")
        assert seat.app.is_running
        assert len(seat.app.screen_stack) == 1
        assert not link.asked
        assert seat.app.board is seat.app._present

    watch(link, act)


def test_a_list_that_the_filter_empties_does_not_take_the_keys_away() -> None:
    async def act(seat: Seat) -> None:
        await seat.press("shift+tab", "slash", *"zq")
        assert seat.app.is_running
        assert (await seat.press("backspace", "backspace", "enter"))[-1].startswith(" ? help")

    watch(FakeLink(night()), act)


# ── Asking something of the run ─────────────────────────────────────────────────────────────────


def test_a_job_is_cancelled_once_that_is_confirmed() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        await seat.press("c")
        assert "Cancel fold-3?" in seat.text
        assert "It is running, and is stopped." in seat.text
        await seat.press("n")
        await seat.press("c", "enter")
        await seat.press("c", "escape")
        assert not link.asked
        lines = await seat.press("c", "y")
        assert link.asked == [Cancel(("fold-3",))]
        assert lines[-1] == " cancelled fold-3"

    watch(link, act)


def test_a_failed_job_is_retried_and_one_that_did_not_fail_is_not() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        assert (await seat.press("r"))[-1] == " fold-3 has not failed (running)"
        await seat.press("shift+tab", "r")
        assert "Run fold-4 again?" in seat.text
        lines = await seat.press("y")
        assert link.asked == [Retry(("fold-4",), as_filed=True)]
        assert lines[-1] == " requeued fold-4"
        assert (await seat.press("c"))[-1] == " fold-4 is over already (failed)"

    watch(link, act)


def test_a_command_is_typed_and_added_to_the_list() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        await seat.press("a")
        assert "A shell command, on one card of its own:" in seat.text
        await seat.type("qan ?")
        lines = await seat.press("enter")
        assert link.added == ["qan ?"]
        assert lines[-1] == " added added-1"
        await seat.press("a", *"nothing", "escape")
        await seat.press("a", "enter")
        assert len(link.added) == 1
        link.refusal = "there is no program qan"
        await seat.press("a", *"qan", "enter")
        assert seat.lines[-1] == " there is no program qan"

    watch(link, act)


def test_admission_is_paused_and_goes_on() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        await seat.press("p")
        assert "Start no new jobs?" in seat.text
        await seat.press("y")
        assert link.asked == [Pause(Quoted("asked for in gpulaunch top"))]
        link.run.add(f.AdmissionPaused(Quoted("asked for in gpulaunch top")))
        lines = await seat.look()
        assert lines[2] == " ! paused, no new starts: asked for in gpulaunch top"
        await seat.press("p")
        assert "Start jobs again?" in seat.text
        await seat.press("y")
        assert link.asked[1:] == [GoOn(), Pause(None)]

    watch(link, act)


def test_what_the_run_refuses_is_said() -> None:
    link = FakeLink(night())
    link.refusal = "run a1 belongs to ann: nobody else but root may ask it"

    async def act(seat: Seat) -> None:
        assert (await seat.press("c", "y"))[-1] == f" {link.refusal}"
        assert not link.asked

    watch(link, act)


def test_q_asks_nothing_of_the_run() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        await seat.pilot.press("q")

    app = watch(link, act)
    assert not link.asked
    assert app.return_code == 0


# ── Runs that are over, and their past ──────────────────────────────────────────────────────────


def test_a_killed_run_lasted_until_it_was_last_seen_alive() -> None:
    run = History(1).open().jobs("a").start("a", 0).pass_(5)
    link = FakeLink(run)
    link.alive, link.measured = False, FakeSamples()
    link.measured.seen = run.now.utc + 60

    async def act(seat: Seat) -> None:
        assert (await seat.look())[0].startswith(" nanobodies  interrupted  1:05  ")

    watch(link, act)


def test_a_run_whose_supervisor_was_killed_is_interrupted_and_says_what_goes_on() -> None:
    link = FakeLink(night())
    link.alive = False

    async def act(seat: Seat) -> None:
        assert seat.lines[0].startswith(" nanobodies  interrupted  3:05  gpulaunch-runs")
        assert "3 cut off" in seat.lines[1]
        assert seat.lines[2].startswith(" ! its supervisor is gone without having ended the run: ")
        row = "GPU 0      0:05  fold-3  was running when the run was cut off"
        assert row in seat.lines
        assert "not started: the run was interrupted" in seat.text
        said = (await seat.press("c"))[-1]
        assert said.startswith(" the run was interrupted: gpulaunch resume goes on with what has")
        assert len(seat.app.screen_stack) == 1

    watch(link, act)


def test_a_supervisor_killed_meanwhile_shows_at_the_next_look() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        assert "running" in seat.lines[0]
        link.alive = False
        assert "interrupted" in (await seat.look())[0]
        link.alive = True
        link.run.open()
        assert "running" in (await seat.look())[0]

    watch(link, act)


def finished() -> History:
    run = night()
    for name in ("fold-3", "fold-5", "plan"):
        run.succeed(name)
    for name in ("fold-6", "fold-7", "fold-8", "fold-9"):
        run.start(name, 0).pass_(30).succeed(name)
    return run.add(f.RunClosed("failed", Quoted("fold-4 did not succeed"), 1))


def test_a_finished_run_shows_how_it_ended() -> None:
    async def act(seat: Seat) -> None:
        assert seat.lines[:3] == [
            " nanobodies  failed  5:25  gpulaunch-runs/nanobodies-20261120-074215",
            " ████████████████████████████████████████  11 of 11 · 10 done · 1 failed · 0 left",
            " ! fold-4 did not succeed",
        ]
        assert (
            "✗ fold-4  gpu_oom  out of GPU memory · GPU 1 · after 0:05 · 2026-11-20 07:45:20"
            in (seat.lines)
        )
        assert "GPU 0            free" in seat.lines

    watch(FakeLink(finished()), act, columns=84)


def test_its_past_can_be_walked_through_back_and_on() -> None:
    async def act(seat: Seat) -> None:
        assert (await seat.press("right"))[-1] == " this is now"
        lines = await seat.press("left")
        assert lines[2] == (
            " ◀ 2026-11-20 07:47:10, 4:55 into the run, moment 9 of 10: ← → [ ] move, n is now"
        )
        assert lines[4].startswith("GPU 0      0:00  fold-9")
        lines = await seat.press("left_square_bracket", *["left"] * 8)
        assert "moment 1 of 10" in lines[2]
        assert "0 of 11 · 1 running · 10 left" in lines[1]
        lines = await seat.press("right", "right")
        assert "moment 3 of 10" in lines[2]
        assert "2 of 11 · 2 done · 1 running" in lines[1]
        assert (await seat.press("c"))[-1] == " this is the past: n goes back to now"
        assert "11 of 11" in (await seat.press("n"))[1]

    watch(FakeLink(finished()), act, columns=100)


def test_the_past_is_left_by_walking_on_to_its_end() -> None:
    async def act(seat: Seat) -> None:
        assert "◀" in "\n".join(await seat.press("left"))
        assert "◀" not in "\n".join(await seat.press("right"))
        assert "moment" in "\n".join(await seat.press("left_square_bracket"))
        await seat.press("right_square_bracket", "right_square_bracket", "right_square_bracket")
        assert seat.app.board is seat.app._present

    watch(FakeLink(finished()), act)


def test_a_crashed_run_is_walked_through_as_well() -> None:
    link = FakeLink(night())
    link.alive = False

    async def act(seat: Seat) -> None:
        lines = await seat.press("left")
        assert lines[0].startswith(" nanobodies  running  3:00")
        assert any(line.startswith("GPU 1      0:00  fold-4") for line in lines)
        assert "interrupted" in (await seat.press("n"))[0]

    watch(link, act)


# ── What it survives ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [(1, 1), (200, 2), (10, 5), (30, 12)])
def test_any_size_of_terminal_shows_what_fits(size: tuple[int, int]) -> None:
    link = FakeLink(night())
    link.measured = measured(link.run)

    async def act(seat: Seat) -> None:
        await seat.resize(*size)
        await seat.press("tab", "enter", "escape", "question_mark", "escape", "left", "n")
        await seat.resize(80, 24)
        assert seat.lines[0].startswith(" nanobodies  running")
        await seat.resize(*size)
        assert seat.app.is_running

    watch(link, act)


def test_a_low_terminal_gives_its_rows_to_one_list() -> None:
    async def act(seat: Seat) -> None:
        for title in ("Cards 3", "Waiting 4", "Failed 1"):
            titles = [line for line in seat.lines if line.startswith(("─", "━"))]
            assert titles == ["━" + title.ljust(39, "━")]
            await seat.press("tab")

    watch(FakeLink(night()), act, columns=40, rows=9)


def test_names_are_made_visible_and_wide_ones_keep_the_columns() -> None:
    names = ("名前-\x1b[31mrot\r", "b\u202ec", "[bold]x[/bold]", "e" * 300)
    run = History(1).open("n\x1b]0;x\x07").jobs(*names, "run").start("run", 0)
    link = FakeLink(run)
    link.why = dict.fromkeys(names, "waits\nfor \x07 a card")

    async def act(seat: Seat) -> None:
        assert seat.lines[0].startswith(r" n\x1b]0;x\x07  running")
        assert seat.lines[5:9] == [
            r"名前-\x1b[31mrot\r" + " " * 16 + r"waits\nfor \x07 a card",
            r"b\u202ec" + " " * 26 + r"waits\nfor \x07 a card",
            r"[bold]x[/bold]" + " " * 20 + r"waits\nfor \x07 a card",
            "e" * 31 + "…" + "  " + r"waits\nfor \x07 a card",
        ]
        await seat.press("tab", "enter", "escape", "c")
        assert r"Cancel 名前-\x1b[31mrot\r?" in seat.text

    watch(link, act)


def test_a_name_that_is_no_file_name_has_no_log() -> None:
    class Strict(FakeLink):
        def log(self, attempt: AttemptId) -> Path:
            raise ValueError(f"a job's name must be a file name, found {attempt.job!r}")

    run = History(1).open().jobs("../a").start("../a", 0)

    async def act(seat: Seat) -> None:
        assert "found '../a'" in (await seat.press("enter"))[2]
        await seat.look()

    watch(Strict(run), act)


def test_without_colours_the_screen_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    link = FakeLink(night())
    link.measured = measured(link.run)

    async def act(seat: Seat) -> None:
        strips = seat.app.screen._compositor.render_strips()
        styles = [segment.style for strip in strips for segment in strip if segment.style]
        assert styles
        assert all(style.color is None or style.color.is_default for style in styles), [
            style for style in styles if style.color
        ]
        assert seat.lines[2].startswith("━Cards 3")

    watch(link, act)


def test_a_warning_is_seen_on_a_low_terminal_too() -> None:
    link = FakeLink(night())
    link.alive = False

    async def act(seat: Seat) -> None:
        assert seat.lines[1].startswith(" ! its supervisor is gone")

    watch(link, act, rows=10)


def test_a_look_while_the_screen_is_taken_down_is_no_error() -> None:
    async def act(seat: Seat) -> None:
        await seat.app.screen.remove_children()
        await seat.look()

    watch(FakeLink(night()), act)


def test_a_run_directory_that_vanishes_is_said_and_the_last_of_it_stays() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        link.lost = True
        lines = await seat.look()
        assert lines[2] == " ! the run's directory is gone; this is the last of it"
        assert "fold-3" in seat.text

    watch(link, act)


def test_a_journal_that_is_damaged_later_keeps_what_stood_before() -> None:
    link = FakeLink(night())

    async def act(seat: Seat) -> None:
        link.damage = GpulaunchError("events.jsonl: line 9 (byte 7) is damaged")
        lines = await seat.look()
        assert lines[2] == " ! events.jsonl: line 9 (byte 7) is damaged"
        assert "fold-3" in seat.text

    watch(link, act)


def test_a_journal_that_is_damaged_from_the_start_shows_nothing() -> None:
    link = FakeLink(History(1))
    link.damage = GpulaunchError("events.jsonl: line 1 (byte 0) is damaged")

    async def act(seat: Seat) -> None: ...

    assert watch(link, act).refused == "events.jsonl: line 1 (byte 0) is damaged"


def test_the_times_of_another_machine_or_boot_do_not_matter() -> None:
    run = night()
    link = FakeLink(run)
    link.boot = "another"

    async def act(seat: Seat) -> None:
        assert "GPU 0      0:25  fold-3" in seat.text

    watch(link, act)


def test_interrupted_attempts_of_an_earlier_supervisor_are_no_longer_shown() -> None:
    run = night().open()
    run.end("fold-3", Interrupted(Quoted("its supervisor was gone")), None)
    run.add(f.JobDelayed("fold-3", Quoted("interrupted")))

    async def act(seat: Seat) -> None:
        assert "fold-3  interrupted" in seat.lines
        names = [line.split()[0] for line in seat.lines if line.startswith("fold-")]
        assert names == ["fold-3", "fold-6", "fold-7", "fold-8", "fold-9"]

    watch(FakeLink(run), act)


def test_a_hundred_thousand_jobs_are_as_many_lines_as_fit() -> None:
    run = History(2).open().jobs(*(f"j{n:06}" for n in range(100_000))).start("j000000", 0)

    async def act(seat: Seat) -> None:
        assert "─Waiting 99,999─" in seat.text
        assert len(seat.app.screen.query("*")) < 20
        lines = await seat.press("tab", "end")
        assert "j099999" in [line.split()[0] for line in lines if line]
        seat.app._narrow("99998")
        await seat.settle()
        assert "Waiting 1 of 99,999" in seat.text

    watch(FakeLink(run), act)
