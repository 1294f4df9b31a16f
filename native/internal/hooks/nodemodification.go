package hooks

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"groundplane.dev/native/internal/inroot"
	"groundplane.dev/native/internal/logging"
)

const (
	paramsPath    = "/proc/driver/nvidia/params"
	modifyOn      = "ModifyDeviceFiles: 1"
	modifyOff     = "ModifyDeviceFiles: 0"
	paramsMount   = unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	scratchPrefix = "/run/nvidia-ctk-hook-"
)

// disableDeviceNodeModification lets the driver's libraries in the container believe that they may not make device
// nodes: they would make those of GPUs that the container does not have.
func disableDeviceNodeModification(flags *flag.FlagSet, log *logging.Logger) func(string) error {
	params := flags.String("params-file", paramsPath, "the driver's parameters on the host, for tests")
	return func(containerSpec string) error {
		text, err := os.ReadFile(*params)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read the driver's parameters: %w", err)
		}
		changed, needed := withoutModification(string(text))
		if !needed {
			return nil
		}
		root, err := openRoot(containerSpec)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := mountParams(root, changed); err != nil {
			return fmt.Errorf("cannot mount other driver parameters at %s in the container: %w", paramsPath, err)
		}
		log.Debugf("%s says %s in the container", paramsPath, modifyOff)
		return nil
	}
}

// withoutModification is the parameters' text with the modification of device files switched off.
func withoutModification(text string) (changed string, needed bool) {
	lines := strings.SplitAfter(text, "\n")
	for index, line := range lines {
		if strings.TrimSuffix(line, "\n") == modifyOn {
			lines[index] = strings.Replace(line, modifyOn, modifyOff, 1)
			needed = true
		}
	}
	return strings.Join(lines, ""), needed
}

// mountParams mounts a file with this content, read-only, over the container's view of the parameters. The file lies on
// a tmpfs of its own, of which nothing but the file stays reachable.
func mountParams(root *inroot.Root, content string) error {
	scratch := scratchPrefix + inroot.Unique()
	folder, err := root.Folder(scratch, 0o700)
	if err != nil {
		return err
	}
	defer removeFolder(root, scratch)
	defer folder.Close()
	size := fmt.Sprintf("size=%d,mode=0700", max(len(content), os.Getpagesize()))
	if err := unix.Mount("tmpfs", inroot.ByDescriptor(folder), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, size); err != nil {
		return fmt.Errorf("cannot mount a tmpfs: %w", err)
	}
	defer unmount(root, scratch)
	if err := root.WriteFile(scratch+"/params", []byte(content), 0o444, 0o700); err != nil {
		return err
	}
	file, err := root.Find(scratch + "/params")
	if err != nil {
		return err
	}
	defer file.Close()
	return bindReadOnly(root, file, paramsPath)
}

func bindReadOnly(root *inroot.Root, file *os.File, path string) error {
	target, err := root.Find(path)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := unix.Mount(inroot.ByDescriptor(file), inroot.ByDescriptor(target), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	mounted, err := root.Find(path)
	if err != nil {
		return err
	}
	defer mounted.Close()
	return unix.Mount("", inroot.ByDescriptor(mounted), "", unix.MS_REMOUNT|paramsMount, "")
}

func unmount(root *inroot.Root, path string) {
	if handle, err := root.Find(path); err == nil {
		defer handle.Close()
		_ = unix.Unmount(inroot.ByDescriptor(handle), unix.MNT_DETACH) // else it lies below the container's /run, harmless
	}
}

// removeFolder removes an empty folder.
func removeFolder(root *inroot.Root, path string) {
	if parent, err := root.Find(path + "/.."); err == nil {
		defer parent.Close()
		_ = unix.Unlinkat(int(parent.Fd()), path[strings.LastIndex(path, "/")+1:], unix.AT_REMOVEDIR)
	}
}
