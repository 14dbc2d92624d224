# Completion of gpulaunch in fish.
function __gpulaunch_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    env _GPULAUNCH_COMPLETE=fish $program $words[2..] "$current" 2>/dev/null </dev/null |
        while read -d \t kind value text
            switch $kind
                case p n
                    printf '%s\t%s\n' $value $text
                case f
                    __fish_complete_path $current
                case d
                    __fish_complete_directories $current
                case c
                    complete -C -- $current
            end
        end
end
complete -c gpulaunch -f -k -a '(__gpulaunch_complete)'
