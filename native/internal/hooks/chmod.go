package hooks

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"

	"groundplane.dev/native/internal/inroot"
	"groundplane.dev/native/internal/logging"
)

const permissionBits = 0o7777

// changeMode sets the mode of files and folders of the container. Those that are missing, or that the container's user
// namespace does not own, are passed over.
func changeMode(flags *flag.FlagSet, log *logging.Logger) func(string) error {
	mode := flags.String("mode", "", "mode to set, octal")
	paths := list(flags, "path", "path in the container to set the mode of")
	return func(containerSpec string) error {
		if *mode == "" {
			return errors.New("a non-empty mode must be specified (--mode)")
		}
		wanted, err := strconv.ParseUint(*mode, 8, 32)
		if err != nil || wanted > permissionBits {
			return fmt.Errorf("mode %q is not octal, or more than %o", *mode, permissionBits)
		}
		root, err := openRoot(containerSpec)
		if err != nil {
			return err
		}
		defer root.Close()
		var failed []error
		for _, path := range *paths {
			failed = append(failed, setMode(root, path, uint32(wanted), log))
		}
		return errors.Join(failed...)
	}
}

func setMode(root *inroot.Root, path string, mode uint32, log *logging.Logger) error {
	if path == "" {
		return errors.New("paths must not be empty")
	}
	handle, err := root.Find(path)
	if errors.Is(err, fs.ErrNotExist) {
		log.Debugf("passing over %s: the container has none", path)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open %s in the container: %w", path, err)
	}
	defer handle.Close()
	var info unix.Stat_t
	if err := unix.Fstat(int(handle.Fd()), &info); err != nil {
		return fmt.Errorf("cannot examine %s in the container: %w", path, err)
	}
	if info.Mode&permissionBits == mode {
		return nil
	}
	err = unix.Chmod(inroot.ByDescriptor(handle), mode)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		log.Debugf("passing over %s: %v", path, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot set the mode of %s in the container: %w", path, err)
	}
	return nil
}
