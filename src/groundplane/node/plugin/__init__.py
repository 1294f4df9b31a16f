"""`nvidia-device-plugin`: offers a machine's GPUs to the kubelet and hands them out to containers.

`main` is the program's life, `server` one resource on its socket; `allocation`, `answers` and `health` decide and do
nothing. Which GPUs there are is `devices`' business, which resource each belongs to that of `resources`.
"""
