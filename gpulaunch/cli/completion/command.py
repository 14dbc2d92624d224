"""`gpulaunch completion`: the script that a shell reads."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script with which bash, zsh or fish completes commands, runs, jobs and files.

    \b
    gpulaunch completion bash > ~/.local/share/bash-completion/completions/gpulaunch
    gpulaunch completion zsh > ~/.zfunc/_gpulaunch
    gpulaunch completion fish > ~/.config/fish/completions/gpulaunch.fish

    For zsh, ~/.zfunc has to be named before compinit, in ~/.zshrc: fpath+=~/.zfunc. Without the
    package bash-completion, ~/.bashrc reads it: source <(gpulaunch completion bash)
    """
    path = Path(__file__).with_name(f"gpulaunch.{shell}")
    click.echo(path.read_text(encoding="utf-8"), nl=False)
