#!/bin/bash
# one line per card, as typed into two terminals
CUDA_VISIBLE_DEVICES=0 python predict.py --input in/a.fasta --out out/a > a.log 2>&1 &
CUDA_VISIBLE_DEVICES=1 python predict.py --input in/b.fasta --out out/b > b.log 2>&1 &
wait
