# run: python {name} --gpu-count 2
import click
import torch


@click.command()
@click.option("--device", default="cuda", show_default=True, help="like cuda:1")
@click.option("--gpu-count", type=int, default=1)
@click.option("--mode", type=click.Choice(["cpu", "cuda:1"]), default="cpu")
def main(device: str, gpu_count: int, mode: str) -> None:
    """Train on DEVICE, such as cuda:1."""
    click.echo(f"{gpu_count} {mode} cuda:1")
    torch.zeros(1).to(device)


if __name__ == "__main__":
    main()
