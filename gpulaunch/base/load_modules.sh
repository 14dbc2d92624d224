# Loads environment modules in bash, and becomes the job's program in the environment they leave.
#
#   bash -p -c THIS gpulaunch COUNT MODULE... KEPT OWN FIRST PROGRAM ARGUMENT...
#
# KEPT: names of variables that stay as they are, set or not. OWN: names of the job's own variables,
# which stay too, but for what modules put before or behind them. FIRST: directories that come first
# on PATH again. With -p bash reads no start-up file and takes no function from the environment.
_gpulaunch_modules=("${@:2:$1}")
shift $(($1 + 1))
_gpulaunch_kept="$1 ${!GPULAUNCH_@}" _gpulaunch_own=$2 _gpulaunch_first=$3
shift 3
_gpulaunch_run=("$@")
set --

_gpulaunch_fail() {
    echo "gpulaunch: $1" >&2
    exit 126
}

# Lmod or Environment Modules: what the environment names, else what is installed here.
for _gpulaunch_file in \
    ${LMOD_PKG:+"$LMOD_PKG/init/bash"} ${LMOD_DIR:+"$LMOD_DIR/../init/bash"} \
    ${MODULESHOME:+"$MODULESHOME/init/bash"} \
    /etc/profile.d/{z00_lmod,lmod,modules}.sh /usr/share/{lmod/lmod,modules,Modules}/init/bash; do
    [[ -r $_gpulaunch_file ]] && break
done
[[ -r $_gpulaunch_file ]] || _gpulaunch_fail \
    "modules: neither Lmod nor Environment Modules is known on $HOSTNAME: set MODULESHOME to its directory"

declare -A _gpulaunch_before
for _gpulaunch_name in $_gpulaunch_kept $_gpulaunch_own; do
    [[ ${!_gpulaunch_name+set} ]] && _gpulaunch_before[$_gpulaunch_name]=${!_gpulaunch_name}
done

# What is printed goes to the log; standard input may be a worker's.
. "$_gpulaunch_file" </dev/null >&2
declare -F module >/dev/null || _gpulaunch_fail \
    "modules: $_gpulaunch_file defines no module command on $HOSTNAME"
if ! module load "${_gpulaunch_modules[@]}" </dev/null >&2; then
    for _gpulaunch_name in "${_gpulaunch_modules[@]}"; do
        module is-avail "$_gpulaunch_name" </dev/null >/dev/null 2>&1 || _gpulaunch_fail \
            "module load $_gpulaunch_name: there is none on $HOSTNAME; \`module avail ${_gpulaunch_name%%/*}\` lists what there is"
    done
    _gpulaunch_fail "module load ${_gpulaunch_modules[*]} failed on $HOSTNAME; what it says stands above"
fi

for _gpulaunch_name in $_gpulaunch_own; do
    [[ ${_gpulaunch_before[$_gpulaunch_name]+set} &&
        ":${!_gpulaunch_name}:" == *":${_gpulaunch_before[$_gpulaunch_name]}:"* ]] ||
        _gpulaunch_kept+=" $_gpulaunch_name"
done
for _gpulaunch_name in $_gpulaunch_kept; do
    unset -v "$_gpulaunch_name"
    [[ ${_gpulaunch_before[$_gpulaunch_name]+set} ]] &&
        export "$_gpulaunch_name=${_gpulaunch_before[$_gpulaunch_name]}"
done
[[ ${PATH-} ]] || _gpulaunch_fail "module load ${_gpulaunch_modules[*]} leaves no PATH"
[[ -z $_gpulaunch_first ]] || export PATH="$_gpulaunch_first:$PATH"

exec -- "${_gpulaunch_run[@]}"
