package hooks

import (
	"flag"
	"fmt"
	"strings"

	"groundplane.dev/native/internal/logging"
)

// createSymlinks makes links in the container, as `ln -sf` in it would. The text of a link is free; its place is not.
func createSymlinks(flags *flag.FlagSet, log *logging.Logger) func(string) error {
	links := list(flags, "link", "link to make, as target::path; what has the path now is removed")
	return func(containerSpec string) error {
		root, err := openRoot(containerSpec)
		if err != nil {
			return err
		}
		defer root.Close()
		for _, link := range *links {
			parts := strings.Split(link, "::")
			if len(parts) != 2 || parts[0] == "" || parts[1] == "" {
				return fmt.Errorf("invalid symlink specification %s: want target::path", link)
			}
			changed, err := root.Symlink(parts[0], parts[1])
			if err != nil {
				return err
			}
			if changed {
				log.Debugf("%s links to %s", parts[1], parts[0])
			}
		}
		return nil
	}
}
