// Package requests finds out which devices a container asks for (contracts/toolkit-cdi.md 6.2 and 6.3). It reads the
// container's configuration and nothing else; whether the devices exist is found out elsewhere.
package requests

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"groundplane.dev/native/internal/config"
)

const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	imexChannels   = "NVIDIA_IMEX_CHANNELS"
	volumeRoot     = "/var/run/nvidia-container-devices/"
	lastChannel    = 1048575
)

// Rules are the settings that decide whether a request counts.
type Rules struct {
	AnnotationPrefixes    []string
	AcceptVolumeMounts    bool
	AcceptEnvUnprivileged bool
	IgnoreImexChannels    bool
	// PreferredVariables stand for NVIDIA_VISIBLE_DEVICES where a container has one of them.
	PreferredVariables []string
}

// RulesOf takes the rules from config.toml.
func RulesOf(c *config.Config) Rules {
	return Rules{
		AnnotationPrefixes:    c.Runtime.Modes.CDI.AnnotationPrefixes,
		AcceptVolumeMounts:    c.AcceptVolumeMounts,
		AcceptEnvUnprivileged: c.AcceptEnvUnprivileged,
		IgnoreImexChannels:    c.Features.IgnoreImexChannelRequests,
		PreferredVariables:    Items(c.SwarmResource),
	}
}

// Container is what a container's configuration says about requests.
type Container struct {
	env         map[string]string
	annotations map[string]string
	mounts      []specs.Mount
	privileged  bool
	warn        func(format string, values ...any)
}

// Of reads a container's configuration. Requests that do not count are told to warn.
func Of(spec *specs.Spec, warn func(format string, values ...any)) *Container {
	container := &Container{env: map[string]string{}, annotations: spec.Annotations, mounts: spec.Mounts, warn: warn}
	if spec.Process == nil {
		return container
	}
	for _, variable := range spec.Process.Env {
		name, value, _ := strings.Cut(variable, "=")
		container.env[name] = value
	}
	if capabilities := spec.Process.Capabilities; capabilities != nil {
		container.privileged = slices.Contains(capabilities.Bounding, "CAP_SYS_ADMIN")
	}
	return container
}

// Env is the value of a variable of the container, empty if it has none.
func (c *Container) Env(name string) string { return c.env[name] }

// Variables are the container's variables by name.
func (c *Container) Variables() map[string]string { return c.env }

// Privileged says whether the container may have every capability.
func (c *Container) Privileged() bool { return c.privileged }

// Legacy says whether the image is of the time before NVIDIA_REQUIRE_CUDA; such images get every GPU.
func (c *Container) Legacy() bool {
	return c.env["CUDA_VERSION"] != "" && c.env["NVIDIA_REQUIRE_CUDA"] == ""
}

// Devices are the devices asked for, each once, in order: by annotations, else by volume mounts, else by variables.
func (c *Container) Devices(rules Rules) []string {
	if devices := c.annotated(rules.AnnotationPrefixes); len(devices) > 0 {
		return devices
	}
	if rules.AcceptVolumeMounts {
		if devices := c.mounted(); len(devices) > 0 {
			return devices
		}
	}
	variables := c.variables(rules.PreferredVariables)
	return c.permitted(rules, variables, c.listed(variables))
}

// permitted is the list, or nothing if an unprivileged container may not ask by variables.
func (c *Container) permitted(rules Rules, variables, list []string) []string {
	if len(list) > 0 && !c.privileged && !rules.AcceptEnvUnprivileged {
		c.warn(
			"Ignoring devices requested by environment variable(s) in unprivileged container: %v (accept-nvidia-visible-devices-envvar-when-unprivileged is false)",
			variables,
		)
		return nil
	}
	return list
}

func (c *Container) annotated(prefixes []string) []string {
	var devices []string
	for _, key := range slices.Sorted(maps.Keys(c.annotations)) {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			devices = append(devices, Items(c.annotations[key])...)
		}
	}
	return unique(devices)
}

func (c *Container) mounted() []string {
	var devices []string
	for _, request := range c.volumeRequests() {
		if strings.HasPrefix(request, "imex/") {
			continue
		}
		if name, isCDI := strings.CutPrefix(request, "cdi/"); isCDI {
			qualified, err := qualifiedByVolume(name)
			if err != nil {
				c.warn("Ignoring invalid mount request for CDI device %s: %v", request, err)
				continue
			}
			request = qualified
		}
		devices = append(devices, request)
	}
	return unique(devices)
}

