"""Sources are looked at in real directories; the clock is the tests' own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.jobfile.globs import Sight, sight_of
from gpulaunch.jobfile.source import Following, ForeachSource
from gpulaunch.run import list_follower, sources
from gpulaunch.run.list_follower import ListFollower
from gpulaunch.run.sources import Counted, SourceLook
from tests.helpers import cannot_be_listed, open_files, wait_until


class Scene:
    """A directory, a clock, and who looks at some patterns there."""

    def __init__(self, base: Path, settle: float = 5) -> None:
        self.base = base
        self.now = 1000.0
        self.look = SourceLook(settle, lambda: self.now, lambda: os.stat(base).st_mtime + 3600)
        self.sources: tuple[ForeachSource, ...] = ()
        self.found = Counted()

    def begin(self, *patterns: str, lists: tuple[str, ...] = ()) -> None:
        globs = [ForeachSource(pattern, str(self.base)) for pattern in patterns]
        files = [ForeachSource(str(self.base / name), str(self.base), True) for name in lists]
        self.sources = (*globs, *files)
        self.after(0)

    def write(self, name: str, text: str = "x") -> None:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def after(self, seconds: float = 2) -> list[str]:
        """What counts by a look so much later, or ['as before'] where nothing is news."""
        self.now += seconds
        before, self.found = self.found, self.look.look(self.sources)
        return ["as before"] if self.found.same_as(before) else self.counted()

    def counted(self) -> list[str]:
        return sorted(os.path.relpath(path, self.base) for path in self.found.still)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_copied_file_counts_once_it_was_still(scene: Scene) -> None:
    scene.begin("*.fa")
    scene.write("a.fa")
    assert scene.after(1) == ["as before"]
    scene.write("a.fa")
    assert scene.after(4.5) == ["as before"]
    assert scene.after(4.5) == ["as before"]  # the second write was seen in the middle
    assert not scene.found.complete
    assert scene.after(0.5) == ["a.fa"]
    assert scene.found.complete


def test_a_write_that_leaves_size_and_time_as_they_were_is_a_change(scene: Scene) -> None:
    scene.begin("*.fa")
    scene.write("a.fa", "abc")
    scene.after(1)
    seen = os.stat(scene.base / "a.fa")
    wait_until(lambda: _rewritten(scene.base / "a.fa", seen))
    assert scene.after(4) == ["as before"]
    assert scene.after(4) == ["as before"]
    assert scene.after(1) == ["a.fa"]


def _rewritten(path: Path, before: os.stat_result) -> bool:
    """Write other bytes, as many, with the old time; true once the kernel's clock went on."""
    path.write_text("xyz")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return os.stat(path).st_ctime_ns > before.st_ctime_ns


def test_where_files_come_by_rename_no_time_counts_them_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, settle=0)
    scene.begin("*.fa")
    scene.write("a.part")
    assert scene.after() == ["as before"]
    os.rename(scene.base / "a.part", scene.base / "a.fa")
    assert scene.after() == ["a.fa"]


def test_a_file_counts_until_it_is_gone_and_is_waited_for_when_it_comes_again(scene: Scene) -> None:
    for name in ("a.fa", "b.fa", "c.fa"):
        scene.write(name)
    scene.begin("*.fa")
    assert scene.counted() == ["a.fa", "b.fa", "c.fa"]
    scene.write("c.fa", "more")
    assert scene.after() == ["as before"]
    os.remove(scene.base / "a.fa")
    os.rename(scene.base / "b.fa", scene.base / "b.done")
    assert scene.after() == ["c.fa"]
    scene.write("a.fa")
    assert scene.after() == ["as before"]
    assert scene.after(5) == ["a.fa", "c.fa"]


def test_what_never_counted_is_gone_without_news(scene: Scene) -> None:
    scene.begin("*.fa")
    scene.write("a.fa")
    assert scene.after() == ["as before"]
    os.remove(scene.base / "a.fa")
    assert scene.after(60) == ["as before"]
    assert scene.found.complete


def test_names_that_the_glob_leaves_out_are_left_out(scene: Scene) -> None:
    scene.begin("*.fa")
    for name in (".a.fa.Xy7", ".a.fa", "a.fa~", "#a.fa#", "a.fa.swp"):
        scene.write(name)
    os.rename(scene.base / ".a.fa", scene.base / ".b.fa")
    assert scene.after() == ["as before"]
    assert scene.after(60) == ["as before"]
    assert scene.found.complete


def test_a_young_file_is_waited_for_at_the_beginning(scene: Scene) -> None:
    for name, age in (("old.fa", 6), ("young.fa", 1), ("future.fa", -100)):
        scene.write(name)
        at = os.stat(scene.base).st_mtime + 3600 - age
        os.utime(scene.base / name, (at, at))
    scene.begin("*.fa")
    assert scene.counted() == ["old.fa"]
    assert scene.after(6) == ["future.fa", "old.fa", "young.fa"]


def test_an_old_time_counts_for_nothing_later(scene: Scene) -> None:
    """A file server's clock may be slow, and a copy may bring its time along."""
    scene.begin("*.fa")
    scene.write("a.fa")
    os.utime(scene.base / "a.fa", (0, 0))
    assert scene.after() == ["as before"]
    assert scene.after(5) == ["a.fa"]


