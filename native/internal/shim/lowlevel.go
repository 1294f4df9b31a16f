package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"groundplane.dev/native/internal/config"
)

// standardFolders are searched after those of PATH, which a service manager may have left empty.
const standardFolders = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lowLevel finds the first of the runtimes that is an executable, by its path or in PATH. This program itself is not one.
func lowLevel(candidates []string, searchPath string) (string, error) {
	own, _ := os.Stat("/proc/self/exe")
	for _, candidate := range candidates {
		for _, path := range placesOf(candidate, searchPath) {
			info, err := os.Stat(path)
			if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && !os.SameFile(info, own) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("no runtime binary found from candidate list: %v (nvidia-container-runtime.runtimes)", candidates)
}

func placesOf(candidate, searchPath string) []string {
	if strings.Contains(candidate, "/") {
		return []string{candidate}
	}
	var places []string
	for _, folder := range filepath.SplitList(searchPath) {
		if filepath.IsAbs(folder) {
			places = append(places, filepath.Join(folder, candidate))
		}
	}
	return places
}

// searchPath is PATH with the folder of this executable first.
func searchPath() string {
	folders := []string{standardFolders}
	if given := os.Getenv("PATH"); given != "" {
		folders = append([]string{given}, folders...)
	}
	if own := config.OwnFolder(); own != "" {
		folders = append([]string{own}, folders...)
	}
	return strings.Join(folders, ":")
}

// become replaces this process by the low-level runtime. It returns only if that failed.
func become(runtime string, arguments []string, environment []string) error {
	err := unix.Exec(runtime, append([]string{runtime}, arguments...), environment)
	return fmt.Errorf("cannot execute the low-level runtime %s: %w", runtime, err)
}

// environmentWith is this process' environment with another PATH.
func environmentWith(path string) []string {
	environment := []string{"PATH=" + path}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PATH=") {
			environment = append(environment, variable)
		}
	}
	return environment
}
