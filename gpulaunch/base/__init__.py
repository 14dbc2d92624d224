"""What every part of gpulaunch uses: text, errors, files, time, the loop, cgroups, JSON, words."""
