package shim

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"groundplane.dev/native/internal/config"
	"groundplane.dev/native/internal/logging"
	"groundplane.dev/native/internal/oci"
	"groundplane.dev/native/internal/requests"
)

const hookUsage = "usage: nvidia-container-runtime-hook [-config FILE] prestart|poststart|poststop"

// HookMain is nvidia-container-runtime-hook. Containers get devices by CDI here, so the hook has nothing to inject: it
// lets a container that asks for no GPU start, and says what to configure for one that does.
func HookMain(arguments []string) int {
	log := logging.New(logging.Sink{Writer: os.Stderr, Level: logging.Info})
	flags := flag.NewFlagSet("nvidia-container-runtime-hook", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("config", "", "configuration file")
	if err := flags.Parse(arguments); err != nil || flags.NArg() != 1 {
		log.Errorf("%s", hookUsage)
		return 2
	}
	switch flags.Arg(0) {
	case "prestart":
		if err := prestart(*file, log); err != nil {
			log.Errorf("nvidia-container-runtime-hook: %v", err)
			return 1
		}
	case "poststart", "poststop":
	default:
		log.Errorf("%s", hookUsage)
		return 2
	}
	return 0
}

func prestart(file string, log *logging.Logger) error {
	settings, err := loadFor(file)
	if err != nil {
		return err
	}
	state, err := oci.LoadState("")
	if err != nil {
		return err
	}
	bundle, err := oci.LoadConfig(state.Bundle)
	if err != nil {
		return err
	}
	rules := requests.RulesOf(settings)
	rules.AnnotationPrefixes = nil
	devices := requests.Of(&bundle.Spec, log.Warningf).Devices(rules)
	if len(devices) == 0 || strings.Join(devices, "") == "none" {
		return nil
	}
	return fmt.Errorf(
		"the container asks for devices %s by the prestart hook, which is not provided here: containers get GPUs by CDI. "+
			"Run it with the runtime handler nvidia (Kubernetes: runtimeClassName: nvidia; docker: --runtime=nvidia), "+
			"or have the runtime inject a CDI device (docker, podman: --device nvidia.com/gpu=all), and remove the hook's file or --gpus",
		strings.Join(devices, ","),
	)
}

func loadFor(file string) (*config.Config, error) {
	if file != "" {
		return config.LoadFile(file)
	}
	return config.Load()
}
