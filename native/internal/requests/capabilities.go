package requests

import (
	"fmt"
	"slices"
	"strings"
)

const driverCapabilities = "NVIDIA_DRIVER_CAPABILITIES"

// privilegedOnly are the variables that only a privileged container may use.
var privilegedOnly = []string{"NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"}

// CheckCapabilities is the error for a container of mode legacy that asks for what it may not have: a driver capability
// that is not supported here, or MIG administration without being privileged.
func (c *Container) CheckCapabilities(supported string) error {
	known := Items(supported)
	for _, capability := range Items(c.env[driverCapabilities]) {
		if capability != "all" && !slices.Contains(known, capability) {
			return fmt.Errorf(
				"unsupported capabilities found in '%s' (allowed '%s')", c.env[driverCapabilities], strings.Join(known, ","),
			)
		}
	}
	for _, variable := range privilegedOnly {
		if c.env[variable] != "" && !c.privileged {
			return fmt.Errorf("cannot set %s in non privileged container", variable)
		}
	}
	return nil
}
