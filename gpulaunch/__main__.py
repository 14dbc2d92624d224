"""`python -m gpulaunch`."""

from gpulaunch.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