@pytest.mark.parametrize("pattern", ["in/**/*.fa", "in/*/deep/*.fa", "in/new/deep/*.fa"])
def test_directories_that_appear_later_are_looked_at(scene: Scene, pattern: str) -> None:
    scene.begin(pattern)
    scene.write("in/new/deep/a.fa")
    scene.after()
    assert scene.after(5) == ["in/new/deep/a.fa"]
    os.rename(scene.base / "in/new", scene.base / "new")
    assert scene.after() == []


def test_a_directory_that_the_glob_matches_counts_once_it_is_filled(scene: Scene) -> None:
    scene.begin("cases/*/")
    scene.write("cases/a/x/1")
    for _ in range(3):
        scene.write("cases/a/x/1")
        assert scene.after(3) == ["as before"]
    assert scene.after(5) == ["cases/a"]
    scene.write("cases/a/output")  # its own job may write there
    assert scene.after() == ["as before"]


def test_a_list_is_told_of_with_each_change_and_is_whole_once_it_is_still(scene: Scene) -> None:
    scene.begin("*.fa", lists=("ids.txt",))
    scene.write("ids.txt", "a\nb")
    assert scene.after() == []
    assert not scene.found.whole(f"{scene.base}/ids.txt", 3)
    assert scene.after(5) == ["ids.txt"]
    assert scene.found.whole(f"{scene.base}/ids.txt", 3)
    assert not scene.found.whole(f"{scene.base}/ids.txt", 4)  # more was written since
    scene.write("ids.txt", "c")
    assert scene.after() == []
    os.remove(scene.base / "ids.txt")
    assert scene.after() == []


def test_other_sources_are_looked_at_once_the_file_names_them(scene: Scene) -> None:
    scene.write("a.fa")
    scene.write("a.pdb")
    scene.begin("*.fa")
    scene.begin("*.pdb")
    assert scene.counted() == ["a.pdb"]


def test_what_a_link_leads_to_is_looked_at(scene: Scene) -> None:
    scene.write("elsewhere/a")
    scene.begin("*.fa")
    os.symlink(scene.base / "elsewhere/a", scene.base / "a.fa")
    scene.after()
    scene.write("elsewhere/a")
    scene.after(4)
    assert scene.after(4) == ["as before"]
    assert scene.after(1) == ["a.fa"]


