"""Sources are watched in real directories; the clock is the tests' own."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch import inotify
from gpulaunch.app import source_look
from gpulaunch.app.following import SourceWatch
from gpulaunch.app.source_look import SourceLook
from gpulaunch.jobfile.sources import ForeachSource
from tests.helpers import cannot_be_listed, descriptors_left, open_files, wait_until


class Scene:
    """A directory, a clock, and who looks at one pattern there."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.now = 1000.0
        self.look = SourceLook(5, lambda: self.now, lambda: os.stat(base).st_mtime + 3600)

    def begin(self, *patterns: str, lists: tuple[str, ...] = ()) -> None:
        globs = [ForeachSource(pattern, str(self.base)) for pattern in patterns]
        files = [ForeachSource(str(self.base / name), str(self.base), True) for name in lists]
        self.look.follow((*globs, *files))
        self.look.counted()

    def write(self, name: str, text: str = "x") -> None:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def after(self, seconds: float = 1.2) -> list[str]:
        """What counts so much later, or ['as before'] where nothing is told."""
        self.now += seconds
        if not self.look.turn(self.look.changes()):
            return ["as before"]
        return self.counted()

    def counted(self) -> list[str]:
        return sorted(os.path.relpath(path, self.base) for path in self.look.counted())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.look.close()


def test_a_copied_file_counts_once_it_was_still(scene: Scene) -> None:
    scene.begin("*.fa")
    scene.write("a.fa")
    assert scene.after(1) == ["as before"]
    scene.write("a.fa")
    assert scene.after(4.5) == ["as before"]
    assert scene.after(4.5) == ["as before"]  # the second write was seen in the middle
    assert scene.after(1) == ["a.fa"]


def test_a_renamed_file_counts_at_once(scene: Scene) -> None:
    scene.begin("*.fa")
    scene.write("a.part")
    os.rename(scene.base / "a.part", scene.base / "a.fa")
    os.chmod(scene.base / "a.fa", 0o600)
    scene.look.turn(scene.look.changes())
    assert scene.after() == ["a.fa"]


def test_a_file_that_is_written_to_after_its_rename_is_waited_for(scene: Scene) -> None:
    scene.begin("*.fa")
    scene.write("a.part")
    os.rename(scene.base / "a.part", scene.base / "a.fa")
    scene.write("a.fa")
    scene.look.turn(scene.look.changes())
    assert scene.after(4) == ["as before"]
    assert scene.after(2) == ["a.fa"]


def test_a_deleted_file_and_one_renamed_away_are_gone(scene: Scene) -> None:
    for name in ("a.fa", "b.fa", "c.fa"):
        scene.write(name)
    scene.begin("*.fa")
    assert scene.counted() == ["a.fa", "b.fa", "c.fa"]
    os.remove(scene.base / "a.fa")
    os.rename(scene.base / "b.fa", scene.base / "b.done")
    scene.look.turn(scene.look.changes())
    assert scene.after() == ["c.fa"]


def test_names_that_the_glob_leaves_out_are_left_out(scene: Scene) -> None:
    scene.begin("*.fa")
    for name in (".a.fa.Xy7", ".a.fa", "a.fa~", "#a.fa#", "a.fa.swp"):
        scene.write(name)
    os.rename(scene.base / ".a.fa", scene.base / ".b.fa")
    assert scene.after() == ["as before"]
    assert scene.after(60) == ["as before"]
    assert scene.look.waiting == 0


def test_a_young_file_is_waited_for_at_the_beginning(scene: Scene) -> None:
    for name, age in (("old.fa", 6), ("young.fa", 1), ("future.fa", -100)):
        scene.write(name)
        at = os.stat(scene.base).st_mtime + 3600 - age
        os.utime(scene.base / name, (at, at))
    scene.begin("*.fa")
    assert scene.counted() == ["old.fa"]
    assert scene.after(6) == ["future.fa", "old.fa", "young.fa"]


@pytest.mark.parametrize("pattern", ["in/**/*.fa", "in/*/deep/*.fa", "in/new/deep/*.fa"])
def test_directories_that_appear_later_are_watched(scene: Scene, pattern: str) -> None:
    scene.begin(pattern)
    scene.write("in/new/deep/a.fa")
    scene.look.turn(scene.look.changes())
    assert scene.look.waiting == 1
    scene.write("b.part")
    os.rename(scene.base / "b.part", scene.base / "in/new/deep/b.fa")
    scene.look.turn(scene.look.changes())
    assert scene.after(1.2) == ["in/new/deep/b.fa"]
    scene.after(5)
    assert scene.counted() == ["in/new/deep/a.fa", "in/new/deep/b.fa"]


