package hooks

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"regexp"

	"golang.org/x/sys/unix"

	"groundplane.dev/native/internal/inroot"
	"groundplane.dev/native/internal/logging"
)

const (
	profilePath = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
	profileText = `{"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x%x]}],"rules":[{"pattern":[],"profile":"_container_"}]}`
	maskBits    = 64
)

var gpuNode = regexp.MustCompile(`^nvidia[0-9]+$`)

// updateApplicationProfile tells EGL and Vulkan which GPUs the container has, by a profile of the driver's.
func updateApplicationProfile(_ *flag.FlagSet, log *logging.Logger) func(string) error {
	return func(containerSpec string) error {
		root, err := openRoot(containerSpec)
		if err != nil {
			return err
		}
		defer root.Close()
		mask, err := gpuMask(root, log)
		if err != nil || mask == 0 {
			return err
		}
		return root.WriteFile(profilePath, fmt.Appendf(nil, profileText, mask), 0o444, 0o555)
	}
}

// gpuMask has a bit for the minor number of each GPU's device node.
func gpuMask(root *inroot.Root, log *logging.Logger) (uint64, error) {
	folder, err := root.Read("/dev")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot open /dev in the container: %w", err)
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return 0, fmt.Errorf("cannot list /dev in the container: %w", err)
	}
	var mask uint64
	for _, name := range names {
		if !gpuNode.MatchString(name) {
			continue
		}
		var info unix.Stat_t
		if err := unix.Fstatat(int(folder.Fd()), name, &info, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return 0, fmt.Errorf("cannot examine /dev/%s in the container: %w", name, err)
		}
		if info.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if minor := unix.Minor(info.Rdev); minor < maskBits {
			mask |= 1 << minor
		} else {
			log.Warningf("dropping invalid minor number %d of /dev/%s: must be in range [0, %d]", minor, name, maskBits-1)
		}
	}
	return mask, nil
}
