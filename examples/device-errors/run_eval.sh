#!/usr/bin/env bash
# As an evaluation script of MiniCPM-V has it (eval_mm/vqaeval/shell/run_inference.sh): its own mask
# of eight cards, whatever the launcher has set.
set -euo pipefail
export CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"
python minicpm_map.py
