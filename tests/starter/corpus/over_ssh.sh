#!/bin/bash
for host in node1 node2; do
    ssh $host "cd /data && CUDA_VISIBLE_DEVICES=0 nohup python train.py > log 2>&1 &"
done
