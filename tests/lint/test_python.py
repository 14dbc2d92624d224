"""The words of what is found in programs, and the cases that the corpora do not hold."""

from __future__ import annotations

import pytest

from gpulaunch.diagnose.lint.finding import Given, SetOptions
from tests.lint.helpers import in_python, in_shell, rules

MASK = 'os.environ["CUDA_VISIBLE_DEVICES"] = "1"\n'


def test_before_the_import_the_mask_overrides_the_launcher_s() -> None:
    (found,) = in_python(f"import os\n{MASK}import torch\n")
    assert found.rule == "own-mask"
    assert "over the job's own" in found.why


def test_the_message_tells_what_the_job_has_and_how_to_mend_it() -> None:
    (found,) = in_python('x.to("cuda:3")', Given(gpus=2))
    assert str(found) == (
        "x.py:1:6: cuda:3 is not there: this job has 2 cards, cuda:0 to cuda:1 (gpus: 2);"
        " write cuda:0, or gpus: 4 in the job file [device-index]\n"
        '    x.to("cuda:3")\n'
        "         ^"
    )


UUIDS = Given(gpus=1, uuid=True)


@pytest.mark.parametrize(
    "code",
    [
        "int(os.environ['CUDA_VISIBLE_DEVICES'])",
        "[int(x) for x in os.environ['CUDA_VISIBLE_DEVICES'].split(',')]",
        "list(map(int, os.getenv('CUDA_VISIBLE_DEVICES').split(',')))",
        "int(os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',')[0])",
        "ids = os.environ['CUDA_VISIBLE_DEVICES'].split(',')\nphysical = int(ids[rank])",
        "mask = os.environ['CUDA_VISIBLE_DEVICES']\nfor x in mask.split(','):\n    int(x.strip())",
    ],
)
def test_what_reads_the_mask_as_numbers_is_found_where_it_has_uuids(code: str) -> None:
    (found,) = in_python(f"import os, subprocess\n{code}\n", UUIDS)
    assert found.rule == "mask-value"
    assert "UUID" in found.why
    assert in_python(f"import os, subprocess\n{code}\n") == []


@pytest.mark.parametrize(
    "code",
    [
        "[x for x in os.environ['CUDA_VISIBLE_DEVICES'].split(',')]",
        "len(os.environ['CUDA_VISIBLE_DEVICES'].split(','))",
        "[int(x) for x in os.environ['SIZES'].split(',')]",
        "list(map(str, os.environ['CUDA_VISIBLE_DEVICES'].split(',')))",
        "for x in os.environ['CUDA_VISIBLE_DEVICES'].split(','): pass\nfor x in sizes: int(x)",
    ],
)
def test_what_reads_uuids_as_well_is_not_found(code: str) -> None:
    assert in_python(f"import os\n{code}\n", UUIDS) == []


def test_a_mask_from_an_option_is_found_where_the_option_is_set() -> None:
    code = 'import os\nif args.gpu:\n    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu\n'
    assert in_python(code) == []
    given = Given(options=SetOptions(frozenset({"gpu"})))
    assert rules(in_python(code, given)) == ["own-mask"]


@pytest.mark.parametrize("cards", range(4))
def test_a_card_is_there_where_the_job_has_more_than_its_number(cards: int) -> None:
    assert len(in_python('x.to("cuda:2")', Given(gpus=cards))) == (cards <= 2)


def test_an_imported_module_s_main_part_is_not_run() -> None:
    code = 'if __name__ == "__main__":\n    x.to("cuda:1")\n'
    assert rules(in_python(code)) == ["device-index"]
    assert in_python(code, main=False) == []


@pytest.mark.parametrize(
    "guard",
    [
        "if torch.cuda.device_count() > 1:",
        "if len(devices) > 1 and big:",
        "if n_gpus >= 2:",
        "if False:",
        "if TYPE_CHECKING:",
        "while num_devices > 1:",
    ],
)
def test_a_guard_is_believed(guard: str) -> None:
    assert in_python(f'import torch\n{guard}\n    x.to("cuda:1")\n') == []
    assert rules(in_python('import torch\nif fast:\n    x.to("cuda:1")\n')) == ["device-index"]


@pytest.mark.parametrize(
    "harmless",
    [
        'os.environ["CUDA_VISIBLE_DEVICES"] = ""',
        'os.environ["CUDA_VISIBLE_DEVICES"] = "-1"',
        'os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")',
        'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["GPULAUNCH_GPU_UUID"]',
        'd["CUDA_VISIBLE_DEVICES_LIST"] = "0"',
        'saved = os.environ.pop("CUDA_VISIBLE_DEVICES", None)',
        'x = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0]',
        'os.environ["MASTER_PORT"] = str(port)',
        'os.environ["MASTER_PORT"] = "0"',
        'os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"',
    ],
)
def test_the_environment_may_be_used_so(harmless: str) -> None:
    assert in_python(f"import os\n{harmless}\n") == []


@pytest.mark.parametrize("comment", ["# gpulaunch: ok", "# gpulaunch: ok own-mask  (our own box)"])
def test_a_comment_silences_a_line_of_shell(comment: str) -> None:
    assert in_shell(f"CUDA_VISIBLE_DEVICES=1 python x  {comment}\n") == []
    assert in_shell(f"{comment}\nCUDA_VISIBLE_DEVICES=1 python x\n") == []
    assert in_shell(f"CUDA_VISIBLE_DEVICES=1 \\\n  python x  {comment}\n") == []
    assert rules(in_shell(f"true {comment}\n\nCUDA_VISIBLE_DEVICES=1 python x\n")) == ["own-mask"]


def test_a_comment_for_another_rule_or_a_misspelt_one_silences_nothing() -> None:
    for comment in ("# gpulaunch: ok daemon", "# gpulaunch: ok own-mesk"):
        assert rules(in_shell(f"CUDA_VISIBLE_DEVICES=1 python x {comment}\n")) == ["own-mask"]
