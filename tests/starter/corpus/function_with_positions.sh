#!/bin/bash
run_exp() {
    local name=$1 gpu=$2
    local steps=${3:-100}
    local dir="out/${name}"
    mkdir -p "$dir"
    echo "$name on GPU $gpu"
    CUDA_VISIBLE_DEVICES=$gpu python train.py --name "$name" --steps $steps --dir "$dir" > "$dir/console.log" 2>&1
}

run_exp walker 0 &
run_exp cheetah 1 500 &
wait
run_exp both 0
