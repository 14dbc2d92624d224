"""With the injection a program does what it did without, and says more when it fails."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.explain.support import ALL, ENDS, FAKE, MIXING, Place, pythons


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def each(param: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("python", param, ids=[Path(p).parts[-3] for p in param])


# ── Ways to start ───────────────────────────────────────────────────────────────────────────────


@each(ALL)
def test_a_script_says_more_and_nothing_else(place: Place, python: str) -> None:
    place.file("p.py", f"import torch\ndef main():\n    {MIXING}\nprint('begun')\nmain()\n")
    (report,) = place.both([python, "p.py"])
    assert report.startswith("gpulaunch explain: RuntimeError: Expected all tensors to be on the")
    assert "where: p.py:3, in main" in report


@each(ALL)
def test_every_python_names_the_same_odd_tensors(place: Place, python: str) -> None:
    place.file(
        "p.py",
        """
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.scale = torch.ones(4)
            def forward(self, batch):
                h = self.body(
                    batch["x"]
                )
                return h * self.scale
        def main(net, mask):
            batch = {"x": torch.ones(2, 4, device="cuda:0"), "mask": mask}
            for epoch in range(2):
                with open(__file__): net(
                    batch,
                )
        main(Net().to("cuda:0"), torch.ones(4))
        """,
    )
    (report,) = place.both([python, "p.py"])
    assert "where: p.py:13, in forward\n      return h * self.scale\n" in report
    assert "      self.scale  cpu     (4) float32  plain attribute   <-- odd\n" in report
    assert "p.py:8: self.scale is a plain attribute" in report
    assert "not on cuda:0 either: batch['mask']" in report
    assert report.count("<-- odd") >= 3


@each(ENDS)
def test_c_and_m_and_standard_input_and_zip_files_and_entry_points(
    place: Place, python: str
) -> None:
    program = f"import torch, sys\nprint(sys.argv, __name__)\n{MIXING}\n"
    place.file("pack/__init__.py", "")
    place.file("pack/__main__.py", program)
    place.file("pack/cli.py", f"import torch\ndef main():\n    {MIXING}\n")
    place.file("bin/tool", "import sys\nfrom pack.cli import main\nsys.exit(main())\n")
    with zipfile.ZipFile(place.path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", program)
    for argv, stdin in (
        ([python, "-c", program, "x"], ""),
        ([python, "-m", "pack", "x"], ""),
        ([python, "-", "x"], program),
        ([python, "app.pyz", "x"], ""),
        ([python, "bin/tool", "x"], ""),
    ):
        (report,) = place.both(argv, (FAKE, place.path), stdin=stdin)
        assert "at least two devices, cuda:0 and cpu" in report
    assert "where: pack/cli.py:3, in main" in report


@each(ENDS)
@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_program_that_shuts_the_environment_out_runs_as_before(
    place: Place, python: str, flag: str
) -> None:
    place.file("p.py", "import sys\nprint(len(sys.argv))\n1 / 0\n")
    assert place.both([python, flag, "p.py"]) == ()


@each(pythons("2.7", "3.6", "3.7"))
def test_pythons_too_old_for_a_report_find_nothing(place: Place, python: str) -> None:
    place.file("p.py", "import sys\nprint(sys.path, sorted(sys.modules), sys.excepthook)\n1 / 0\n")
    assert place.both([python, "p.py"], ()) == ()


# ── What a program can see ──────────────────────────────────────────────────────────────────────

LOOK = """
import os, sys
import atexit, threading
seen = {
    "path": sys.path, "argv": sys.argv, "modules": sorted(sys.modules), "flags": str(sys.flags),
    "cache": sorted(sys.path_importer_cache), "finders": str(len(sys.meta_path)),
    "hooks": [len(sys.path_hooks), sys.excepthook is sys.__excepthook__,
              sys.excepthook.__name__, sys.excepthook.__module__, sys.excepthook.__doc__,
              threading.excepthook is getattr(threading, "__excepthook__", threading.excepthook),
              sys.unraisablehook is sys.__unraisablehook__, sys.gettrace(), sys.getprofile()],
    "environment": {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "_")},
    "sys": sorted(vars(sys)), "builtins": sorted(__builtins__.__dict__),
}
for item in seen.items():
    print(item)
try:
    import sitecustomize
    print(sitecustomize.__file__)
except Exception as error:
    print(type(error), error)
