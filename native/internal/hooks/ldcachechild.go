package hooks

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LdcacheProgram is the name under which this executable starts itself for update-ldcache.
const LdcacheProgram = "groundplane-update-ldcache"

// LdcacheMain makes the container's root file system its own root, writes the loader's configuration, and becomes the
// host's ldconfig. It runs in new namespaces, and keeps nothing of the host but ldconfig itself, in memory.
//
// Arguments: the path of ldconfig, the root file system, and folders for the loader's search.
func LdcacheMain(arguments []string) int {
	if os.Getpid() != 1 || len(arguments) < 2 {
		fmt.Fprintf(os.Stderr, "error: %s is started by the hook update-ldcache only\n", LdcacheProgram)
		return 2
	}
	if err := becomeLdconfig(arguments[0], arguments[1], arguments[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
	}
	return 1
}

func becomeLdconfig(ldconfig, root string, folders []string) error {
	program, err := inMemory(ldconfig)
	if err != nil {
		return fmt.Errorf("cannot read the host's ldconfig: %w", err)
	}
	if err := enterRoot(root); err != nil {
		return fmt.Errorf("cannot make %s the root file system: %w", root, err)
	}
	if err := writeSearchPaths(folders); err != nil {
		return err
	}
	arguments := []string{path.Base(ldconfig), "-f", topConfig, "-C", "/etc/ld.so.cache"}
	return fmt.Errorf("cannot execute the host's ldconfig: %w", execute(program, arguments))
}

// inMemory copies a program into sealed memory, so that whoever gets hold of it cannot write to the host's file. Where
// the kernel does not allow programs in memory it is the host's file, open for reading.
func inMemory(name string) (*os.File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	descriptor, err := unix.MemfdCreate("ldconfig", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		descriptor, err = unix.MemfdCreate("ldconfig", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return file, nil
	}
	defer file.Close()
	memory := os.NewFile(uintptr(descriptor), "ldconfig")
	if _, err := io.Copy(memory, file); err != nil {
		return nil, err
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, err
	}
	return memory, nil
}

// enterRoot changes the root of this mount namespace, in which nothing of the old root stays. Views of processes
// (procfs) that the container has are covered: through those of a host's, links lead out of the root.
func enterRoot(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot keep mounts from spreading: %w", err)
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot bind it to itself: %w", err)
	}
	views, err := procMounts("/proc/self/mountinfo", root)
	if err != nil {
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		if !errors.Is(err, unix.EINVAL) { // the root is an initramfs
			return fmt.Errorf("pivot_root: %w", err)
		}
		if err := moveRoot(); err != nil {
			return err
		}
	} else if err := unix.Unmount(".", unix.MNT_DETACH); err != nil { // the old root lies on top of the new one
		return fmt.Errorf("cannot leave the old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	for _, view := range views {
		if err := unix.Mount("tmpfs", view, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k"); err != nil {
			return fmt.Errorf("cannot cover %s: %w", view, err)
		}
	}
	return nil
}

func moveRoot() error {
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot move it to /: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return nil
}

// procMounts are the places below root, as paths in it, at which a procfs is mounted.
func procMounts(table, root string) ([]string, error) {
	file, err := os.Open(table)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var places []string
	lines := bufio.NewScanner(file)
	for lines.Scan() { // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if kind, _, _ := strings.Cut(after, " "); kind != "proc" || len(fields) < 5 {
			continue
		}
		if place, below := strings.CutPrefix(unescape(fields[4]), strings.TrimSuffix(root, "/")); below && strings.HasPrefix(place, "/") {
			places = append(places, place)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	slices.Sort(places)
	return slices.Compact(places), nil
}

// unescape reads the octal escapes of the kernel's tables: \040 is a blank.
func unescape(text string) string {
	var plain strings.Builder
	for index := 0; index < len(text); index++ {
		if text[index] == '\\' && index+3 < len(text) {
			if code, err := strconv.ParseUint(text[index+1:index+4], 8, 8); err == nil {
				plain.WriteByte(byte(code))
				index += 3
				continue
			}
		}
		plain.WriteByte(text[index])
	}
	return plain.String()
}

// execute becomes the program of an open file, with an empty environment. It returns only if that failed.
func execute(program *os.File, arguments []string) error {
	argv, err := syscall.SlicePtrFromStrings(arguments)
	if err != nil {
		return err
	}
	empty, environment := []byte{0}, []*byte{nil}
	_, _, number := unix.RawSyscall6(
		unix.SYS_EXECVEAT, program.Fd(), uintptr(unsafe.Pointer(&empty[0])), uintptr(unsafe.Pointer(&argv[0])),
		uintptr(unsafe.Pointer(&environment[0])), unix.AT_EMPTY_PATH, 0,
	)
	return number
}
