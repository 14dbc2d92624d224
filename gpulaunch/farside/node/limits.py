"""How long, in seconds, a node's program waits for what."""

NFS_VISIBILITY_TIMEOUT = 60.0  # NFS clients cache what they last saw for up to 60
LOOK_AGAIN = 0.5  # between two looks for a file that NFS does not show yet
LOOK = 5.0  # between two looks whether the client wants an attempt stopped
BEAT = 15.0  # between two signs of life
DRIVER_PATIENCE = 5.0  # for nvidia-smi to list the cards
LEAVING_PATIENCE = 10.0  # for the keepers to exit before this process does
