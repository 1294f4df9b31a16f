package hooks

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"groundplane.dev/native/internal/logging"
	"groundplane.dev/native/internal/oci"
)

const defaultLdconfig = "/sbin/ldconfig"

// ldcacheLimit is far more than ldconfig needs; an image's configuration can keep it busy for ever.
const ldcacheLimit = time.Minute

// updateLdcache runs the host's ldconfig on the container's root file system, in namespaces of its own (LdcacheMain).
func updateLdcache(flags *flag.FlagSet, _ *logging.Logger) func(string) error {
	ldconfig := flags.String("ldconfig-path", defaultLdconfig, "the host's ldconfig; <path>.real is taken if there is one")
	folders := list(flags, "folder", "folder of the container in which the loader shall find libraries")
	limit := flags.Duration("limit", ldcacheLimit, "how long it may take, for tests")
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
		return runIsolated(hostLdconfig(*ldconfig), root, *folders, *limit)
	}
}

// hostLdconfig prefers the program itself to the script that Ubuntu has in its place.
func hostLdconfig(path string) string {
	if info, err := os.Stat(path + ".real"); err == nil && info.Mode().IsRegular() {
		return path + ".real"
	}
	return path
}

func runIsolated(ldconfig, root string, folders []string, limit time.Duration) error {
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
	if err := command.Start(); err != nil {
		return fmt.Errorf("%s on the container's root file system %s: %w", ldconfig, root, err)
	}
	late := time.AfterFunc(limit, func() { _ = command.Process.Kill() }) // with it, all of its namespace
	err := command.Wait()
	if !late.Stop() && err != nil {
		return fmt.Errorf("%s did not end in %v on the container's root file system %s: what do the image's /etc/ld.so.conf and the files that it includes say?", ldconfig, limit, root)
	}
	if err != nil {
		return fmt.Errorf("%s on the container's root file system %s: %w", ldconfig, root, err)
	}
	return nil
}
