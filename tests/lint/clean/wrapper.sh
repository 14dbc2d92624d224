#!/usr/bin/env bash
# run: bash {name} --device cuda:0 --lr 1e-3
# Usage: wrapper.sh --device cuda:1
set -o pipefail
cd "$(dirname "$0")"
log=train-$(date +%s).log
if [[ $# -lt 1 ]]; then
    echo "usage: $0 --device cuda:1" >&2
    exit 2
fi
nvidia-smi --query-gpu=index,name -i 1 --format=csv || true
grep -c "cuda:1" old.log || true
python argparse_default_overridden.py --gpu-id 0 "$@" 2>&1 | tee "$log"
