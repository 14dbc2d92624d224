#!/bin/sh
# run: sh {name}
set -eu
podman run --rm --device "nvidia.com/gpu=$GPULAUNCH_GPU_UUID" -v "$PWD:/work" image:latest python /work/predict.py --device cuda:0
apptainer exec --nv -B "$PWD" image.sif python predict.py
apptainer exec --nv --cleanenv $OPTIONS image.sif python predict.py
apptainer exec --nv --cleanenv --env "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" image.sif python predict.py
echo "docker run --gpus all image" > how-it-was-run.txt
cat > README.txt <<'EOF'
docker run --gpus all image python predict.py --device cuda:1
CUDA_VISIBLE_DEVICES=0,1 python predict.py
EOF
