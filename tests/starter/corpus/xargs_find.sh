#!/bin/bash
find in -maxdepth 1 -name '*.fasta' -print0 | xargs -0 -n 1 -P 2 sh -c 'CUDA_VISIBLE_DEVICES=$(($$ % 2)) python fold.py "$0" --out "out/$(basename "$0")"'