def test_what_cannot_be_read_for_now_is_not_gone_and_not_all(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write("in/a.fa")
    scene.begin("in/*.fa")
    assert scene.found.complete
    cannot_be_listed(monkeypatch, "/in/")
    assert scene.after(60) == ["as before"]
    assert scene.counted() == ["in/a.fa"]
    assert not scene.found.complete


def test_a_match_that_a_file_server_has_forgotten_is_not_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write("a.fa")
    scene.write("b.fa")
    scene.begin("*.fa")
    real = os.lstat

    def stale(path: str) -> os.stat_result:
        if path.endswith("a.fa"):
            raise OSError(116, "Stale file handle")
        return real(path)

    monkeypatch.setattr(os, "lstat", stale)
    assert scene.after() == ["as before"]
    assert not scene.found.complete


def test_looks_come_every_two_seconds_sooner_for_a_file_and_later_where_they_are_slow(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.begin("*.fa")
    assert scene.found.next_look == 2
    scene.write("a.fa")
    scene.after()
    assert scene.found.next_look == 2
    scene.after(4)
    assert scene.found.next_look == 1  # then it may count
    for seconds, pause in ((0.5, 10), (3, 15)):
        monkeypatch.setattr(sources, "sight_of", _slow(scene, seconds))
        scene.after()
        assert scene.found.next_look == pause


def _slow(scene: Scene, seconds: float) -> Callable[[str, str], Sight]:
    def slow(pattern: str, base: str) -> Sight:
        scene.now += seconds
        return sight_of(pattern, base)

    return slow


def test_500_files_come_slowly_and_go(scene: Scene) -> None:
    (scene.base / "in").mkdir()
    scene.begin("in/*.fa")
    expected: dict[str, float] = {}
    for number in range(500):
        scene.write(f"in/{number}.fa")
        expected[f"in/{number}.fa"] = scene.now + 5
        if number > 3 and number % 3 == 2:  # the one before is still being copied
            scene.write(f"in/{number - 1}.fa")
            expected[f"in/{number - 1}.fa"] = scene.now + 5
        if number % 7 == 6:
            os.remove(scene.base / f"in/{number - 4}.fa")
            del expected[f"in/{number - 4}.fa"]
        scene.after(0)
        counted = set(scene.counted())
        assert counted == {name for name, at in expected.items() if at <= scene.now}
        scene.now += 1.0
    scene.after(10)
    assert len(scene.counted()) == len(expected) == 429


# ── Who follows ─────────────────────────────────────────────────────────────────────────────────


class Followed:
    """A run's list, a job file that is read as what counts, and who follows that."""

    def __init__(self, base: Path, *patterns: str, settle: float = 0) -> None:
        self.base = base
        self.sources = tuple(ForeachSource(pattern, str(base)) for pattern in patterns)
        self.said: list[str] = []
        self.read: list[tuple[list[str], bool]] = []
        self.loop = Loop()
        self.taken = 0
        filed = SimpleNamespace(
            choices=SimpleNamespace(settle=settle), file="jobs.yaml", read=self._plan
        )
        self.follower = ListFollower(
            filed, self.sources, self, self.loop, lambda change: None, self.said.append
        )

    def _plan(self, following: Following) -> SimpleNamespace:
        assert isinstance(following.counting, Counted)
        names = sorted(os.path.relpath(path, self.base) for path in following.counting.still)
        self.read.append((names, following.more))
        return SimpleNamespace(sources=self.sources)

    def reloaded(self, plan: object) -> SimpleNamespace:
        return SimpleNamespace(jobs=(), gone=())

    def until(self, names: list[str], more: bool = True) -> None:
        wait_until(lambda: self.loop.turn(block=False) or self.read[-1:] == [(names, more)])

    def close(self) -> None:
        self.follower.close()
        self.loop.close()


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and tries come every few milliseconds."""
    monkeypatch.setattr(list_follower, "TRY_AGAIN", 0.01)
    monkeypatch.setattr(sources, "LOOK_EVERY", (0.01, 15.0))


@pytest.mark.usefixtures("quickly")
def test_the_file_is_read_again_when_what_counts_has_changed(tmp_path: Path) -> None:
    before = open_files()
    (tmp_path / "in").mkdir()
    followed = Followed(tmp_path, "in/*.fa", "b")
    try:
        followed.until([])
        (tmp_path / "in/a.fa").write_text("x")
        followed.until(["in/a.fa"])
        (tmp_path / "b").write_text("x")
        followed.until(["b", "in/a.fa"])
        assert followed.said == []
    finally:
        followed.close()
    wait_until(lambda: not open_files() - before)


@pytest.mark.usefixtures("quickly")
def test_what_counts_is_all_once_it_was_asked_for_and_nothing_is_half_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "b.fa").write_text("x")
    os.utime(tmp_path / "b.fa", (0, 0))
    followed = Followed(tmp_path, "*.fa", settle=600)
    try:
        followed.until(["b.fa"])
        (tmp_path / "a.fa").write_text("x")
        followed.follower.finish()
        for _ in range(3):
            followed.loop.turn()
        assert followed.follower.busy
        (tmp_path / "a.fa").unlink()
        followed.until(["b.fa"], more=False)
        wait_until(lambda: followed.loop.turn(block=False) or not followed.follower.busy)
    finally:
        followed.close()


@pytest.mark.usefixtures("quickly")
def test_what_came_before_the_finish_is_seen_by_a_look_that_begins_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(tmp_path, "*.fa")
    real, began = SourceLook.look, []

    def slow(look: SourceLook, sources: tuple[ForeachSource, ...]) -> Counted:
        found = real(look, sources)
        began.append(found)
        if len(began) == 1:
            wait_until((tmp_path / "a.fa").exists)
        return found

    monkeypatch.setattr(SourceLook, "look", slow)
    try:
        wait_until(lambda: followed.loop.turn(block=False) or began)
        (tmp_path / "a.fa").write_text("x")
        followed.follower.finish()
        followed.until(["a.fa"], more=False)
        assert ([], False) not in followed.read
    finally:
        followed.close()


@pytest.mark.usefixtures("quickly")
def test_a_job_file_that_changes_at_the_finish_is_looked_at_once_more(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("x")
    followed = Followed(tmp_path, "*.fa")
    try:
        followed.until([])
        followed.sources = (*followed.sources, ForeachSource("b", str(tmp_path)))
        followed.follower.finish()
        followed.until([], more=False)
        assert followed.follower.busy
        followed.until(["b"], more=False)
        wait_until(lambda: followed.loop.turn(block=False) or not followed.follower.busy)
    finally:
        followed.close()


@pytest.mark.usefixtures("quickly")
def test_a_look_that_fails_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(tmp_path, "*.fa")
    tries: list[str] = []

    def broken(pattern: str, base: str) -> object:
        tries.append(pattern)
        raise RuntimeError("broken on purpose")

    try:
        with monkeypatch.context() as patched:
            patched.setattr(sources, "sight_of", broken)
            wait_until(lambda: followed.loop.turn(block=False) or len(tries) > 2)
        assert len(followed.said) == 1
        assert "broken on purpose" in followed.said[0]
        (tmp_path / "a.fa").write_text("x")
        followed.until(["a.fa"])
    finally:
        followed.close()


@pytest.mark.usefixtures("quickly")
def test_where_no_descriptor_is_left_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipe2(flags: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    followed = Followed(tmp_path, "*.fa")
    try:
        followed.until([])
        with monkeypatch.context() as patched:
            patched.setattr(os, "pipe2", pipe2)
            wait_until(lambda: followed.loop.turn(block=False) or followed.said)
        assert "Too many open files" in followed.said[0]
        (tmp_path / "a.fa").write_text("x")
        followed.until(["a.fa"])
    finally:
        followed.close()
