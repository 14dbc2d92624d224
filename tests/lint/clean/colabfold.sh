#!/bin/bash
# run: ./{name}
# Needs a card; CUDA_VISIBLE_DEVICES=1 was how we used to pick one.
set -e
source ~/miniforge3/etc/profile.d/conda.sh
conda activate colabfold
export TF_FORCE_UNIFIED_MEMORY=1 XLA_PYTHON_CLIENT_MEM_FRACTION=4.0
for fasta in inputs/*.fasta; do
    colabfold_batch --num-models 5 --amber --use-gpu-relax "$fasta" "out/$(basename "$fasta" .fasta)"
done
mmseqs easy-search q.fasta db res tmp --gpu 1
