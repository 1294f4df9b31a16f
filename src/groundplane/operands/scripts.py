"""Shell scripts that run in operand containers: the waits, and the entrypoints kept in ConfigMaps.

They are POSIX sh, as operand images carry nothing more. Behaviour: contracts/control-plane.md 4.3
and 9.10.
"""

from typing import Final

from ..api import names

DRIVER_READY: Final = f"{names.VALIDATIONS_DIR}/driver-ready"

STOP_WHEN_ASKED: Final = "trap 'exit 143' TERM"

_WAIT_FOR_DRIVER: Final = f"""\
#!/bin/sh
set -e
{STOP_WHEN_ASKED}

ready={DRIVER_READY}
until [ -f "$ready" ]; do
    echo "the driver is not validated yet: no $ready; looking again in 5 s"
    sleep 5
done

# One KEY=value line a fact about the driver. They are handed on as they are, never evaluated.
while IFS= read -r line || [ -n "$line" ]; do
    printf '%s\\n' "$line"
    case "$line" in
        [A-Za-z_]*=*) export "$line" ;;
    esac
done < "$ready"
"""

TOOLKIT_ENTRYPOINT: Final = f"""\
{_WAIT_FOR_DRIVER}
# Configuring containerd restarts it, and with it this container. The pause keeps that from becoming a fast loop.
sleep 5
exec nvidia-toolkit
"""

DEVICE_PLUGIN_ENTRYPOINT: Final = f"""\
{_WAIT_FOR_DRIVER}
# Switch a device class on when its module is loaded, unless the policy already decided.
switch_on() {{
    eval "current=\\${{$1:-}}"
    if [ -z "$current" ]; then
        export "$1=true"
        echo "$1=true" >> feature-flags.env
    fi
}}
: > feature-flags.env
modules=/proc/modules
[ -r "$modules" ] || modules=/dev/null # a kernel that loads no modules has no list of them
while read -r module _; do
    case "$module" in
        gdrdrv) switch_on GDRCOPY_ENABLED ;;
        nvidia_fs)
            switch_on GDS_ENABLED
            switch_on MOFED_ENABLED
            ;;
    esac
done < "$modules"
cat feature-flags.env
exec nvidia-device-plugin
"""

MIG_MANAGER_ENTRYPOINT: Final = f"""\
{_WAIT_FOR_DRIVER}
# Services of the host hold the GPUs only where the driver is the host's own.
export WITH_SHUTDOWN_HOST_GPU_CLIENTS="$IS_HOST_DRIVER"
exec nvidia-mig-manager
"""

HOLD: Final = "while true; do sleep 86400 & wait $!; done"
"""For ever; a shell that traps a signal notices it at once here, as it waits for a background process."""

DONE_WHEN_ASKED: Final = "trap 'exit 0' TERM"

VALIDATED: Final = f"{DONE_WHEN_ASKED}; echo 'every layer of this node is validated'; {HOLD}"
"""What the validator's main container does once its init containers have passed; it stops at once when asked."""

FORGET_VALIDATIONS: Final = f"rm -f {names.VALIDATIONS_DIR}/*-ready"
"""Run before the validator stops: the next one must prove everything again."""