"""


@each(ALL)
def test_a_program_sees_the_same_path_modules_flags_and_hooks(place: Place, python: str) -> None:
    place.file("p.py", LOOK)
    assert place.both([python, "p.py"], ()) == ()
    assert place.both([python, "-c", LOOK], ("", "lib", FAKE)) == ()


def test_in_a_virtual_environment_with_a_sitecustomize_of_its_own(place: Place) -> None:
    subprocess.run([ALL[-1], "-m", "venv", "--without-pip", place.path / "v"], check=True)
    place.file("p.py", LOOK)
    python = str(place.path / "v/bin/python")
    assert place.both([python, "p.py"]) == ()
    (site,) = (place.path / "v/lib").glob("python*/site-packages")
    (site / "sitecustomize.py").write_text("print('the environment customises')\n")
    (site / "a.pth").write_text("import sys; sys.from_pth = 1\n")
    assert place.both([python, "p.py"]) == ()
    assert "the environment customises" in place.run([python, "-c", ""]).out


@each(ENDS)
@pytest.mark.parametrize(
    "own",
    [
        "import sys\nprint('mine', __name__, __file__, __spec__.name, sys.modules[__name__])",
        "import sys\nsys.path.insert(0, '/from/mine')\nsys.path = list(sys.path)",
        "import no_such_module",
        "raise ImportError('mine', name='sitecustomize')",
        "raise ValueError('broken')",
        "import sys\nold = sys.excepthook\nsys.excepthook = lambda *a: (print('mine'), old(*a))",
        "import sys\nsys.modules['sitecustomize'] = sys",
    ],
)
def test_a_sitecustomize_of_the_programs_own_is_run_with_its_outcome(
    place: Place, python: str, own: str
) -> None:
    place.file("lib/sitecustomize.py", own)
    place.file("p.py", f"{LOOK}\nimport torch\n{MIXING}\n")
    assert len(place.both([python, "p.py"], (place.path / "lib", FAKE))) == 1


@each(ENDS)
def test_a_tool_that_works_alike_is_run_once_before_or_after(place: Place, python: str) -> None:
    """As ddtrace-run, New Relic and opentelemetry-instrument do: first on the path, then the next
    one is searched for and executed.
    """
    place.file(
        "tool/sitecustomize.py",
        """
        import os, sys
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec
        print("the tool begins")
        here = os.path.dirname(__file__)
        spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if p != here])
        if spec is not None:
            module = sys.modules["sitecustomize"] = module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except ImportError:
                pass
        print("the tool ends")
        """,
    )
    place.file("lib/sitecustomize.py", "print('mine')")
    place.file("p.py", f"import torch\n{MIXING}\n")
    for own in ((), (place.path / "lib",)):
        tool = place.path / "tool"
        from gpulaunch.diagnose.explain import INJECT

        for path in ((INJECT, tool, *own, FAKE), (tool, INJECT, *own, FAKE)):
            bare = place.run([python, "p.py"], (tool, *own, FAKE))
            done = place.run([python, "p.py"], path)
            assert (done.out, done.err) == (bare.out, bare.err)
            assert len(done.reports) == 1
        assert bare.out.count("begins") == 1
        assert bare.out.count("mine") == len(own)


# ── Hooks of the program's own ──────────────────────────────────────────────────────────────────

CHAINED = """
import sys, torch
old = sys.excepthook
def mine(*args):
    print("mine", args[0].__name__, file=sys.stderr)
    old(*args)
sys.excepthook = mine
"""
ORIGINAL = """
import sys, torch
assert sys.excepthook is sys.__excepthook__, "as exceptiongroup, code and trio ask"
def mine(kind, error, traceback):
    print("logged", error, file=sys.stderr)
    sys.__excepthook__(kind, error, traceback)
sys.excepthook = mine
"""
ALONE = """
import sys, torch, atexit
atexit.register(print, "my own end", file=sys.stderr)
def mine(kind, error, traceback):
    print("in colours", error, file=sys.stderr)
sys.excepthook = mine
"""
BROKEN = """
import sys, torch
def mine(kind, error, traceback):
    raise KeyError("in the hook")
