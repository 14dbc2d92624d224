#!/bin/bash
for i in 0 1; do
    docker run --rm -d --gpus "device=$i" -v $PWD:/work image:latest python /work/train.py --fold $i
done
docker run -e CUDA_VISIBLE_DEVICES=1 image:latest python x.py
