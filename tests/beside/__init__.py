"""gpulaunch beside other people's tools: the real ones, which tests/beside/setup installs."""
