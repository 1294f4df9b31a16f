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

	"groundplane.dev/native/internal/inroot"
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
// others, the system's after them, since the host's ldconfig may have been built for other ones.
func writeSearchPaths(folders []string) error {
	system := systemFolders[isFile(debianVersion)][runtime.GOARCH]
	configured, err := configuredFolders()
	if err != nil {
		return err
	}
	known := append(configured, system...)
	added := slices.DeleteFunc(uniqueOf(folders), func(folder string) bool { return slices.Contains(known, folder) })
	if err := includeFolder(); err != nil {
		return err
	}
	for _, part := range []struct {
		prefix  string
		folders []string
	}{{"00-nvcr-", added}, {"zz-nvcr-", system}} {
		if err := writeDropIn(part.prefix, part.folders); err != nil {
			return err
		}
	}
	if isFile(alpineRelease) {
		return writeMuslPath(append(uniqueOf(folders), system...))
	}
	return nil
}

func writeDropIn(prefix string, folders []string) error {
	if len(folders) == 0 {
		return nil
	}
	name := path.Join(ldconfigFolder, prefix+inroot.Unique()+".conf")
	return writeNew(name, strings.Join(folders, "\n")+"\n", os.O_EXCL)
}

// writeNew writes to a file below the container's root, readable by every user whatever the umask is. Folders that are
// missing are made.
func writeNew(name, text string, flags int) error {
	if err := os.MkdirAll(path.Dir(name), 0o755); err != nil {
		return fmt.Errorf("cannot make the folder of the container's %s: %w", name, err)
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK|flags, 0o644)
	if err != nil {
		return fmt.Errorf("cannot write the container's %s: %w", name, err)
	}
	defer file.Close()
	if flags&os.O_EXCL != 0 {
		err = file.Chmod(0o644)
	}
	if err == nil {
		_, err = file.WriteString(text)
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return fmt.Errorf("cannot write the container's %s: %w", name, err)
	}
	return nil
}

// includeFolder makes ldconfig's configuration include the folder of drop-ins, if it does not yet.
func includeFolder() error {
	text, err := readSmall(topConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return writeNew(topConfig, includeLine+"\n", os.O_EXCL)
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
	return writeNew(topConfig, line, os.O_APPEND)
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
		return writeNew(name, strings.Join(uniqueOf(append(folders, muslDefault...)), "\n")+"\n", os.O_EXCL)
	}
	if err != nil {
		return fmt.Errorf("cannot read the container's %s: %w", name, err)
	}
	present := strings.FieldsFunc(text, func(letter rune) bool { return letter == '\n' || letter == ':' })
	missing := slices.DeleteFunc(uniqueOf(folders), func(folder string) bool { return slices.Contains(present, folder) })
	if len(missing) == 0 {
		return nil
	}
	addition := strings.Join(missing, "\n") + "\n"
	if text != "" && !strings.HasSuffix(text, "\n") {
		addition = "\n" + addition
	}
	return writeNew(name, addition, os.O_APPEND)
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && !info.IsDir()
}

func uniqueOf(items []string) []string {
	var kept []string
	for _, item := range items {
		if !slices.Contains(kept, item) {
			kept = append(kept, item)
		}
	}
	return kept
}
