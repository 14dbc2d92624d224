"""The configuration files: the machine's, which root writes, and the user's own.

    /etc/gpulaunch/config.yaml ────────────┐   files: are they there, and as they were?
    $XDG_CONFIG_HOME/gpulaunch/config.yaml ┴▶ reading: text -> tree -> keys ─▶ model.Configuration

Owns what the keys mean and which file wins; `gpulaunch.config` alone opens these files. Where there
is none, nothing but two looks at paths is done, and no parser imported. Acts on no setting itself.
"""
