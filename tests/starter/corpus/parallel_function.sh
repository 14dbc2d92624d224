#!/bin/bash
one() {
    local gpu=$(( $2 - 1 ))
    CUDA_VISIBLE_DEVICES=$gpu python x.py "$1" --tag "t $1"
}
export -f one
parallel -j 2 one {} {%} ::: a b c