def test_a_directory_that_appears_between_the_look_and_the_watch_is_found(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = source_look.sight_of, []

    def late(pattern: str, base: str) -> object:
        found = real(pattern, base)
        if not looks:
            scene.write("in/late/a.fa")
        looks.append(pattern)
        return found

    (scene.base / "in").mkdir()
    monkeypatch.setattr(source_look, "sight_of", late)
    scene.begin("in/**/*.fa")
    assert scene.counted() == ["in/late/a.fa"]


def test_a_directory_that_is_renamed_in_counts_with_all_it_holds(scene: Scene) -> None:
    scene.begin("in/**/*.fa")
    scene.write("staged/one/a.fa")
    scene.write("in/b.txt")
    scene.look.turn(scene.look.changes())
    os.rename(scene.base / "staged", scene.base / "in/staged")
    scene.look.turn(scene.look.changes())
    assert scene.after() == ["in/staged/one/a.fa"]
    os.rename(scene.base / "in/staged", scene.base / "staged")
    scene.look.turn(scene.look.changes())
    assert scene.after() == []
    scene.write("staged/one/c.fa")
    assert scene.after() == ["as before"]
    assert scene.look.waiting == 0


def test_a_directory_that_the_glob_matches_counts_once_it_is_filled(scene: Scene) -> None:
    scene.begin("cases/*/")
    scene.write("cases/a/x/1")
    scene.look.turn(scene.look.changes())
    for _ in range(3):
        scene.write("cases/a/x/1")
        assert scene.after(3) == ["as before"]
    scene.after(6)
    assert scene.counted() == ["cases/a"]
    scene.write("cases/a/output")  # its own job may write there
    assert scene.after() == ["as before"]


def test_a_list_is_told_of_with_each_change_and_is_whole_once_it_is_still(scene: Scene) -> None:
    scene.begin("*.fa", lists=("ids.txt",))
    scene.write("ids.txt", "a\nb")
    scene.look.turn(scene.look.changes())
    assert scene.after() == []
    assert not scene.look.counted().whole(f"{scene.base}/ids.txt", 3)
    assert scene.after(5) == ["ids.txt"]
    counted = scene.look.counted()
    assert counted.whole(f"{scene.base}/ids.txt", 3)
    assert not counted.whole(f"{scene.base}/ids.txt", 4)  # more was written since
    os.remove(scene.base / "ids.txt")
    scene.look.turn(scene.look.changes())
    assert scene.after() == []


def test_when_changes_were_too_many_to_tell_everything_is_looked_at(scene: Scene) -> None:
    scene.begin("*.fa")
    scene.write("a.fa")
    for _ in scene.look.changes():
        pass  # lost
    scene.look.turn([inotify.Change(-1, inotify.OVERFLOW, "")])
    scene.after(6)
    assert scene.counted() == ["a.fa"]


def test_other_sources_are_followed_once_the_file_names_them(scene: Scene) -> None:
    scene.write("a.fa")
    scene.write("a.pdb")
    scene.begin("*.fa")
    scene.look.follow((ForeachSource("*.pdb", str(scene.base)),))
    assert scene.counted() == ["a.pdb"]


def _looks_slowly(scene: Scene) -> bool:
    due = scene.look.due()
    return due is not None and 2 <= due - scene.now <= 15


def test_where_the_kernel_gives_no_watch_everything_is_looked_at_slowly(tmp_path: Path) -> None:
    with descriptors_left(0):
        scene = Scene(tmp_path)
    scene.begin("*.fa")
    assert scene.look.fileno() == -1
    assert _looks_slowly(scene)
    scene.write("a.fa")
    scene.after(2.5)
    assert scene.look.waiting == 1
    for _ in range(3):
        scene.after(2.5)
    assert scene.counted() == ["a.fa"]
    os.remove(scene.base / "a.fa")
    scene.after(2.5)
    assert scene.counted() == []


def test_on_a_file_server_everything_is_looked_at_slowly(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = _f_type(scene.base)
    assert not inotify.others_change(str(scene.base)) or kind in inotify.ELSEWHERE
    monkeypatch.setattr(inotify, "ELSEWHERE", frozenset({kind}))
    scene.begin("*.fa")
    assert _looks_slowly(scene)


def _f_type(path: Path) -> int:
    told = subprocess.run(["stat", "-f", "-c", "%t", path], capture_output=True, check=True)
    return int(told.stdout, 16)


def test_what_a_link_leads_to_is_looked_at_slowly(scene: Scene) -> None:
    scene.write("elsewhere/a")
    scene.begin("*.fa")
    os.symlink(scene.base / "elsewhere/a", scene.base / "a.fa")
    scene.look.turn(scene.look.changes())
    scene.after(6)
    assert scene.counted() == ["a.fa"]


def test_what_cannot_be_read_for_now_is_not_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write("in/a.fa")
    scene.begin("in/*.fa")
    cannot_be_listed(monkeypatch, "/in/")
    scene.look.turn([inotify.Change(-1, inotify.OVERFLOW, "")])
    scene.after(60)
    assert scene.counted() == ["in/a.fa"]


def test_500_files_come_slowly_by_rename_and_go(scene: Scene) -> None:
    (scene.base / "in").mkdir()
    scene.begin("in/*.fa")
    expected: dict[str, float] = {}
    for number in range(500):
        name = f"in/{number}.fa"
        if number % 3 == 0:
            scene.write(f"{number}.part")
            os.rename(scene.base / f"{number}.part", scene.base / name)
            expected[name] = scene.now
        else:
            scene.write(name)
            expected[name] = scene.now + 5
        if number > 3 and number % 3 == 2:  # the one before is still being copied
            scene.write(f"in/{number - 1}.fa")
            expected[f"in/{number - 1}.fa"] = scene.now + 5
        if number % 7 == 6:
            os.remove(scene.base / f"in/{number - 4}.fa")
            del expected[f"in/{number - 4}.fa"]
        scene.look.turn(scene.look.changes())
        counted = {os.path.relpath(path, scene.base) for path in scene.look.counted()}
        assert counted == {name for name, at in expected.items() if at <= scene.now}
        scene.now += 1.0
    scene.now += 10
    scene.look.turn(scene.look.changes())
    assert len(scene.counted()) == len(expected) == 429


def test_the_loop_is_woken_when_what_counts_has_changed(tmp_path: Path) -> None:
    before = open_files()
    (tmp_path / "in").mkdir()
    watch = SourceWatch([ForeachSource("in/*.fa", str(tmp_path))], settle=0.2)
    try:
        assert len(watch.take()[0]) == 0
        (tmp_path / "a.fa").write_text("x")
        os.rename(tmp_path / "a.fa", tmp_path / "in/a.fa")
        assert _readable(watch, 60)
        assert watch.take()[0].counts(f"{tmp_path}/in/a.fa")
        assert not _readable(watch, 0)
        (tmp_path / "b").write_text("x")
        watch.follow([ForeachSource("b", str(tmp_path)), ForeachSource("in/*.fa", str(tmp_path))])
        wait_until(lambda: watch.take()[0].counts(f"{tmp_path}/b"))
        assert not watch.trouble
    finally:
        watch.close()
    assert not open_files() - before


def test_what_counts_is_all_once_it_was_asked_for_and_nothing_is_half_written(
    tmp_path: Path,
) -> None:
    source = ForeachSource("*.fa", str(tmp_path))
    watch = SourceWatch([source], settle=600)
    try:
        assert watch.take()[1] is False
        (tmp_path / "a.fa").write_text("x")
        (tmp_path / "b").write_text("x")
        os.rename(tmp_path / "b", tmp_path / "b.fa")
        watch.finish()
        wait_until(lambda: watch.take()[0].counts(f"{tmp_path}/b.fa"))
        assert watch.take()[1] is False
        (tmp_path / "a.fa").unlink()
        wait_until(lambda: watch.take()[1])
        assert [*watch.take()[0]] == [f"{tmp_path}/b.fa"]
    finally:
        watch.close()


def test_a_watch_that_breaks_wakes_the_loop_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = SourceWatch([ForeachSource("*.fa", str(tmp_path))])
    try:
        monkeypatch.setattr(source_look, "sight_of", _breaks)
        watch.follow([ForeachSource("*.fa", str(tmp_path))])
        assert _readable(watch, 60)
        assert watch.trouble == "RuntimeError: broken on purpose"
    finally:
        watch.close()


def _breaks(pattern: str, base: str) -> object:
    raise RuntimeError("broken on purpose")


def _readable(watch: SourceWatch, seconds: float) -> bool:
    return bool(select.select([watch], [], [], seconds)[0])
