#!/bin/bash
(
  export CUDA_VISIBLE_DEVICES=0
  for x in a b; do python x.py $x; done
) &
(
  export CUDA_VISIBLE_DEVICES=1
  for x in c d; do python x.py $x; done
) &
wait
