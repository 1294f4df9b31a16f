// Package shim is nvidia-container-runtime: it stands between a container runtime and runc or crun, puts the devices
// that a container asks for into its configuration, and becomes the low-level runtime (contracts/toolkit-cdi.md 6).
// Only `create` is looked at; everything else passes.
package shim

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"groundplane.dev/native/internal/config"
	"groundplane.dev/native/internal/logging"
	"groundplane.dev/native/internal/oci"
	"groundplane.dev/native/internal/requests"
)

// Main runs the wrapper; mode goes before the one of config.toml unless it is empty. It returns only on failure.
func Main(mode string, arguments []string) int {
	line := parse(arguments)
	log := logging.New(logging.Sink{Writer: os.Stderr, Level: logging.Warning})
	if err := run(mode, arguments, line, log); err != nil {
		addRuntimeLog(line, log, logging.Error)
		log.Errorf("nvidia-container-runtime: %v", err)
	}
	return 1
}

func run(mode string, arguments []string, line commandLine, log *logging.Logger) error {
	settings, err := load(line)
	if err != nil {
		return err
	}
	path := searchPath()
	runtime, err := lowLevel(settings.Runtime.Runtimes, path)
	if err != nil {
		return err
	}
	if line.command == "create" {
		if mode != "" {
			settings.Runtime.Mode = mode
		}
		openLog(settings, line, log)
		if err := create(settings, line, log); err != nil {
			return err
		}
		log.Debugf("executing %s", runtime)
	}
	return become(runtime, arguments, environmentWith(path))
}

// load reads config.toml. Where it is wrong no container is created, and those that there are can still be removed.
func load(line commandLine) (*config.Config, error) {
	settings, err := config.Load()
	if err == nil || line.command == "create" {
		return settings, err
	}
	settings = config.Default()
	log := logging.New() // standard error belongs to the low-level runtime
	addRuntimeLog(line, log, logging.Warning)
	log.Warningf("nvidia-container-runtime: %v; trying the runtimes %v", err, settings.Runtime.Runtimes)
	return settings, nil
}

func create(settings *config.Config, line commandLine, log *logging.Logger) error {
	if !driverLoaded(settings.Runtime.ModulesFile) {
		log.Warningf(
			"the nvidia driver is not loaded (no nvidia in %s); the container is created without what the NVIDIA runtime would add",
			settings.Runtime.ModulesFile,
		)
		return nil
	}
	bundle, err := oci.LoadConfig(line.bundle)
	if err != nil {
		return err
	}
	changed, err := modify(settings, &bundle.Spec, log)
	if err != nil {
		return err
	}
	if !changed {
		return nil
	}
	return bundle.Save()
}

// driverLoaded looks for the driver's line in the kernel's table of modules.
func driverLoaded(table string) bool {
	file, err := os.Open(table)
	if err != nil {
		return false
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "nvidia ") {
			return true
		}
	}
	return false
}

// openLog adds the file of config.toml's key debug to where lines go.
func openLog(settings *config.Config, line commandLine, log *logging.Logger) {
	level, err := logging.ParseLevel(settings.Runtime.LogLevel)
	if err != nil {
		log.Warningf("%s: nvidia-container-runtime: %v", settings.Path, err)
	}
	if line.debug {
		level = logging.Debug
	}
	if name := settings.Runtime.Debug; name != "" && name != os.DevNull {
		file, err := openAppend(name)
		if err != nil {
			log.Warningf("cannot open the log file of nvidia-container-runtime.debug: %v", err)
			return
		}
		log.Add(logging.Sink{Writer: file, Level: level, Format: formatOf(line)})
	}
}

// addRuntimeLog adds the low-level runtime's log file, in which a container runtime looks for the reason of a failure.
func addRuntimeLog(line commandLine, log *logging.Logger, level logging.Level) {
	if line.log == "" {
		return
	}
	if file, err := openAppend(line.log); err == nil { // else standard error has what matters
		log.Add(logging.Sink{Writer: file, Level: level, Format: formatOf(line)})
	}
}

func openAppend(name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NONBLOCK, 0o644) // a pipe is not waited for
}

func formatOf(line commandLine) logging.Format {
	if line.logFormat == "json" {
		return logging.JSON
	}
	return logging.Text
}

// resolveMode is the mode in force and the devices asked for in it. Annotations count in mode cdi only.
func resolveMode(mode string, container *requests.Container, rules requests.Rules) (string, []string, error) {
	if mode != "auto" {
		if !knownModes[mode] {
			return "", nil, fmt.Errorf("invalid mode %q; nvidia-container-runtime.mode is one of auto, cdi, jit-cdi, csv, legacy", mode)
		}
		if mode != "cdi" {
			rules.AnnotationPrefixes = nil
		}
		return mode, container.Devices(rules), nil
	}
	devices := container.Devices(rules)
	if allQualified(devices) {
		return "cdi", devices, nil
	}
	rules.AnnotationPrefixes = nil
	return "jit-cdi", container.Devices(rules), nil
}

var knownModes = map[string]bool{"cdi": true, "jit-cdi": true, "csv": true, "legacy": true}
