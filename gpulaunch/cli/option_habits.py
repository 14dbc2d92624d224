"""Options that people bring along from other tools, and what is meant by them here.

Read only for an option that a command does not have. Where nothing is known of it, a spelling that
is very near is named, or nothing: a wrong guess costs more than none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

NEAR = 0.8
"""How alike (0 to 1) a spelling must be to be named."""

STARTS = "run map resume retry"
LIVE = "status logs cancel drain wait top report"
ALL = "*"

_SHARED = (
    "how many jobs run at once follows from the cards: --gpus N is how many cards, --per-gpu N how"
    " many jobs share one; of jobs without a card, the CPUs decide (cpus: in the job file)"
)
_WHICH = "--gpus 0,2 is which cards, --gpus 2 how many, any of them"
_DEMAND = "gpus: in the job file is how many cards a job gets, --gpus which ones the run may use"
_RESUMES = "gpulaunch resume goes on with a run, gpulaunch retry runs again only what failed"
_SLURM = "--engine slurm hands the jobs to Slurm, and --slurm takes any option of sbatch:"
_WATCH = "gpulaunch top shows a run as it goes, gpulaunch logs -f follows what its jobs print"
_NAMED = "JOB is named as it is, without an option"
_LEFT = "a run of its own is kept, whatever its terminal does, with gpulaunch run --detach"

MEANT: Sequence[tuple[str, Mapping[str, str]]] = (
    (
        "map",
        {
            "-j --jobs --workers --max-workers --parallel --procs -P --max-procs --slots": _SHARED,
            "-a --arg-file": "items come from standard input, one a line: gpulaunch map CMD < FILE",
            "-0 --null": "items from standard input are one a line",
            "-d --delimiter": "items from standard input are one a line",
            "-I -i --replace": "{{path}} or {{item}} in CMD stands for the item",
            "-C --colsep": "foreach: {csv: FILE} in a job file makes a job of each row",
            "-n -N --max-args -L -X -m": "a job takes one item; batch: N in a job file takes N",
            "-k --keep-order": "each job has a log of its own: gpulaunch logs shows them in order",
            "--resume --resume-failed --retry-failed --continue": _RESUMES,
        },
    ),
    (
        "run",
        {
            "--resume --resume-failed --retry-failed --restart --rerun --incomplete": (
                "--continue goes on with the last run of the file; " + _RESUMES
            ),
            "-n": "--dry-run prints the plan; --gpus N is how many cards the run may hold",
            "--force --fresh --from-scratch --overwrite -B --always-make -F": (
                "--new starts all jobs anew, in a run of its own"
            ),
            "-f --file -c --config --jobfile --job-file -a": (
                "the job file is named as it is: gpulaunch run jobs.yaml"
            ),
            "--name --job-name": "name: in the job file; --run-dir DIR is where the run is kept",
            "-g --gpus-per-job --gpus-per-task": _DEMAND,
            "--wrap --cmd --command": "gpulaunch exec -- CMD runs one command on a free card",
        },
    ),
    (
        "run map",
        {
            "--results --outdir --output-dir --out -o --output --log-dir --logs -e --error": (
                "--run-dir DIR is where the run is kept: logs/, out/ and results/ are in it"
            ),
        },
    ),
    (
        "run resume",
        {
            "--filter --match --select --include --target --job": (
                "--only PATTERN names the jobs that run, and what they need comes along"
            ),
            "--exclude --skip --except --ignore": "--only PATTERN names the jobs that run",
        },
    ),
    (
        "resume retry",
        {
            "--resume --continue --restart --rerun": _RESUMES,
            "-f --force --changed": "gpulaunch resume --changed reruns what was redefined since",
            "--failed --resume-failed --retry-failed --all": (
                "gpulaunch retry runs again all that failed, gpulaunch resume all that has not"
                " succeeded"
            ),
            "--new": "gpulaunch run --new JOBS starts all jobs anew",
            "-j --job": _NAMED + ": gpulaunch retry JOB",
            "--only": _NAMED + ": gpulaunch retry 'fold-*'",
            "-n": "--dry-run lists what would run",
        },
    ),
    (
        STARTS,
        {
            "-j --jobs --workers --max-workers --num-workers --parallel --concurrency --procs"
            " --processes --nproc --max-procs -P --slots --jobs-per-gpu --threads": _SHARED,
            "--joblog --log --logfile": (
                "every run has joblog.tsv in its directory, with GNU Parallel's columns, and a log"
                " for each attempt: gpulaunch logs"
            ),
            "--bar --progress --eta --tui --ui": (
                "a terminal shows progress by itself, gpulaunch top fills the screen with it"
            ),
            "--halt --halt-on-error --stop-on-error --failfast -x --exitfirst -e": (
                "--fail-fast starts nothing after a failure, --max-failures N nothing after N"
            ),
            "-k --keep-going --no-stop": (
                "jobs go on after a failure unless --fail-fast or --max-failures says otherwise"
            ),
            "--sshlogin -S --hosts --hostfile": "one machine, or a cluster with --engine slurm",
            "--slurm-partition --cluster --slurm-account": _SLURM + " --slurm --partition=gpu",
            "--partition -p --account -A --qos --constraint -C --nodelist -w --nodes -N"
            " --exclusive --reservation --licenses": _SLURM + " --slurm --partition=gpu",
            "--array -a": "foreach: and matrix: in the job file make a job of each item",
            "--gres --gpus-per-node --gpus-per-task --ntasks -G": _DEMAND,
            "--mem --mem-per-cpu --memory": (
                "gpu_memory: in the job file is a card's memory that must be free; on a cluster,"
                " --slurm --mem=64G"
            ),
            "--time -t --walltime --time-limit --timeout": "timeout: in the job file, say 2h",
            "--retries --retry --attempts --max-retries": "retries: in the job file, say 2",
            "--cpus-per-task --cpus -n --cores": "cpus: in the job file is how many CPUs a job has",
            "--dependency -d --after --needs": "needs: and after: in the job file name other jobs",
            "--mail-type --mail-user --mail --email --notify": (
                "notify: in the job file says who is told of a run's end and of failures"
            ),
            "--export --env -E": "env: and env_file: in the job file set variables",
            "--chdir -D --cwd --workdir --wd": "cwd: in the job file is a job's directory",
            "--background --bg --daemon --daemonize --nohup": "--detach goes on alone",
            "--follow -f --watch --attach": _WATCH,
            "--priority --nice": "priority: in the job file; for all of it, nice gpulaunch ...",
        },
    ),
    (
        "exec",
        {
            "-j --jobs --workers --parallel": (
                "exec becomes one command; gpulaunch map runs one job an item"
            ),
            "--gres --ntasks --num-gpus --ngpus -n -N -G --gpus-per-task": "-g N is how many cards",
            "--time -t --timeout --walltime": (
                "--wait TIME is how long to wait for a card; a limit of CMD: gpulaunch exec --"
                " timeout 2h CMD"
            ),
            "--retries --retry": "gpulaunch map has --retries N, a job file retries:",
            "--dry-run -d --test": "gpulaunch gpus shows which cards are free",
            "--background --bg --detach --daemon --nohup": (
                "exec is CMD itself: put & behind it, or nohup before; " + _LEFT
            ),
            "--env -e -E --export": "set it before: NAME=value gpulaunch exec -- CMD",
            "--cwd --chdir -D -C --workdir": "go there first: exec is CMD itself, where you are",
            "--name -J --job-name": "exec keeps no run; gpulaunch map --name NAME does",
            "-o --output --log --joblog": "exec is CMD itself: > FILE, as ever",
            "-f --only --run-dir --engine --slurm": "exec is one command; gpulaunch map runs many",
        },
    ),
    (
        "logs",
        {
            "--tail --lines-from-end -l --last --number": "-n N shows only the last N lines",
            "--head": "gpulaunch logs JOB shows all of it: gpulaunch logs JOB | head",
            "-t -F --watch --stream --attach": "-f follows a log as it grows",
            "--all -a": "without JOB, every job that has a log is shown",
            "--job -j --name --jobs": _NAMED + ": gpulaunch logs JOB",
            "--grep -g --filter --search": "gpulaunch logs --raw JOB | grep PATTERN",
            "--since --until --timestamps": "logs are as the jobs wrote them, without times",
            "--stderr --stdout --err --out -e -o": "a log holds both, in the order written",
            "--errors --failures": "--failed shows those of the jobs that failed",
            "--path --list -p": "the files are in logs/ in the run's directory",
            "--json": "logs are text; gpulaunch status --json names each log's file",
        },
    ),
    (
        "status",
        {
            "-w --watch -f --follow --live --interval -n": _WATCH,
            "-a -l --long --full --verbose -v": "--all lists every job",
            "--failed --failures --errors": (
                "failures stand first; gpulaunch logs --failed shows their logs"
            ),
            "-j --job --name --jobs": _NAMED + ": gpulaunch status JOB",
            "-u --user --me --mine": "gpulaunch ps lists the live runs of all users",
            "--running --waiting --pending --state -t --states": (
                "--all lists every job; gpulaunch status --json | jq picks them"
            ),
        },
    ),
    (
        "cancel",
        {
            "-j --job --name --jobs --only -n": _NAMED + ": gpulaunch cancel 'fold-*'",
            "-9 --force -f --kill --signal -s --now --grace": (
                "a job gets SIGTERM, and SIGKILL after its grace (10 s, grace: in the job file)"
            ),
            "-u --user --me": "a run is named with -r; --all stops every job of it",
            "--failed --pending --state -t": _NAMED + "; gpulaunch status --all lists them",
            "--dry-run": "gpulaunch status PATTERN shows which jobs a pattern means",
        },
    ),
    (
        "drain",
        {
            "--undo --resume --cancel --undrain --on": "--off uses the cards again",
            "--force -f --kill": "--now interrupts what runs there; it goes back to waiting",
            "--all -a": "without --gpus, every card of the run is given back",
            "-g --gpu --card --cards --devices": _WHICH,
            "--dry-run": "gpulaunch gpus shows who uses the cards",
        },
    ),
    (
        "wait",
        {
            "--timeout -t --max --limit": "wait has no limit of its own: timeout 1h gpulaunch wait",
            "--json": "gpulaunch wait; gpulaunch status --json",
            "-q --quiet": "wait says one line; its exit status is the run's",
            "-n --any --job -j": "wait is for a run; needs: and after: are for jobs",
        },
    ),
    (
        "gpus",
        {
            "-w --watch -l --loop -n --interval -d": (
                "gpulaunch top shows a run's cards as they go: else watch gpulaunch gpus"
            ),
            "--free --idle --available --query-gpu": "gpulaunch gpus --json | jq picks them",
            "--csv --format -o": "--json",
            "-i --id --index": "every card is shown, a line each",
        },
    ),
    (
        "ps",
        {
            "-a -e -A --all -u --user --me --mine -f -l": "the live runs of all users are shown",
            "-w --watch": "gpulaunch top shows a run as it goes",
        },
    ),
    (
        "check",
        {
            "--dry-run -n --plan": "check starts nothing; it prints the plan of gpulaunch run",
            "--strict --warnings --werror": "mistakes are status 2, warnings change no status",
            "--fix": "each mistake comes with its line and what to do",
            "--only": "gpulaunch run --dry-run --only PATTERN prints the plan of those jobs",
        },
    ),
    (
        "init",
        {
            "--force -f --overwrite --yes -y": "no file is written over: -o names another one",
            "--dry-run -n --stdout": "-o - writes to standard output",
            "--input -i --script --from -s": "the script is named as it is: gpulaunch init run.sh",
        },
    ),
    (
        "export",
        {
            "--format -f -t --type --target": "--to hyperqueue, --to slurm or --to shell",
            "--overwrite -y --yes": "--force writes over what is there",
            "--dry-run -n --stdout": "-o - writes to standard output",
        },
    ),
    ("report", {"--html --pdf --format --out --open": "-o FILE names the HTML file to write"}),
    ("top", {"-d -n --interval --delay": "top shows what is new at once"}),
    (
        LIVE,
        {
            "--run-dir --dir --id --run-id -d": "-r RUN names the run, by directory, name or id",
            "--gpus": "gpulaunch gpus shows the cards",
        },
    ),
    (
        ALL,
        {
            "--devices --device --gpu --gpu-id --gpu-ids --gpu_ids --cuda --cuda-devices"
            " --visible-devices --cuda-visible-devices --cards --num-gpus --ngpus --n-gpus": _WHICH,
            "-v --verbose --debug --trace": (
                "there is nothing more to say: gpulaunch status, logs and the run's events.jsonl"
                " have it"
            ),
            "-y --yes --no-input --no-confirm -i --interactive": "nothing here ever asks",
            "-V": "gpulaunch --version",
            "--silent --no-output": "what is printed beside results goes to standard error",
            "--color --colour --no-color --no-colour": "NO_COLOR=1 in the environment",
            "--format -o --output-format": "--json, where a command prints facts",
        },
    ),
)


def instead_of(option: str, command: str, known: Collection[str], fields: Collection[str]) -> str:
    """Return the end of a line about an unknown option of `command`.

    It names our option, a near spelling, or where the options are listed.

    `known`: the options that it has; `fields`: those of a job, where it takes jobs.
    """
    word = option.lower() if option.startswith("--") else option
    if ours := _ours(word, command):
        return f": {ours}"
    if not word.startswith("--"):
        return f"; gpulaunch {command} -h lists its options"
    if (field := word[2:].replace("-", "_")) in fields:
        return f": {field}: is a field of a job, in the job file"
    begun = [one for one in known if len(word) > 4 and one.startswith(word)]
    near = begun if len(begun) == 1 else get_close_matches(word, known, 1, NEAR)
    return f"; did you mean {near[0]}?" if near else f"; gpulaunch {command} -h lists its options"


def _ours(word: str, command: str) -> str:
    for commands, meant in MEANT:
        if commands == ALL or command in commands.split():
            for words, ours in meant.items():
                if word in words.split():
                    return ours
    return ""


def before_a_command(option: str) -> str:
    """Return the end of a line about an option that stands where a command is expected."""
    if option in ("-v", "-V"):
        return ": gpulaunch --version"
    return ": options stand behind a command, as in gpulaunch run jobs.yaml --gpus 2"
