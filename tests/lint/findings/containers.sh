#!/bin/bash
# run: bash {name}
# A container that each of these starts sees other jobs' cards, or does not end with the job.
docker run --rm --gpus '"device=1"' -v "$PWD":/work -w /work lab/boltz:2 predict in.yaml
docker compose up --abort-on-container-exit
nvidia-docker run --rm lab/boltz:2 predict in.yaml
podman run --rm --device nvidia.com/gpu=all "$IMAGE" predict in.yaml
apptainer exec --nv --containall --bind "$PWD" boltz.sif boltz predict "$1"
