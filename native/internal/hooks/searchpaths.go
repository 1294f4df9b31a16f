package hooks

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	topConfig     = "/etc/ld.so.conf"
	includeLine   = "include " + ldconfigFolder + "/*.conf"
	configLimit   = 1 << 20
	alpineRelease = "/etc/alpine-release"
	debianVersion = "/etc/debian_version"
)

// systemFolders are where loaders look without being told, by the architecture in Go's words: in images of Debian's
// family first those of its multi-arch layout, in others those with the suffixes of 64 bits.
var systemFolders = map[bool]map[string][]string{
	true: {
		"amd64": {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"},
		"arm64": {"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib", "/usr/lib"},
	},
	false: {
		"amd64": {"/lib", "/usr/lib", "/lib64", "/usr/lib64", "/libx32", "/usr/libx32"},
		"arm64": {"/lib", "/usr/lib", "/lib64", "/usr/lib64"},
	},
}

// muslFiles list the folders of musl's loader, which has no cache; muslDefault is what it searches without the file.
var (
	muslFiles   = map[string]string{"amd64": "/etc/ld-musl-x86_64.path", "arm64": "/etc/ld-musl-aarch64.path"}
	muslDefault = []string{"/lib", "/usr/local/lib", "/usr/lib"}
)

// writeSearchPaths writes the loader's configuration below /, which is the container's by now: the folders before all
// others, the system's after them, since the host's ldconfig may have been built for other ones. What the container has
// already, from a run before for one, is not written again.
func writeSearchPaths(folders []string) error {
	system := systemFolders[isFile(debianVersion)][runtime.GOARCH]
	configured, err := configuredFolders()
	if err != nil {
		return err
	}
	if err := includeFolder(); err != nil {
		return err
	}
	known := append(slices.Clone(system), configured...)
	if err := addDropIn("00-nvcr-toolkit.conf", without(folders, known)); err != nil {
		return err
	}
	if len(without(system, configured)) > 0 {
		if err := addDropIn("zz-nvcr-toolkit.conf", system); err != nil {
			return err
		}
	}
	if isFile(alpineRelease) {
		return writeMuslPath(append(slices.Clone(folders), system...))
	}
	return nil
}

func addDropIn(name string, folders []string) error {
	if len(folders) == 0 {
		return nil
	}
	return add(path.Join(ldconfigFolder, name), strings.Join(folders, "\n")+"\n")
}

// without are the items, each once, that are not among others.
func without(items, others []string) []string {
	var left []string
	for _, item := range items {
		if !slices.Contains(others, item) && !slices.Contains(left, item) {
			left = append(left, item)
		}
	}
	return left
}

// add writes to the end of a file below the container's root. A new one is readable by every user, whatever the umask
// is; folders that are missing are made.
func add(name, text string) error {
	failed := func(err error) error { return fmt.Errorf("cannot write the container's %s: %w", name, err) }
	if err := os.MkdirAll(path.Dir(name), 0o755); err != nil {
		return failed(err)
	}
	_, err := os.Lstat(name)
	isNew := errors.Is(err, fs.ErrNotExist)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return failed(err)
	}
	defer file.Close()
	if isNew {
		if err := file.Chmod(0o644); err != nil {
			return failed(err)
		}
	}
	if _, err := file.WriteString(text); err != nil {
		return failed(err)
	}
	if err := file.Close(); err != nil {
		return failed(err)
	}
	return nil
}

// includeFolder makes ldconfig's configuration include the folder of drop-ins, if it does not yet.
func includeFolder() error {
	text, err := readSmall(topConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return add(topConfig, includeLine+"\n")
	}
	if err != nil {
		return fmt.Errorf("cannot read the container's %s: %w", topConfig, err)
	}
	for _, pattern := range parseConfig(text).includes {
		if matched, err := path.Match(absolute(pattern), ldconfigFolder+"/00-nvcr-0.conf"); err == nil && matched {
			return nil
		}
	}
	line := includeLine + "\n"
	if text != "" && !strings.HasSuffix(text, "\n") {
		line = "\n" + line
	}
	return add(topConfig, line)
}

type loaderConfig struct{ folders, includes []string }

// parseConfig reads a file of ldconfig's: a folder a line, or include and patterns.
func parseConfig(text string) loaderConfig {
	var parsed loaderConfig
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] == "hwcap":
		case fields[0] == "include":
			parsed.includes = append(parsed.includes, fields[1:]...)
		default:
			folder, _, _ := strings.Cut(strings.TrimSpace(line), "=")
			parsed.folders = append(parsed.folders, strings.TrimRight(folder, "/"))
		}
	}
	return parsed
}

// absolute is an include's pattern as ldconfig takes it: relative to the folder of the file.
func absolute(pattern string) string {
	if path.IsAbs(pattern) {
		return pattern
	}
	return path.Join(path.Dir(topConfig), pattern)
}

// configuredFolders are the folders that the container's configuration has already, with included files.
func configuredFolders() ([]string, error) {
	var folders []string
	seen := map[string]bool{}
	for waiting := []string{topConfig}; len(waiting) > 0; waiting = waiting[1:] {
		name := waiting[0]
		if seen[name] {
			continue
		}
		seen[name] = true
		text, err := readSmall(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the container's %s: %w", name, err)
		}
		parsed := parseConfig(text)
		folders = append(folders, parsed.folders...)
		for _, pattern := range parsed.includes {
			if files, err := filepath.Glob(absolute(pattern)); err == nil { // ldconfig passes bad patterns over too
				waiting = append(waiting, files...)
			}
		}
	}
	return folders, nil
}

// readSmall reads a regular file of the image, which may be anything: it neither waits nor takes more than a limit.
func readSmall(name string) (string, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > configLimit {
		return "", fmt.Errorf("it is no regular file, or longer than %d bytes", configLimit)
	}
	text, err := io.ReadAll(file)
	return string(text), err
}

// writeMuslPath adds folders to the file of musl's loader; a new file begins with the folders it stands in place of.
func writeMuslPath(folders []string) error {
	name, known := muslFiles[runtime.GOARCH]
	if !known {
		return fmt.Errorf("musl's loader on %s is not known", runtime.GOARCH)
	}
	text, err := readSmall(name)
	if errors.Is(err, fs.ErrNotExist) {
		return add(name, strings.Join(without(append(folders, muslDefault...), nil), "\n")+"\n")
	}
	if err != nil {
		return fmt.Errorf("cannot read the container's %s: %w", name, err)
	}
	present := strings.FieldsFunc(text, func(letter rune) bool { return letter == '\n' || letter == ':' })
	missing := without(folders, present)
	if len(missing) == 0 {
		return nil
	}
	addition := strings.Join(missing, "\n") + "\n"
	if text != "" && !strings.HasSuffix(text, "\n") {
		addition = "\n" + addition
	}
	return add(name, addition)
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && !info.IsDir()
}
