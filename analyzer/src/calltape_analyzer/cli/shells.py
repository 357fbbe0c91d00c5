"""``calltape completion``: the script by which a shell completes the words of ``calltape``.

The scripts ask :mod:`~calltape_analyzer.cli.completion`, and evaluate nothing of what it answers:
names may come from tapes.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

__all__ = ["SCRIPTS", "Shell", "completion"]

_BASH = r"""
_calltape_completion() {
    local kind value help
    COMPREPLY=()
    while IFS=$'\t' read -r kind value help; do
        [[ $kind == path ]] && compopt -o filenames 2>/dev/null
        COMPREPLY+=("$value")
    done < <(_CALLTAPE_COMPLETE=bash "$1" \
        "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    # After part of an address or a list there is more to write.
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=:] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o nosort -F _calltape_completion calltape 2>/dev/null ||
    complete -F _calltape_completion calltape
"""

_ZSH = r"""
#compdef calltape
_calltape() {
    local kind value help
    local -a values shown
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            plain) values+=("$value"); shown+=("$value${help:+  -- $help}") ;;
            path) compadd -f -- "$value" ;;
            files) if [[ -n $value ]]; then _files -g "$value"; else _files; fi ;;
        esac
    done < <(_CALLTAPE_COMPLETE=zsh "$words[1]" \
        "${(@Q)words[2,CURRENT-1]}" "$words[CURRENT]" 2>/dev/null)
    (( $#values )) && compadd -l -d shown -a values
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _calltape "$@"
else
    compdef _calltape calltape
fi
"""

_FISH = r"""
function __calltape_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    _CALLTAPE_COMPLETE=fish command $words[1] $words[2..-1] "$current" 2>/dev/null |
        string replace -r '^[a-z]+\t' ''
end
complete --command calltape --no-files --keep-order --arguments '(__calltape_complete)'
"""


class Shell(str, Enum):
    """A shell that has a script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


SCRIPTS = {Shell.bash: _BASH, Shell.zsh: _ZSH, Shell.fish: _FISH}


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """The script by which a shell completes verbs and tapes.

    Put the line eval "$(calltape completion bash)" into ~/.bashrc, or write the script once where
    bash-completion looks, as below. For zsh, the line goes into ~/.zshrc, after compinit.
    docs/terminal.md has more.

    \b
    calltape completion bash > ~/.local/share/bash-completion/completions/calltape
    calltape completion zsh
    calltape completion fish > ~/.config/fish/completions/calltape.fish
    """
    print(SCRIPTS[shell].strip())
