#!/bin/bash
seq 0 3 | xargs -n 1 -P 4 --process-slot-var=CUDA_VISIBLE_DEVICES python train.py --fold
