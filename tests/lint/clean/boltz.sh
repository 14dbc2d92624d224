#!/usr/bin/env bash
# run: bash {name} inputs {{{{out}}}}
set -euo pipefail
in=$1 out=$2
export BOLTZ_CACHE=${BOLTZ_CACHE:-$HOME/.boltz}
boltz predict "$in" --out_dir "$out" --devices 1 --accelerator gpu --use_msa_server --num_workers 2
ls "$out"/boltz_results_*/predictions > "$out/done.txt"
