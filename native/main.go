// Command groundplane-host is everything the container toolkit runs on a host: the CDI hook, the runtime wrapper in its
// variants, and what remains of nvidia-ctk there. It is one static executable that is installed under each of its names
// and looks at the name it was started by.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sort"
	"strings"

	"groundplane.dev/native/internal/ctk"
	"groundplane.dev/native/internal/hooks"
	"groundplane.dev/native/internal/shim"
)

// A program gets the arguments after its name and returns its exit status.
type program func(arguments []string) int

var programs = map[string]program{
	"nvidia-cdi-hook":                 hooks.Main,
	"nvidia-ctk":                      ctk.Main,
	"nvidia-container-runtime":        func(arguments []string) int { return shim.Main("", arguments) },
	"nvidia-container-runtime.cdi":    func(arguments []string) int { return shim.Main("cdi", arguments) },
	"nvidia-container-runtime.legacy": func(arguments []string) int { return shim.Main("legacy", arguments) },
	"nvidia-container-runtime-hook":   shim.HookMain,
	"nvidia-container-toolkit":        shim.HookMain,
	hooks.LdcacheProgram:              hooks.LdcacheMain,
}

func main() {
	debug.SetGCPercent(-1) // every program here ends, or becomes another, within milliseconds
	arguments := os.Args
	run := lookUp(arguments)
	if run == nil && len(arguments) > 1 { // groundplane-host NAME ARGUMENT...
		arguments = arguments[1:]
		run = lookUp(arguments)
	}
	if run == nil {
		fmt.Fprintf(os.Stderr, "groundplane-host is started under one of these names, or with one as its first argument: %s\n", names())
		os.Exit(2)
	}
	os.Exit(run(arguments[1:]))
}

func lookUp(arguments []string) program {
	if len(arguments) == 0 {
		return nil
	}
	return programs[strings.TrimSuffix(filepath.Base(arguments[0]), ".real")]
}

func names() string {
	var all []string
	for name := range programs {
		if name != hooks.LdcacheProgram {
			all = append(all, name)
		}
	}
	sort.Strings(all)
	return strings.Join(all, ", ")
}
