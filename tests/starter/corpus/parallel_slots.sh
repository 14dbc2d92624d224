#!/bin/bash
parallel -j 4 --linebuffer --joblog jobs.tsv \
    'CUDA_VISIBLE_DEVICES=$(({%} - 1)) python x.py {}' ::: a b c d e
