package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"groundplane.dev/native/internal/config"
	"groundplane.dev/native/internal/logging"
	"groundplane.dev/native/internal/registry"
	"groundplane.dev/native/internal/requests"
	"groundplane.dev/native/internal/requirements"
)

const (
	propertiesName = "properties.json"
	channelKind    = "nvidia.com/imex-channel"
)

// shimSpecs is the folder that the toolkit keeps beside config.toml.
type shimSpecs struct {
	folder     string
	registry   *registry.Registry
	properties *properties
}

// loadShimSpecs reads the folder where the mode or the devices need it.
func loadShimSpecs(settings *config.Config, mode string, devices []string) (*shimSpecs, error) {
	kept := &shimSpecs{folder: settings.ShimSpecs()}
	isAutomatic := func(device string) bool { return strings.HasPrefix(device, automaticKind+"=") }
	if mode == "cdi" && settings.Runtime.Modes.CDI.DefaultKind != automaticKind && !slices.ContainsFunc(devices, isAutomatic) {
		return kept, nil
	}
	kept.registry = registry.Open([]string{kept.folder}, append(requests.GatedKinds(), automaticKind, channelKind)...)
	var err error
	kept.properties, err = readProperties(filepath.Join(kept.folder, propertiesName))
	return kept, err
}

// resolve turns qualified names with any id of a GPU into those of the spec.
func (s *shimSpecs) resolve(names []string) ([]string, error) {
	resolved := make([]string, len(names))
	for index, name := range names {
		id := strings.TrimPrefix(name, automaticKind+"=")
		if s.properties != nil {
			if alias, found := s.properties.Aliases[id]; found {
				id = alias
			}
		}
		resolved[index] = automaticKind + "=" + id
		if !s.registry.Has(resolved[index]) {
			return nil, s.unknown(id)
		}
	}
	return resolved, nil
}

func (s *shimSpecs) unknown(id string) error {
	var offered []string
	for _, name := range s.registry.Names() {
		if known, isGPU := strings.CutPrefix(name, automaticKind+"="); isGPU {
			offered = append(offered, known)
		}
	}
	if len(offered) == 0 {
		return fmt.Errorf(
			"unknown device %q: there are no CDI specs for the NVIDIA runtime in %s; the toolkit's pod on this node writes them%s",
			id, s.folder, s.registry.Problems(),
		)
	}
	return fmt.Errorf(
		"unknown device %q: this node offers %s; if devices have changed, the toolkit's pod on this node refreshes %s%s",
		id, strings.Join(offered, ", "), s.folder, s.registry.Problems(),
	)
}

// extraDevices are the devices beside GPUs that the container has switched on. A class of which the node has none is
// passed over; an IMEX channel that is missing is an error.
func (s *shimSpecs) extraDevices(container *requests.Container, rules requests.Rules, log *logging.Logger) ([]string, error) {
	var names []string
	for _, kind := range container.Gated() {
		name := kind + "=all"
		if !s.registry.Has(name) {
			log.Warningf("passing over %s: this node has no such devices%s", name, s.registry.Problems())
			continue
		}
		names = append(names, name)
	}
	channels, err := container.ImexChannels(rules)
	if err != nil {
		return nil, err
	}
	for _, channel := range channels {
		if channel == "all" {
			names = append(names, s.allChannels()...)
			continue
		}
		name := channelKind + "=" + channel
		if !s.registry.Has(name) {
			return nil, fmt.Errorf("IMEX channel %s does not exist on this node (no device %s in %s)%s", channel, name, s.folder, s.registry.Problems())
		}
		names = append(names, name)
	}
	return names, nil
}

func (s *shimSpecs) allChannels() []string {
	return slices.DeleteFunc(s.registry.Names(), func(name string) bool { return !strings.HasPrefix(name, channelKind+"=") })
}

// properties are facts about the node that the toolkit writes beside the specs.
type properties struct {
	Driver string `json:"driver"`
	CUDA   string `json:"cuda"`
	GPUs   []struct {
		UUID  string `json:"uuid"`
		Arch  string `json:"arch"`
		Brand string `json:"brand"`
	} `json:"gpus"`
	// Aliases are further ids of devices, by the name that the spec has for them: "MIG-GPU-<uuid>/<gi>/<ci>" cannot be
	// the name of a CDI device.
	Aliases map[string]string `json:"aliases"`
}

func readProperties(path string) (*properties, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what the toolkit says of this node: %w", err)
	}
	read := &properties{}
	if err := json.Unmarshal(text, read); err != nil {
		return nil, fmt.Errorf("%s is not valid; restart the toolkit's pod on this node, which writes it: %w", path, err)
	}
	return read, nil
}

// of are the properties for conditions of each GPU asked for; of every GPU where an id does not tell which one it is
// of. Without a GPU there are those of the driver only.
func (p *properties) of(devices []string) []requirements.Properties {
	var all []requirements.Properties
	for index, gpu := range p.GPUs {
		if slices.ContainsFunc(devices, func(device string) bool { return p.mayBe(device, index, gpu.UUID) }) {
			all = append(all, p.with(map[string]string{"arch": gpu.Arch, "brand": gpu.Brand}))
		}
	}
	if len(all) == 0 {
		all = append(all, p.with(nil))
	}
	return all
}

func (p *properties) mayBe(device string, index int, uuid string) bool {
	device = strings.TrimPrefix(device, automaticKind+"=")
	if alias, found := p.Aliases[device]; found {
		device = alias
	}
	gpu, _, _ := strings.Cut(device, ":") // g:m
	if _, err := strconv.Atoi(gpu); err == nil {
		return gpu == strconv.Itoa(index)
	}
	if strings.HasPrefix(device, "GPU-") {
		return device == uuid
	}
	return device != "none"
}

func (p *properties) with(more map[string]string) requirements.Properties {
	known := requirements.Properties{}
	maps.Copy(known, map[string]string{"driver": p.Driver, "cuda": p.CUDA})
	maps.Copy(known, more)
	maps.DeleteFunc(known, func(_, value string) bool { return value == "" })
	return known
}
