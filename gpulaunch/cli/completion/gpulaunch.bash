# Completion of gpulaunch in bash.
_gpulaunch() {
    local kind value found
    COMPREPLY=()
    while IFS=$'\t' read -r kind value; do
        case $kind in
        p) COMPREPLY+=("$value") ;;
        n) COMPREPLY+=("$value") && compopt -o nospace ;;
        f) compopt -o bashdefault -o default ;;
        d) compopt -o dirnames ;;
        c) while read -r found; do COMPREPLY+=("$found"); done < <(compgen -c -- "$2") ;;
        esac
    done < <(_GPULAUNCH_COMPLETE=bash _GPULAUNCH_LINE=${COMP_LINE:0:COMP_POINT} \
        _GPULAUNCH_BREAKS=$COMP_WORDBREAKS "${1/#\~/$HOME}" 2>/dev/null </dev/null)
}
complete -o nosort -F _gpulaunch gpulaunch 2>/dev/null || complete -F _gpulaunch gpulaunch
