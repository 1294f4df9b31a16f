// Package inroot changes files inside a container's root file system from outside. Every path is resolved as if the
// root were /, however the image's symbolic links are laid out, so that nothing outside is ever touched.
package inroot

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// Root is an open root file system.
type Root struct {
	handle *os.File
}

// Open opens a root file system by its path on the host.
func Open(directory string) (*Root, error) {
	handle, err := os.OpenFile(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the container's root file system: %w", err)
	}
	return &Root{handle: handle}, nil
}

// Close gives the root file system up.
func (r *Root) Close() error { return r.handle.Close() }

// Find opens what a path of the container leads to, as a handle that cannot be read. The error is fs.ErrNotExist if
// there is nothing.
func (r *Root) Find(name string) (*os.File, error) {
	return pathrs.OpenatInRoot(r.handle, clean(name))
}

// Read opens a regular file or a folder of the container for reading. Opening anything else could have effects, or
// last for ever, and is refused.
func (r *Root) Read(name string) (*os.File, error) {
	handle, err := r.Find(name)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil, fmt.Errorf("%s in the container is neither a file nor a folder", name)
	}
	return pathrs.Reopen(handle, unix.O_RDONLY|unix.O_CLOEXEC)
}

// Resolve is the path, in the container, of what an open handle of it is: without symbolic links.
func (r *Root) Resolve(handle *os.File) (string, error) {
	root, err := os.Readlink(ByDescriptor(r.handle))
	if err != nil {
		return "", err
	}
	found, err := os.Readlink(ByDescriptor(handle))
	if err != nil {
		return "", err
	}
	inside, below := strings.CutPrefix(found, root)
	if !below || !strings.HasPrefix(inside, "/") {
		return "", fmt.Errorf("%s is not below %s", found, root)
	}
	return inside, nil
}

// Folder opens a folder of the container, after making it and those above it where they are missing.
func (r *Root) Folder(name string, mode os.FileMode) (*os.File, error) {
	handle, err := r.Find(name)
	if errors.Is(err, fs.ErrNotExist) {
		return pathrs.MkdirAllHandle(r.handle, clean(name), mode)
	}
	return handle, err
}

// WriteFile makes a file with this content in place of what has the name now, and makes folders where they are missing.
// What the name stood for, a symbolic link for one, is replaced and never followed.
func (r *Root) WriteFile(name string, content []byte, mode, folderMode os.FileMode) error {
	return r.place(name, folderMode, func(folder int, temporary string) error {
		descriptor, err := unix.Openat(folder, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(descriptor), temporary)
		defer file.Close()
		if _, err := file.Write(content); err != nil {
			return err
		}
		if err := file.Chmod(mode); err != nil { // whatever the umask is
			return err
		}
		return file.Close()
	})
}

// Remove removes a file, or a symbolic link itself. It is no error if there is none.
func (r *Root) Remove(name string) error {
	cleaned := clean(name)
	folder, err := r.Find(path.Dir(cleaned))
	if err == nil {
		defer folder.Close()
		err = unix.Unlinkat(int(folder.Fd()), path.Base(cleaned), 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove %s in the container: %w", name, err)
	}
	return nil
}

// Symlink makes a symbolic link in place of what has its name now. It says whether anything was changed.
func (r *Root) Symlink(target, name string) (bool, error) {
	if folder, err := r.Find(path.Dir(clean(name))); err == nil {
		current := linkAt(folder, path.Base(clean(name)))
		folder.Close()
		if current == target {
			return false, nil
		}
	}
	return true, r.place(name, 0o755, func(folder int, temporary string) error {
		return unix.Symlinkat(target, folder, temporary)
	})
}

// place lets make put something under a temporary name into the folder of name, and then moves it there.
func (r *Root) place(name string, folderMode os.FileMode, make func(folder int, temporary string) error) error {
	cleaned := clean(name)
	base := path.Base(cleaned)
	if base == "/" {
		return fmt.Errorf("%q names no file of the container", name)
	}
	folder, err := r.Folder(path.Dir(cleaned), folderMode)
	if err != nil {
		return fmt.Errorf("cannot open the folder of %s in the container: %w", name, err)
	}
	defer folder.Close()
	descriptor := int(folder.Fd())
	temporary := ".nvidia-" + Unique()
	if err := make(descriptor, temporary); err != nil {
		_ = unix.Unlinkat(descriptor, temporary, 0)
		return fmt.Errorf("cannot make %s in the container: %w", name, err)
	}
	if err := unix.Renameat(descriptor, temporary, descriptor, base); err != nil {
		_ = unix.Unlinkat(descriptor, temporary, 0)
		return fmt.Errorf("cannot make %s in the container: %w", name, err)
	}
	return nil
}

func linkAt(folder *os.File, name string) string {
	buffer := make([]byte, unix.PathMax)
	length, err := unix.Readlinkat(int(folder.Fd()), name, buffer)
	if err != nil {
		return ""
	}
	return string(buffer[:length])
}

// ByDescriptor is a path of the host that leads to an open handle, for system calls that want a path.
func ByDescriptor(handle *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(handle.Fd()))
}

// Unique is a piece of a name that nobody can have foreseen.
func Unique() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails on Linux
	return hex.EncodeToString(random[:])
}

func clean(name string) string { return path.Clean("/" + name) }
