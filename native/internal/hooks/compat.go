package hooks

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"groundplane.dev/native/internal/inroot"
	"groundplane.dev/native/internal/logging"
)

const (
	defaultCompatRoot = "/usr/local/cuda/compat"
	compatLibrary     = "libcuda.so."
	ldconfigFolder    = "/etc/ld.so.conf.d"
	compatConfig      = ldconfigFolder + "/00-compat-toolkit.conf"
)

// enableCudaCompat puts the forward compatibility libraries of an image first in the loader's search where they are
// newer than the host's driver and may be used with it. A container that is started again, with another driver on the
// host, loses them where they no longer may.
func enableCudaCompat(flags *flag.FlagSet, log *logging.Logger) func(string) error {
	host := hostVersions{}
	flags.StringVar(&host.driver, "host-driver-version", "", "version of the host's driver; without it and the next one nothing is done")
	flags.StringVar(&host.cuda, "host-cuda-version", "", "CUDA version that the host's driver supports")
	folder := flags.String("cuda-compat-container-root", defaultCompatRoot, "folder of the libraries in the container")
	return func(containerSpec string) error {
		if host == (hostVersions{}) {
			return nil
		}
		if err := singleLine(*folder); err != nil {
			return err
		}
		root, err := openRoot(containerSpec)
		if err != nil {
			return err
		}
		defer root.Close()
		compat, err := compatFolder(root, *folder, host, log)
		if err != nil {
			return err
		}
		if compat == "" {
			return root.Remove(compatConfig)
		}
		return root.WriteFile(compatConfig, []byte(compat+"\n"), 0o644, 0o755)
	}
}

// compatFolder is the folder of the libraries that are to be used; empty if none are.
func compatFolder(root *inroot.Root, folder string, host hostVersions, log *logging.Logger) (string, error) {
	library, err := compatLibraryIn(root, folder, log)
	if err != nil || library == "" {
		return "", err
	}
	use, err := useCompat(root, library, host, log)
	if err != nil || !use {
		return "", err
	}
	return path.Dir(library), nil
}

// compatLibraryIn is the path of the one libcuda.so.X.Y in the folder, empty if there is none or more than one.
func compatLibraryIn(root *inroot.Root, folder string, log *logging.Logger) (string, error) {
	opened, err := root.Read(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot open %s in the container: %w", folder, err)
	}
	defer opened.Close()
	entries, err := opened.ReadDir(-1)
	if err != nil {
		log.Warningf("passing over %s in the container: %v", folder, err)
		return "", nil
	}
	resolved, err := root.Resolve(opened)
	if err != nil {
		return "", fmt.Errorf("cannot tell where %s is in the container: %w", folder, err)
	}
	var found []string
	for _, entry := range entries {
		if matched, _ := path.Match(compatLibrary+"*.*", entry.Name()); matched && entry.Type().IsRegular() {
			found = append(found, path.Join(resolved, entry.Name()))
		}
	}
	if len(found) > 1 {
		log.Warningf("Unexpected number of CUDA compat libraries in container: %v", found)
	}
	if len(found) != 1 {
		return "", nil
	}
	return found[0], nil
}

func useCompat(root *inroot.Root, library string, host hostVersions, log *logging.Logger) (bool, error) {
	file, err := root.Read(library)
	if err != nil {
		return false, fmt.Errorf("cannot open %s in the container: %w", library, err)
	}
	defer file.Close()
	note, err := readNote(file)
	if err != nil {
		log.Warningf("passing over the note in %s: %v", library, err)
	}
	use := decide(strings.TrimPrefix(path.Base(library), compatLibrary), note, host)
	log.Debugf("%s is used: %t (host: driver %q, CUDA %q)", library, use, host.driver, host.cuda)
	return use, nil
}
