package hooks

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"groundplane.dev/native/internal/logging"
	"groundplane.dev/native/internal/oci"
)

const defaultLdconfig = "/sbin/ldconfig"

// updateLdcache runs the host's ldconfig on the container's root file system, in namespaces of its own (LdcacheMain).
func updateLdcache(flags *flag.FlagSet, _ *logging.Logger) func(string) error {
	ldconfig := flags.String("ldconfig-path", defaultLdconfig, "the host's ldconfig; <path>.real is taken if there is one")
	folders := list(flags, "folder", "folder of the container in which the loader shall find libraries")
	return func(containerSpec string) error {
		if *ldconfig == "" {
			return errors.New("ldconfig-path must be specified")
		}
		for _, folder := range *folders {
			if err := singleLine(folder); err != nil {
				return err
			}
		}
		state, err := oci.LoadState(containerSpec)
		if err != nil {
			return err
		}
		root, err := state.ContainerRoot()
		if err != nil {
			return err
		}
		return runIsolated(hostLdconfig(*ldconfig), root, *folders)
	}
}

// hostLdconfig prefers the program itself to the script that Ubuntu has in its place.
func hostLdconfig(path string) string {
	if info, err := os.Stat(path + ".real"); err == nil && info.Mode().IsRegular() {
		return path + ".real"
	}
	return path
}

func runIsolated(ldconfig, root string, folders []string) error {
	command := exec.Cmd{
		Path:   "/proc/self/exe",
		Args:   append([]string{LdcacheProgram, ldconfig, root}, folders...),
		Env:    []string{},
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET,
			Pdeathsig:  syscall.SIGKILL,
		},
	}
	runtime.LockOSThread() // it is this thread's end that Pdeathsig is about
	defer runtime.UnlockOSThread()
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s on the container's root file system %s: %w", ldconfig, root, err)
	}
	return nil
}
