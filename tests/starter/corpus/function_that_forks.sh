#!/bin/bash
launch() {
    gpu=$1; shift
    CUDA_VISIBLE_DEVICES=$gpu nohup python train.py "$@" > /dev/null 2>&1 &
    sleep 1
}
launch 0 --model vit --lr 0.1
launch 1 --model "res net" --lr 0.01
wait
