// Package hooks is nvidia-cdi-hook: the programs that CDI specs name as createContainer hooks (contracts/toolkit-cdi.md
// 3.5). A runtime starts them on the host, in the container's mount namespace before the root is changed, with the
// container's state on standard input. Nothing that comes from the image is executed or obeyed.
package hooks

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"groundplane.dev/native/internal/inroot"
	"groundplane.dev/native/internal/logging"
	"groundplane.dev/native/internal/oci"
)

// A hook declares its flags and returns what is to be done once they are read.
type hook func(flags *flag.FlagSet, log *logging.Logger) (run func(containerSpec string) error)

var table = map[string]hook{
	"create-symlinks":                  createSymlinks,
	"update-ldcache":                   updateLdcache,
	"enable-cuda-compat":               enableCudaCompat,
	"chmod":                            changeMode,
	"disable-device-node-modification": disableDeviceNodeModification,
	"update-application-profile":       updateApplicationProfile,
	"noop":                             func(*flag.FlagSet, *logging.Logger) func(string) error { return func(string) error { return nil } },
}

// Main runs the hook that the arguments name. A hook of another release's specs is passed over with a warning, so that
// the container starts.
func Main(arguments []string) int {
	global := newFlags("nvidia-cdi-hook")
	debug, quiet := Verbosity(global)
	err := global.Parse(arguments)
	log := logging.New(logging.Sink{Writer: os.Stderr, Level: LevelOf(*debug, *quiet)})
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	rest := global.Args()
	if err != nil || len(rest) == 0 {
		log.Warningf("No CDI hook specified")
		return 0
	}
	chosen, known := table[rest[0]]
	if !known {
		log.Warningf("Unsupported CDI hook: %s", rest[0])
		return 0
	}
	return runHook(rest[0], chosen, rest[1:], log)
}

func runHook(name string, chosen hook, arguments []string, log *logging.Logger) int {
	flags := newFlags(name)
	containerSpec := flags.String("container-spec", "", "file with the container's state instead of standard input, for tests")
	run := chosen(flags, log)
	err := flags.Parse(arguments)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err == nil {
		err = run(*containerSpec)
	}
	if err != nil {
		log.Errorf("%s: %v", name, err)
		return 1
	}
	return 0
}

// Verbosity declares the two flags of every NVIDIA program for hosts; their defaults come from variables.
func Verbosity(flags *flag.FlagSet) (debug, quiet *bool) {
	debug = flags.Bool("debug", isSet("NVIDIA_CTK_DEBUG", "NVIDIA_CDI_DEBUG"), "log more")
	flags.BoolVar(debug, "d", *debug, "the same as --debug")
	quiet = flags.Bool("quiet", isSet("NVIDIA_CTK_QUIET", "NVIDIA_CDI_QUIET"), "log errors only; goes before --debug")
	return debug, quiet
}

// LevelOf is the level that the two flags ask for.
func LevelOf(debug, quiet bool) logging.Level {
	switch {
	case quiet:
		return logging.Error
	case debug:
		return logging.Debug
	default:
		return logging.Info
	}
}

func isSet(names ...string) bool {
	for _, name := range names {
		if value, err := strconv.ParseBool(os.Getenv(name)); err == nil {
			return value
		}
	}
	return false
}

func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller says it once
	flags.Usage = func() {
		flags.SetOutput(os.Stdout)
		fmt.Printf("Usage of %s:\n", name)
		flags.PrintDefaults()
		flags.SetOutput(io.Discard)
	}
	return flags
}

// list declares a flag that may be repeated.
func list(flags *flag.FlagSet, name, usage string) *[]string {
	values := &[]string{}
	flags.Func(name, usage, func(value string) error {
		*values = append(*values, value)
		return nil
	})
	return values
}

// openRoot opens the root file system of the container that the hook was started for.
func openRoot(containerSpec string) (*inroot.Root, error) {
	state, err := oci.LoadState(containerSpec)
	if err != nil {
		return nil, err
	}
	directory, err := state.ContainerRoot()
	if err != nil {
		return nil, err
	}
	return inroot.Open(directory)
}

// singleLine refuses what would be more than one entry in a file of lines.
func singleLine(folder string) error {
	if !strings.HasPrefix(folder, "/") || strings.ContainsAny(folder, "\n\r\x00") {
		return fmt.Errorf("%q is no absolute path of a folder", folder)
	}
	return nil
}
