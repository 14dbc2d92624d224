"""Which files count, with a clock of the test's own."""

from __future__ import annotations

from gpulaunch.app.stillness import GATHER, PACE, Stamp, Stillness


def stamp(size: int = 1) -> Stamp:
    return Stamp(size, 0, 0)


def counted(stillness: Stillness) -> list[str]:
    return sorted(stillness.still)


def test_a_file_that_came_by_rename_counts_at_once() -> None:
    files = Stillness(5)
    files.moved_in("a", stamp(), 100)
    assert counted(files) == ["a"]
    assert files.due() == 100 + GATHER
    assert files.told(100 + GATHER)
    assert files.due() is None


def test_a_file_that_grows_counts_once_it_was_still() -> None:
    files = Stillness(5)
    for second in range(4):
        files.seen("a", stamp(second), 100 + second)
        assert not files.told(100 + second)
    assert files.due() == 103 + 5
    assert not files.told(107.9)
    assert files.told(108 + GATHER)
    assert counted(files) == ["a"]


def test_a_write_that_leaves_size_and_time_as_they_were_is_a_change() -> None:
    files = Stillness(5)
    files.seen("a", stamp(), 100)
    files.seen("a", stamp(), 104)
    assert files.due() == 105
    files.seen("a", stamp(), 104, written=True)
    assert files.due() == 109


def test_what_was_there_counts_unless_it_is_younger() -> None:
    files = Stillness(5)
    files.began("old", stamp(), 5, 100)
    files.began("young", stamp(), 4.9, 100)
    files.began("from the future", stamp(), -3600, 100)
    assert counted(files) == ["old"]
    assert files.told(105)
    assert counted(files) == ["from the future", "old", "young"]


def test_what_counts_goes_on_to_count_until_it_is_gone() -> None:
    files = Stillness(5)
    files.moved_in("a", stamp(), 100)
    assert files.told(101)
    files.seen("a", stamp(2), 102, written=True)
    assert counted(files) == ["a"]
    assert files.due() is None
    files.gone("a", 103)
    assert not counted(files)
    assert files.told(104)
    files.seen("a", stamp(2), 105)
    assert not counted(files)
    assert files.waiting == 1


def test_what_never_counted_is_gone_without_news() -> None:
    files = Stillness(5)
    files.seen("a", stamp(), 100)
    files.gone("a", 101)
    files.gone("unknown", 101)
    assert files.due() is None


def test_a_look_at_everything_forgets_what_it_did_not_find() -> None:
    files = Stillness(5)
    for name in "abc":
        files.moved_in(name, stamp(), 100)
    files.seen("d", stamp(), 100)
    files.only(["b"], 101)
    assert counted(files) == ["b"]
    assert files.waiting == 0


def test_each_change_of_a_list_is_news_and_its_last_line_waits() -> None:
    files = Stillness(5)
    files.lists = {"list"}
    files.began("list", stamp(), 60, 100)
    files.taken()
    files.seen("list", stamp(), 101)
    assert files.due() is None
    files.seen("list", stamp(2), 102)
    assert not counted(files)
    assert files.told(102 + GATHER)
    assert files.due() == 107
    files.gone("list", 104)
    assert files.told(104 + GATHER + PACE)


def test_news_are_gathered_and_told_no_faster_than_they_are_taken_up() -> None:
    files = Stillness(5)
    told = 0
    for tenth in range(600):
        now = 100 + tenth / 10
        files.moved_in(f"{tenth}", stamp(), now)
        told += files.told(now)
    assert 55 <= told <= 60
    assert files.told(200)


def test_500_files_are_copied_slowly_renamed_in_and_deleted() -> None:
    """Each counts exactly from when it may; what is told is always what counts."""
    files, now, begun = Stillness(5), 0.0, {}
    for number in range(500):
        now = number * 0.5
        name = f"{number}"
        if number % 2:
            files.moved_in(name, stamp(), now)
            begun[name] = now
        else:
            files.seen(name, stamp(0), now)
        for other in range(max(0, number - 6), number, 2):
            if other % 2 == 0:  # the last three go on growing
                files.seen(f"{other}", stamp(number), now)
                begun[f"{other}"] = now + 5
        if number % 10 == 9:
            files.gone(f"{number - 9}", now)
            begun.pop(f"{number - 9}", None)
        files.told(now)
        assert set(files.still) == {name for name, at in begun.items() if at <= now}
    assert files.told(now + 10)
    assert len(files.still) + 50 == 500
    assert files.due() is None