sys.excepthook = mine
"""
MISSING = """
import sys, torch
del sys.excepthook
"""
PUT_BACK = CHAINED + "\nsys.excepthook = sys.__excepthook__\n"


@each(ENDS)
@pytest.mark.parametrize(
    "hook", [CHAINED, ORIGINAL, ALONE, BROKEN, MISSING, PUT_BACK],
    ids=["chained", "original", "alone", "broken", "missing", "put-back"],
)  # fmt: skip
def test_a_hook_of_the_programs_own_is_called_as_ever_and_the_report_comes_once(
    place: Place, python: str, hook: str
) -> None:
    place.file("p.py", f"{hook}\n{MIXING}\n")
    (report,) = place.both([python, "p.py"])
    assert "p.py" in report


def test_rich_tracebacks_stay_as_they_are(place: Place) -> None:
    """A real hook that calls no other one."""
    place.file("p.py", f"import torch\nfrom rich.traceback import install\ninstall()\n{MIXING}\n")
    bare = place.run([sys.executable, "p.py"])
    assert "Traceback (most recent call last)" in bare.err
    assert "╭" in bare.err
    (report,) = place.both([sys.executable, "p.py"])
    assert "p.py:4, in <module>" in report


@each(ENDS)
def test_an_error_in_a_thread_is_reported_while_the_program_goes_on(
    place: Place, python: str
) -> None:
    place.file(
        "p.py",
        f"""
        import sys, threading, torch
        def work():
            {MIXING}
        def mine(args):
            print("mine", args.exc_type.__name__, file=sys.stderr)
            old(args)
        for old in (threading.excepthook,):
            for hook in (threading.excepthook, mine):
                threading.excepthook = hook
                thread = threading.Thread(target=work, name="worker")
                thread.start()
                thread.join()
        threading.Thread(target=sys.exit, args=(1,)).start()
        print("went on")
        """,
    )
    reports = place.both([python, "p.py"])
    assert len(reports) == 2
    assert all("in work" in report for report in reports)


@each(ENDS)
def test_a_thread_with_a_very_small_stack_is_left_alone(place: Place, python: str) -> None:
    place.file(
        "p.py",
        f"""
        import threading, torch
        def work():
            {MIXING}
        threading.stack_size(32768)
        thread = threading.Thread(target=work, name="small")
        thread.start()
        thread.join()
        """,
    )
    assert place.both([python, "p.py"]) == ()


@each(ENDS)
def test_a_server_whose_threads_go_on_failing_does_not_flood_its_log(
    place: Place, python: str
) -> None:
    place.file(
        "p.py",
        f"""
        import threading, torch
        def work():
            {MIXING}
        for n in range(25):
            thread = threading.Thread(target=work, name="worker")
            thread.start()
            thread.join()
        """,
    )
    assert len(place.both([python, "p.py"])) == 20


@each(ENDS)
def test_hooks_called_with_anything_do_what_they_did(place: Place, python: str) -> None:
    place.file(
        "p.py",
        """
        import sys, torch
        sys.excepthook(ValueError, ValueError("shown, and gone on"), None)
        sys.excepthook(None, None, None)
        sys.excepthook(int, 3, None)
        sys.excepthook(RuntimeError, "No CUDA GPUs are available", None)
        try:
            sys.excepthook()
        except TypeError:
            print("as before")
        """,
    )
    assert place.both([python, "p.py"]) == ()


# ── Ends that are none of ours ──────────────────────────────────────────────────────────────────


@each(ENDS)
@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(3)",
        "sys.exit('a message')",
        "os._exit(4)",
        "raise SystemExit",
        "1 / 0",
        "raise KeyboardInterrupt",
        "exec('x = = 1')",
        "(lambda f: f(f))(lambda f: f(f))",
        "raise MemoryError",
        "class E(BaseException):\n    def __str__(self): raise ValueError\nraise E",
        "try:\n    bad()\nexcept RuntimeError as e:\n    print('handled', e)",
        "try:\n    bad()\nexcept RuntimeError as e:\n    print('logged', e)\n    sys.exit(1)",
        "os.kill(os.getpid(), 15)",
        "sys.stderr = None\nbad()",
        "sys.stdout.close()\nsys.exit(0)",
    ],
)
def test_other_ends_are_as_they_were(place: Place, python: str, end: str) -> None:
    place.file("p.py", f"import os, sys, torch\ndef bad():\n    {MIXING}\n{end}\n")
    assert place.both([python, "p.py"]) == ()


@each(ENDS)
def test_without_torch_nothing_is_even_looked_at(place: Place, python: str) -> None:
    text = "Expected all tensors to be on the same device, but found cpu and cuda:0"
    place.file("p.py", f"raise RuntimeError('{text}')")
    assert place.both([python, "p.py"], ()) == ()


@each(ENDS)
def test_a_stream_that_is_not_utf8_gets_plain_text(place: Place, python: str) -> None:
    place.file("p.py", f"import torch\nétä = {MIXING}  # größe 大\n")
    environ = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    (report,) = place.both([python, "p.py"], environ=environ)
    assert report.isascii()
    assert "\\xe9t\\xe4" in report
    (report,) = place.both([python, "p.py"], environ={"PYTHONUTF8": "1"})
    assert "étä" in report


@each(ENDS)
def test_warnings_of_the_programs_text_are_not_given_twice(place: Place, python: str) -> None:
    place.file("p.py", f"import torch\nx = '\\d'\n{MIXING}\n")
    for flag in ("-Wdefault", "-Wignore"):
        assert len(place.both([python, flag, "p.py"])) == 1
    place.file("q.py", f"import torch\n{MIXING}\n")
    assert len(place.both([python, "-Werror", "-bb", "q.py"])) == 1


@each(ENDS)
def test_standard_error_that_nobody_reads(place: Place, python: str) -> None:
    place.file("p.py", f"import torch\nprint(1)\n{MIXING}\n")
    program = "import os, subprocess, sys\nread, write = os.pipe()\nos.close(read)\n"
    program += "print(subprocess.call([sys.executable, 'p.py'], stderr=write))\n"
    assert place.both([python, "-c", program]) == ()


@each(ENDS)
def test_no_standard_error_at_all(place: Place, python: str) -> None:
    place.file("p.py", f"import torch\nprint(1)\n{MIXING}\n")
    assert place.both(["sh", "-c", f"{python} p.py 2>&-"]) == ()


# ── Children ────────────────────────────────────────────────────────────────────────────────────


@each(ENDS)
def test_a_python_child_is_reported_once_and_its_parent_only_says_that_it_failed(
    place: Place, python: str
) -> None:
    place.file("child.py", f"import torch\n{MIXING}\n")
    place.file(
        "p.py",
        "import subprocess, sys, torch\nsubprocess.run([sys.executable, 'child.py'], check=True)\n",
    )
    (report,) = place.both([python, "p.py"])
    assert "child.py" in report


@each(ENDS)
def test_a_child_whose_path_is_set_anew_is_left_alone(place: Place, python: str) -> None:
    place.file(
        "p.py",
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', '1 / 0'], env={'PYTHONPATH': '/x'})\n",
    )
    assert place.both([python, "p.py"]) == ()


@each(ENDS)
def test_a_forked_child_is_reported_once(place: Place, python: str) -> None:
    place.file(
        "p.py",
        f"""
        import os, torch
        if os.fork() == 0:
            {MIXING}
        print(os.wait()[1])
        """,
    )
    assert len(place.both([python, "p.py"])) == 1


@each(ENDS)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_of_multiprocessing_is_reported_where_its_variables_are(
    place: Place, python: str, method: str
) -> None:
    """Its own words go through no hook: it prints its traceback by itself."""
    place.file(
        "p.py",
        f"""
        import multiprocessing, torch
        def work(rank):
            mask = torch.ones(5)
            torch.ones(5, device='cuda:0') + mask
        if __name__ == "__main__":
            multiprocessing.set_start_method({method!r})
            process = multiprocessing.Process(target=work, args=(0,), name="worker")
            process.start()
            process.join()
            print(process.exitcode)
        """,
    )
    (report,) = place.both([python, "p.py"])
    assert "p.py:4: mask is made on the CPU: " in report
    assert "p.py:5, in work" in report


@each(ENDS)
def test_a_process_that_sends_its_traceback_as_text_reports_before(
    place: Place, python: str
) -> None:
    """As torch.multiprocessing.spawn: caught, put into a file, sys.exit(1)."""
    place.file(
        "p.py",
        f"""
        import multiprocessing, sys, traceback, torch
        class ProcessRaisedException(Exception):
            pass
        def wrap(pipe):
            try:
                {MIXING}
            except Exception:
                pipe.send(traceback.format_exc())
                sys.exit(1)
        if __name__ == "__main__":
            there, here = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=wrap, args=(here,))
            process.start()
            process.join()
            raise ProcessRaisedException(there.recv())
        """,
    )
    (report,) = place.both([python, "p.py"])
    assert "in wrap" in report


@each(ENDS)
def test_a_pools_error_is_reported_by_the_parent_from_the_childs_text(
    place: Place, python: str
) -> None:
    place.file(
        "p.py",
        f"""
        import torch
        from concurrent.futures import ProcessPoolExecutor
        def work(n):
            return {MIXING}
        if __name__ == "__main__":
            with ProcessPoolExecutor(1) as pool:
                done = pool.submit(work, 1)
            # Once it is over: a future that is waited for shows other lines of its library.
            done.result()
        """,
    )
    (report,) = place.both([python, "p.py"])
    assert "another process or thread, whose variables are gone" in report
    assert "p.py:5, in work: return torch.ones" in report


# ── When the report itself cannot be made ───────────────────────────────────────────────────────


@each(ENDS)
@pytest.mark.parametrize(
    "broken",
    [
        "def tell(error, traceback): raise ValueError",
        "def tell(error, traceback): raise SystemExit(9)",
        "raise KeyboardInterrupt",
        "x = = 1",
        None,
    ],
)
def test_a_report_that_fails_changes_nothing(place: Place, python: str, broken: str | None) -> None:
    from gpulaunch.diagnose.explain import INJECT

    source = Path(INJECT, "sitecustomize.py").read_text()
    folder = place.file("copy/inject/sitecustomize.py", source).parent
    if broken is not None:
        place.file("copy/report/main.py", broken)
    place.file("p.py", f"import torch\n{MIXING}\n")
    assert place.both([python, "p.py"], inject=str(folder)) == ()
