"""``mpicomp completion``: print the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

INSTALL = {
    "bash": 'put  eval "$(mpicomp completion bash)"  into ~/.bashrc',
    "zsh": 'put  eval "$(mpicomp completion zsh)"  into ~/.zshrc',
    "fish": "mpicomp completion fish > ~/.config/fish/completions/mpicomp.fish",
}


@click.command(help="Print the completion script of SHELL.\n\n\b\n"
               + "\n".join(f"{shell + ':':<6} {how}" for shell, how in INSTALL.items()))
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    from .root import root

    found = get_completion_class(shell)
    assert found is not None, "click has a class for every shell of INSTALL"
    script = found(root, {}, "mpicomp", "_MPICOMP_COMPLETE")
    click.echo(f"# To install: {INSTALL[shell]}")
    click.echo(script.source())
