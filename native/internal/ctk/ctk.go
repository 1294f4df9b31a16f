// Package ctk is what a host has of nvidia-ctk: the hooks, under the name that older CDI specs have for them, and the
// list of CDI devices. Everything else is done by nvidia-ctk of the toolkit's container.
package ctk

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"groundplane.dev/native/internal/hooks"
	"groundplane.dev/native/internal/logging"
)

const specDirsEnv = "NVIDIA_CTK_CDI_SPEC_DIRS"

// Main runs a command of nvidia-ctk.
func Main(arguments []string) int {
	flags := flag.NewFlagSet("nvidia-ctk", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	debug, quiet := hooks.Verbosity(flags)
	err := flags.Parse(arguments)
	log := logging.New(logging.Sink{Writer: os.Stderr, Level: hooks.LevelOf(*debug, *quiet)})
	rest := flags.Args()
	switch {
	case err != nil:
		log.Errorf("nvidia-ctk: %v", err)
		return 1
	case len(rest) > 0 && rest[0] == "hook":
		return hooks.Main(append(verbosity(*debug, *quiet), rest[1:]...))
	case len(rest) > 1 && rest[0] == "cdi" && rest[1] == "list":
		err = list(rest[2:], log)
	default:
		err = fmt.Errorf(
			"on a host there are `nvidia-ctk hook` and `nvidia-ctk cdi list` only; run this one in the toolkit's container: "+
				"kubectl exec -n <operator's namespace> <nvidia-container-toolkit pod of this node> -- nvidia-ctk %s",
			strings.Join(rest, " "),
		)
	}
	if err != nil {
		log.Errorf("nvidia-ctk: %v", err)
		return 1
	}
	return 0
}

func verbosity(debug, quiet bool) []string {
	return []string{fmt.Sprintf("--debug=%t", debug), fmt.Sprintf("--quiet=%t", quiet)}
}

// list prints the qualified name of every device of the specs, and says what is wrong with specs that do not count.
func list(arguments []string, log *logging.Logger) error {
	var folders []string
	flags := flag.NewFlagSet("nvidia-ctk cdi list", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Func("spec-dir", "folder with CDI specs; may be repeated", func(folder string) error {
		folders = append(folders, folder)
		return nil
	})
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if given := os.Getenv(specDirsEnv); len(folders) == 0 && given != "" {
		folders = strings.Split(given, ",")
	}
	if len(folders) == 0 {
		folders = cdi.DefaultSpecDirs
	}
	registry, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(folders...))
	if err != nil {
		return err
	}
	all := registry.GetErrors()
	for _, path := range slices.Sorted(maps.Keys(all)) {
		log.Warningf("%s: %v", path, errors.Join(all[path]...))
	}
	for _, name := range registry.ListDevices() {
		fmt.Println(name)
	}
	return nil
}
