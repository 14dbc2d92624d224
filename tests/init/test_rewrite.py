"""What a script becomes with `gpulaunch exec`, and what is refused with its line and the reason."""

from __future__ import annotations

import pytest

from gpulaunch.init import Converted, Unfit, convert

M = "CUDA_VISIBLE_DEVICES"
E = "gpulaunch exec --"


def made(script: str) -> Converted:
    return convert(script.replace("MASK", M), "run.sh", (), "script")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("MASK=0 a x &\n", "EXEC a x &\n"),
        ("MASK=0,1 a\n", "gpulaunch exec -g 2 -- a\n"),
        ('MASK="0" a\n', "EXEC a\n"),
        ("MASK= a\nMASK=0 b\n", "MASK= a\nEXEC b\n"),
        ("A=1 MASK=0 B=2 a\n", "A=1 B=2 EXEC a\n"),
        ("MASK=0 nohup setsid a &\n", "nohup setsid EXEC a &\n"),
        ("nohup env MASK=0 a &\n", "nohup EXEC a &\n"),
        ("timeout 1h env MASK=0 a\n", "EXEC timeout 1h a\n"),
        ("env A=1 MASK=0 a\n", "EXEC env A=1 a\n"),
        ("env MASK=0 A=1 a\n", "EXEC env A=1 a\n"),
        ("time MASK=0 a\n", "time EXEC a\n"),
        ("MASK=0 exec a\n", "exec EXEC a\n"),
        ("MASK=0 command a\n", "command EXEC a\n"),
        ("MASK=0 \\\n  a \\\n  b\n", "EXEC \\\n  a \\\n  b\n"),
        ("x=$(MASK=0 a)\n", "x=$(EXEC a)\n"),
        ("MASK=0 a | tee b\n", "EXEC a | tee b\n"),
        ("if ! MASK=0 a; then\nMASK= b; fi\n", "if ! EXEC a; then\nMASK= b; fi\n"),
        ("export MASK=0\na\nls\nb | tee c\n", "EXEC a\nls\nEXEC b | tee c\n"),
        ("export MASK=0\nconda activate x; module load y; a\n",
         "conda activate x; module load y; EXEC a\n"),
        ("MASK=0,1 mpirun -np 2 a\n", "gpulaunch exec -g 2 -- mpirun -np 2 a\n"),
        ("export MASK=0; a; b\n", "EXEC a; EXEC b\n"),
        ("export A=1 MASK=0\na\n", "export A=1\nEXEC a\n"),
        ("(export MASK=0; a)\nb\n", "(EXEC a)\nb\n"),
        ("f() { a; }\nexport MASK=0\nf\n", "f() { EXEC a; }\nf\n"),
        ("f() { MASK=$1 a; }\nf 0\nf 1 x &\n", "f() { EXEC a; }\nf 0\nf 1 x &\n"),
        ("f() {\n  local g=$1\n  MASK=$g a\n}\nf 0\n", "f() {\n  EXEC a\n}\nf 0\n"),
        ("n=0\nfor i in a b; do\n  MASK=$n a &\n  n=$((n+1))\ndone\n",
         "for i in a b; do\n  EXEC a &\ndone\n"),
        ("n=0\nfor i in a b; do\n  MASK=$n a $n &\n  n=$((n+1))\ndone\n",
         "n=0\nfor i in a b; do\n  EXEC a $n &\n  n=$((n+1))\ndone\n"),
        ("n=0\nwhile true; do\n  n=1\n  export MASK=$n\ndone &\nMASK=0 b\n",
         "n=0\nwhile true; do\n  n=1\ndone &\nEXEC b\n"),
        ("while true; do\n  export MASK=0\n  export MASK=1\ndone &\nMASK=0 b\n",
         "while true; do\n  :\ndone &\nEXEC b\n"),
        ("n=0\nMASK=$n a\n", "EXEC a\n"),
        ("n=0\nMASK=$n a\necho $?\n", "n=0\nEXEC a\necho $?\n"),
        ("# MASK=0\nMASK=0 a # MASK\n", "# MASK=0\nEXEC a # MASK\n"),
        ("MASK=0 a $A/$B/c\n", "EXEC a $A/$B/c\n"),
        ("a $A/$B/c; MASK=$((i % 2)) b\n".replace("i", "RANDOM"), "a $A/$B/c; EXEC b\n"),
        ("G=(0 1)\nfor g in ${G[@]}; do MASK=$g a & done\n",
         "G=(0 1)\nfor g in ${G[@]}; do EXEC a & done\n"),
        ("while read x; do MASK=0 a $x; done < l\n", "while read x; do EXEC a $x; done < l\n"),
        ("for i in 0 1; do MASK=$i a & done\nwait\nMASK=0 b\n",
         "for i in 0 1; do EXEC a & done\nwait\nEXEC b\n"),
    ],
)  # fmt: skip
def test_a_masked_command_goes_behind_exec(before: str, after: str) -> None:
    assert made(before).text == after.replace("EXEC", E).replace("MASK", M)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("a\nMASK=$1 b", "may name any number of cards"),
        ("a\nMASK=$(pick) b", "may name any number of cards"),
        ("i=1\nwhile a; do MASK=$i b; i=$((i-1)); done", "any number of cards, or none"),
        ("a\nMASK=0,0 b", "twice"),
        ("a\nMASK=MIG-1 b", "no list of cards"),
        ("for g in 0 0,1; do\nMASK=$g b; done", "now fewer cards, now more"),
        ("f() { MASK=$1 a; }\nf 0; f 0,1", "does not always name the same number"),
        ("f() { a; }\nexport MASK=0; f; unset MASK; f", "does not always name the same number"),
        ("if a; then export MASK=0; fi\nb", "not the same on every way"),
        ("for i in 1 2; do\nb; export MASK=0; done", "not the same|does not always"),
        ("f() { a; }\nMASK=0 f", "f is a function"),
        ("a\nMASK=0 conda run -n x b", "conda is a function"),
        ("export MASK=0\nconda run b", "conda is a function"),
        ("a\nMASK=0 eval b", "part of the shell"),
        ("a\nMASK=0 $u", "not known before the script runs"),
        ("source x\nMASK=0 b", "may be a function of a file"),
        ("a\nMASK=0 ssh h b", "ssh runs the command elsewhere"),
        ("a\nMASK=0 srun b", "srun has another program start"),
        ("a\nMASK=0 docker run b", "docker has another program start"),
        ("a\nMASK=0 xargs b", "xargs makes commands of texts"),
        ("a\nMASK=0 parallel b", "parallel makes commands of texts"),
        ("a\nMASK=0 gpulaunch exec -- b", "behind gpulaunch already"),
        ("a\nbash -c 'MASK=0 b'", "text that another program reads"),
        ('a\nx="MASK=0 b"', "text that another program reads"),
        ("a\nfind -exec MASK=0 b", "text that another program reads"),
        ("a\necho MASK", "text that another program reads"),
        ("export MASK=0\necho $MASK", "reads CUDA_VISIBLE_DEVICES"),
        ("export MASK=0\na --x=${MASK:-1}", "reads CUDA_VISIBLE_DEVICES"),
        ("a\nf() { MASK=0 b; }", "the function f is not called"),
        ("a\nMASK=0 b | MASK=1 c", "two commands of a pipe"),
        ("export MASK=0\na | b", "two commands of a pipe"),
        ("a\nMASK=0 b <(MASK=1 c)", "runs beside the one that reads it"),
        ("a\nx=$(MASK=0 b 2>&1)", "would be part of this value"),
        ("a\nMASK=0", "without export"),
        ("a\ndeclare -x MASK=0", "does not follow a mask that is set so"),
        ("export MASK=\nMASK=0 b", "hides all cards from what follows"),
        ("MASK=0 b &\nMASK=0 c", "beside a command in the background"),
        ("MASK=0 b | tee x &\nMASK=0 c", "beside a command in the background"),
        ("(MASK=0 b &)\nMASK=0 c", "beside a command in the background"),
        ("MASK=0 b &\nkill $!", "may not have begun"),
        ("export MASK=0\nsource x", "under the mask is not known"),
        ("a\nnohup MASK=0 b", "among these words"),
        ("a\nenv MASK=0", "program is not known"),
        ("a\nenv -i MASK=0 b", "text that another program reads"),
        ("a\nMASK=0 b; shopt -s lastpipe", "with this option"),
        ("f() { f; }\nf; MASK=0 b", "calls itself"),
        ("a\nRANK=0 MASK=0 b", "parts of one program"),
        ("a\nexport CUDA_DEVICE_ORDER=FASTEST_FIRST; MASK=0 b", "PCI bus"),
        ("a\nMASK=0 b\r", "Windows"),
        ("a\nMASK=0 b $0", "its own name"),
        ("a\nb", "no command in it chooses a card"),
        ("a\nsbatch b", "sbatch hands its work to a batch system"),
        ("a\nMASK=0 MASK=1 b", "two masks"),
    ],
)
def test_what_is_not_certain_is_refused_with_the_true_reason(script: str, why: str) -> None:
    with pytest.raises(Unfit, match=why) as refused:
        made(script + "\n")
    assert refused.value.line in (0, 1, 2)


def test_notes_say_what_the_new_script_does_otherwise() -> None:
    notes = made("for i in 1 2; do MASK=3 a & done\nmodule load x\n").notes
    assert [note[:30] for note in notes] == [
        "line 1: the script runs severa",
        "gpulaunch exec takes any free ",
        "gpulaunch has to be found in t",
    ]
    assert "gpulaunch exec --gpus 3, -g 1" in notes[1]


def test_a_script_that_works_in_its_own_directory_is_told_apart() -> None:
    assert made('cd "$(dirname "$0")"\nMASK=0 a\n').own_directory
    assert not made("MASK=0 a\n").own_directory


def test_a_script_with_too_many_ways_through_it_is_given_up() -> None:
    calls = "".join(f"f{n}() {{ {f'f{n + 1}; ' * 4}}}\n" for n in range(9))
    with pytest.raises(Unfit, match="too many ways"):
        made(f"{calls}f9() {{ a; }}\nf0\nMASK=0 b\n")
