package shim

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"groundplane.dev/native/internal/config"
	"groundplane.dev/native/internal/logging"
	"groundplane.dev/native/internal/registry"
	"groundplane.dev/native/internal/requests"
	"groundplane.dev/native/internal/requirements"
)

// automaticKind is of devices that need no CDI spec of the user's: the toolkit keeps one for this program.
const automaticKind = "runtime.nvidia.com/gpu"

// prestartHooks are the names of NVIDIA's hook, which CDI devices stand in place of.
var prestartHooks = []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit"}

// checksRequirements are the modes in which NVIDIA_REQUIRE_* counts.
var checksRequirements = map[string]bool{"csv": true, "legacy": true}

// modify puts what the container asks for into its configuration, and says whether it asks for anything.
func modify(settings *config.Config, spec *specs.Spec, log *logging.Logger) (bool, error) {
	container := requests.Of(spec, log.Warningf)
	rules := requests.RulesOf(settings)
	mode, devices, err := resolveMode(settings.Runtime.Mode, container, rules)
	if err != nil {
		return false, err
	}
	log.Infof("mode %s, devices requested: %s", mode, strings.Join(devices, ", "))
	if len(devices) == 0 {
		return false, nil
	}
	if mode == "legacy" {
		if err := container.CheckCapabilities(settings.SupportedDriverCapabilities); err != nil {
			return false, err
		}
	}
	kept, err := loadShimSpecs(settings, mode, devices)
	if err != nil {
		return false, err
	}
	if checksRequirements[mode] {
		if err := checkRequirements(settings, container, kept.properties, devices, log); err != nil {
			return false, err
		}
	}
	if err := inject(settings, spec, container, rules, mode, devices, kept, log); err != nil {
		return false, err
	}
	removePrestartHooks(spec)
	return true, nil
}

// inject applies the edits of the devices; in mode cdi those of the specs on the node, else those of the toolkit's.
func inject(
	settings *config.Config, spec *specs.Spec, container *requests.Container, rules requests.Rules,
	mode string, devices []string, kept *shimSpecs, log *logging.Logger,
) error {
	cdi := settings.Runtime.Modes.CDI
	defaultKind := automaticKind
	if mode == "cdi" {
		defaultKind = cdi.DefaultKind
	}
	qualified := qualify(devices, defaultKind)
	automatic := 0
	for _, name := range qualified {
		if strings.HasPrefix(name, automaticKind+"=") {
			automatic++
		}
	}
	switch {
	case automatic == 0:
		return registry.Open(cdi.SpecDirs, kindsOf(qualified)...).Inject(spec, qualified...)
	case automatic < len(qualified):
		return errors.New("requesting a CDI device with vendor 'runtime.nvidia.com' is not supported when requesting other CDI devices")
	}
	more, err := kept.extraDevices(container, rules, log)
	if err != nil {
		return err
	}
	names, err := kept.resolve(qualified)
	if err != nil {
		return err
	}
	return kept.registry.Inject(spec, append(names, more...)...)
}

func qualify(devices []string, kind string) []string {
	var names []string
	seen := make(map[string]bool, len(devices))
	for _, device := range devices {
		if !parser.IsQualifiedName(device) && !strings.HasPrefix(device, automaticKind+"=") {
			device = kind + "=" + device
		}
		if !seen[device] {
			seen[device] = true
			names = append(names, device)
		}
	}
	return names
}

func kindsOf(names []string) []string {
	var kinds []string
	for _, name := range names {
		kind, _, _ := strings.Cut(name, "=")
		kinds = append(kinds, kind)
	}
	return kinds
}

func allQualified(devices []string) bool {
	return len(devices) > 0 && !slices.ContainsFunc(devices, func(device string) bool { return !parser.IsQualifiedName(device) })
}

func removePrestartHooks(spec *specs.Spec) {
	if spec.Hooks == nil {
		return
	}
	//nolint:staticcheck // deprecated in the specification, and still what docker and CRI-O add NVIDIA's hook as
	spec.Hooks.Prestart = slices.DeleteFunc(spec.Hooks.Prestart, func(hook specs.Hook) bool {
		return slices.Contains(prestartHooks, filepath.Base(hook.Path))
	})
}

func checkRequirements(
	settings *config.Config, container *requests.Container, node *properties, devices []string, log *logging.Logger,
) error {
	if settings.DisableRequire {
		return nil
	}
	required, err := requirements.OfImage(container.Variables(), container.Legacy())
	if err != nil || len(required) == 0 {
		return err
	}
	if node == nil {
		log.Warningf("requirements of the image are not checked: the toolkit has not written %s yet", propertiesName)
		return nil
	}
	for _, gpu := range node.of(devices) {
		if err := requirements.Check(required, gpu); err != nil {
			return fmt.Errorf("requirements not met: %w", err)
		}
	}
	return nil
}
