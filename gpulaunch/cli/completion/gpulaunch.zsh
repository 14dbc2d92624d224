#compdef gpulaunch
# Completion of gpulaunch in zsh.
_gpulaunch() {
    local kind value text
    local -a values shown open
    while IFS=$'\t' read -r kind value text; do
        case $kind in
        p) values+=("$value") shown+=("$value${text:+  -- $text}") ;;
        n) open+=("$value") ;;
        f) _files ;;
        d) _files -/ ;;
        c) _command_names -e ;;
        esac
    done < <(_GPULAUNCH_COMPLETE=zsh ${~${(Q)words[1]}} "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" \
        2>/dev/null </dev/null)
    [[ $PREFIX == --*=* ]] && compset -P 1 '*='
    (( $#values )) && compadd -V gpulaunch -l -d shown -a values
    (( $#open )) && compadd -V gpulaunch -S '' -a open
}
if [[ ${funcstack[1]} == _gpulaunch ]]; then
    _gpulaunch "$@"
else
    compdef _gpulaunch gpulaunch
fi
