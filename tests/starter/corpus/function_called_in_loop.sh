#!/bin/bash
predict() {
    f="$1"
    name=$(basename "$f" .fasta)
    if [ -e "out/$name.done" ]; then return 0; fi
    CUDA_VISIBLE_DEVICES=$2 python predict.py --input "$f" --out "out/$name"
}
i=0
for f in in/*.fasta; do
    predict "$f" $((i % 2)) &
    i=$((i+1))
done
wait
