#!/bin/bash
for lr in 1e-3 1e-4; do
    sbatch --time=02:00:00 job.sh $lr
done
first=$(sbatch --parsable --gres=gpu:2 --wrap "python a.py")
sbatch --dependency=afterok:$first --gres=gpu:1 --wrap="python b.py"