func qualifiedByVolume(name string) (string, error) {
	if parser.IsQualifiedName(name) {
		return name, nil
	}
	parts := strings.SplitN(name, "/", 3)
	if len(parts) != 3 {
		return "", fmt.Errorf("want cdi/<vendor>/<class>/<device> or cdi/<vendor>/<class>=<device>")
	}
	return fmt.Sprintf("%s/%s=%s", parts[0], parts[1], parts[2]), nil
}

// volumeRequests are the names below the well-known folder at which /dev/null is mounted.
func (c *Container) volumeRequests() []string {
	var requests []string
	for _, mount := range c.mounts {
		request, below := strings.CutPrefix(path.Clean(mount.Destination), volumeRoot)
		if below && path.Clean(mount.Source) == "/dev/null" {
			requests = append(requests, request)
		}
	}
	return unique(requests)
}

// variables are the names of the variables that count.
func (c *Container) variables(preferred []string) []string {
	var set []string
	for _, name := range preferred {
		if _, isSet := c.env[name]; isSet {
			set = append(set, name)
		}
	}
	if len(set) == 0 {
		return []string{visibleDevices}
	}
	return set
}

// listed is the list that these variables hold together, with the special words resolved.
func (c *Container) listed(names []string) []string {
	var items []string
	isSet := false
	for _, name := range names {
		value, found := c.env[name]
		isSet = isSet || found
		items = append(items, Items(value)...)
	}
	if !isSet && c.Legacy() {
		return []string{"all"}
	}
	return resolveWords(items)
}

func resolveWords(items []string) []string {
	if slices.Contains(items, "void") {
		return nil
	}
	for _, item := range items {
		if item == "all" || item == "none" {
			return []string{item}
		}
	}
	return unique(items)
}

// ImexChannels are the channels asked for: numbers, or "all". A channel that cannot exist is an error.
func (c *Container) ImexChannels(rules Rules) ([]string, error) {
	if rules.IgnoreImexChannels {
		return nil, nil
	}
	var requested []string
	if rules.AcceptVolumeMounts {
		for _, request := range c.volumeRequests() {
			if channel, isImex := strings.CutPrefix(request, "imex/"); isImex {
				requested = append(requested, channel)
			}
		}
	}
	if len(requested) == 0 {
		names := []string{imexChannels}
		requested = c.permitted(rules, names, c.listed(names))
		if slices.Equal(requested, []string{"all"}) || slices.Equal(requested, []string{"none"}) {
			return nil, nil
		}
	}
	return channels(requested)
}

func channels(requested []string) ([]string, error) {
	var ids []string
	for _, request := range requested {
		if request == "all" {
			return []string{"all"}, nil
		}
		number, err := strconv.ParseUint(strings.TrimPrefix(request, "channel"), 10, 32)
		if err != nil || number > lastChannel {
			return nil, fmt.Errorf("invalid IMEX channel %q: use a number from 0 to %d", request, lastChannel)
		}
		ids = append(ids, strconv.FormatUint(number, 10))
	}
	return unique(ids), nil
}

// gates are the variables that switch on devices beside the GPUs, and the kind of those devices.
var gates = []struct{ variable, kind string }{
	{"NVIDIA_GDS", "nvidia.com/gds"},
	{"NVIDIA_MOFED", "nvidia.com/mofed"},
	{"NVIDIA_GDRCOPY", "nvidia.com/gdrcopy"},
	{"NVIDIA_NVSWITCH", "nvidia.com/nvswitch"},
}

// GatedKinds are the kinds of devices that can be switched on.
func GatedKinds() []string {
	var kinds []string
	for _, gate := range gates {
		kinds = append(kinds, gate.kind)
	}
	return kinds
}

// Gated are the kinds of devices that the container has switched on.
func (c *Container) Gated() []string {
	var kinds []string
	for _, gate := range gates {
		if c.env[gate.variable] == "enabled" {
			kinds = append(kinds, gate.kind)
		}
	}
	return kinds
}

// Items splits a list at its commas, without blanks and empty items.
func Items(list string) []string {
	var items []string
	for _, item := range strings.Split(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func unique(items []string) []string {
	seen := make(map[string]bool, len(items))
	var kept []string
	for _, item := range items {
		if !seen[item] {
			seen[item] = true
			kept = append(kept, item)
		}
	}
	return kept
}
