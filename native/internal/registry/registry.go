// Package registry finds CDI devices in folders of specs and applies them, by the rules of the standard library for it
// and in less time: a container's start waits for it. Only files that can have a wanted kind are read, and JSON is read
// as JSON. Wherever that finds anything out of the ordinary (a file that is not valid, a device that two files have, one
// that is missing) the library decides, and gives the errors.
package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// Registry is what folders have of some kinds of devices. Later folders go before earlier ones.
type Registry struct {
	folders []string
	devices map[string]device // nil: the library decides
	library *cdi.Cache
}

type device struct {
	spec     *cdispecs.Spec
	edits    *cdispecs.ContainerEdits
	priority int
}

// errOutOfTheOrdinary hands the decision to the library.
var errOutOfTheOrdinary = errors.New("the library decides")

// Open reads the devices of these kinds, such as "nvidia.com/gpu".
func Open(folders []string, kinds ...string) *Registry {
	registry := &Registry{folders: folders, devices: map[string]device{}}
	for priority, folder := range folders {
		if err := registry.readFolder(folder, priority, kinds); err != nil {
			registry.devices = nil
			break
		}
	}
	return registry
}

// Has says whether there is a device with this qualified name, of one of the kinds.
func (r *Registry) Has(name string) bool {
	if r.devices == nil {
		return r.all().GetDevice(name) != nil
	}
	_, found := r.devices[name]
	return found
}

// Names are the qualified names of every device, sorted.
func (r *Registry) Names() []string { return r.all().ListDevices() }

// Inject applies devices to a container's configuration. If one is not to be found nothing is applied, and the error
// names it, and the files that do not count.
func (r *Registry) Inject(spec *specs.Spec, names ...string) error {
	if edits := r.edits(names); edits != nil {
		if err := edits.Apply(spec); err != nil {
			return fmt.Errorf("failed to inject devices: %w", err)
		}
		return nil
	}
	if _, err := r.all().InjectDevices(spec, names...); err != nil {
		return fmt.Errorf("could not inject CDI devices from %s: %w%s", strings.Join(r.folders, ", "), err, r.Problems())
	}
	return nil
}

// Problems are the reasons why files of the folders do not count, for the end of a message.
func (r *Registry) Problems() string {
	var text strings.Builder
	found := r.all().GetErrors()
	for _, path := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&text, "; %s: %v", path, errors.Join(found[path]...))
	}
	return strings.ReplaceAll(text.String(), "\n", "; ")
}

// edits are those of the devices together: common ones of a spec once, before those of its first device. They are nil
// if a device is missing.
func (r *Registry) edits(names []string) *cdi.ContainerEdits {
	edits := &cdi.ContainerEdits{}
	seen := map[*cdispecs.Spec]bool{}
	for _, name := range names {
		found, is := r.devices[name]
		if !is {
			return nil
		}
		if !seen[found.spec] {
			seen[found.spec] = true
			edits.Append(&cdi.ContainerEdits{ContainerEdits: &found.spec.ContainerEdits})
		}
		edits.Append(&cdi.ContainerEdits{ContainerEdits: found.edits})
	}
	return edits
}

func (r *Registry) all() *cdi.Cache {
	if r.library == nil {
		r.library, _ = cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(r.folders...)) // it gives no error
	}
	return r.library
}

func (r *Registry) readFolder(folder string, priority int, kinds []string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		extension := filepath.Ext(entry.Name())
		if entry.IsDir() || (extension != ".json" && extension != ".yaml") {
			continue
		}
		spec, err := read(filepath.Join(folder, entry.Name()), priority, kinds)
		if err != nil {
			return err
		}
		if spec != nil && slices.Contains(kinds, spec.Kind) {
			if err := r.add(spec, priority); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Registry) add(spec *cdispecs.Spec, priority int) error {
	for index := range spec.Devices {
		name := spec.Kind + "=" + spec.Devices[index].Name
		if other, found := r.devices[name]; found && other.priority == priority {
			return errOutOfTheOrdinary
		}
		r.devices[name] = device{spec: spec, edits: &spec.Devices[index].ContainerEdits, priority: priority}
	}
	return nil
}

// read reads a file; nil if it can have none of the kinds.
func read(path string, priority int, kinds []string) (*cdispecs.Spec, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(text, '\\') >= 0 { // escapes could hide a kind, and YAML has others than JSON
		return nil, errOutOfTheOrdinary
	}
	if !slices.ContainsFunc(kinds, func(kind string) bool { return bytes.Contains(text, []byte(kind)) }) {
		return nil, nil
	}
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		return parseJSON(text)
	}
	spec, err := cdi.ReadSpec(path, priority)
	if err != nil {
		return nil, err
	}
	return spec.Spec, nil
}

// parseJSON reads a spec and checks what the library would check; but for the case of keys, which Go's JSON ignores.
func parseJSON(text []byte) (*cdispecs.Spec, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	spec := &cdispecs.Spec{}
	if err := decoder.Decode(spec); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errOutOfTheOrdinary
	}
	vendor, class := parser.ParseQualifier(spec.Kind)
	if err := errors.Join(
		cdispecs.ValidateVersion(spec), parser.ValidateVendorName(vendor), parser.ValidateClassName(class), validate(&spec.ContainerEdits),
	); err != nil {
		return nil, err
	}
	if len(spec.Annotations) > 0 || len(spec.Devices) == 0 {
		return nil, errOutOfTheOrdinary
	}
	names := make(map[string]bool, len(spec.Devices))
	for index := range spec.Devices {
		device := &spec.Devices[index]
		if names[device.Name] || len(device.Annotations) > 0 || isEmpty(&device.ContainerEdits) {
			return nil, errOutOfTheOrdinary
		}
		names[device.Name] = true
		if err := errors.Join(parser.ValidateDeviceName(device.Name), validate(&device.ContainerEdits)); err != nil {
			return nil, err
		}
	}
	return spec, nil
}

func validate(edits *cdispecs.ContainerEdits) error {
	return (&cdi.ContainerEdits{ContainerEdits: edits}).Validate()
}

func isEmpty(edits *cdispecs.ContainerEdits) bool {
	return edits.IntelRdt == nil && len(edits.Env)+len(edits.DeviceNodes)+len(edits.NetDevices)+len(edits.Hooks)+
		len(edits.Mounts)+len(edits.AdditionalGIDs) == 0
}
