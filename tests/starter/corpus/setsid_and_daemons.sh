#!/bin/bash
source venv/bin/activate
export OMP_NUM_THREADS=4
CUDA_VISIBLE_DEVICES=0 setsid nohup python a.py </dev/null >a.out 2>&1 &
echo $! > a.pid
CUDA_VISIBLE_DEVICES=1 nohup python b.py > b.out 2>&1 & disown
