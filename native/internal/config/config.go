// Package config reads the NVIDIA runtime's config.toml (contracts/toolkit-cdi.md 4.6). Keys that steer parts which a
// host does not have here (nvidia-container-cli and its hook) are accepted and mean nothing.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// PathEnv names the variable with the file's path.
const PathEnv = "NVIDIA_CTK_CONFIG_FILE_PATH"

const relativePath = "nvidia-container-runtime/config.toml"

// Config is the file's content, with defaults where it says nothing.
type Config struct {
	AcceptVolumeMounts          bool     `toml:"accept-nvidia-visible-devices-as-volume-mounts"`
	AcceptEnvUnprivileged       bool     `toml:"accept-nvidia-visible-devices-envvar-when-unprivileged"`
	DisableRequire              bool     `toml:"disable-require"`
	SupportedDriverCapabilities string   `toml:"supported-driver-capabilities"`
	SwarmResource               string   `toml:"swarm-resource"`
	CLI                         CLI      `toml:"nvidia-container-cli"`
	Runtime                     Runtime  `toml:"nvidia-container-runtime"`
	Features                    Features `toml:"features"`

	// Path is the file's path, whether or not it exists.
	Path string `toml:"-"`
}

// CLI is [nvidia-container-cli]: of the program that is not installed, only its ldconfig is still checked.
type CLI struct {
	Ldconfig string `toml:"ldconfig"`
}

// Runtime is [nvidia-container-runtime].
type Runtime struct {
	Debug    string   `toml:"debug"`
	LogLevel string   `toml:"log-level"`
	Mode     string   `toml:"mode"`
	Runtimes []string `toml:"runtimes"`
	// ModulesFile lists the kernel's modules; without the driver's among them the wrapper changes nothing. A key of
	// groundplane's own, for machines whose GPUs are simulated.
	ModulesFile string `toml:"modules-file"`
	Modes       Modes  `toml:"modes"`
}

// Modes is [nvidia-container-runtime.modes].
type Modes struct {
	CDI struct {
		AnnotationPrefixes []string `toml:"annotation-prefixes"`
		DefaultKind        string   `toml:"default-kind"`
		SpecDirs           []string `toml:"spec-dirs"`
	} `toml:"cdi"`
}

// Features is [features].
type Features struct {
	AllowLdconfigFromContainer bool `toml:"allow-ldconfig-from-container"`
	IgnoreImexChannelRequests  bool `toml:"ignore-imex-channel-requests"`
}

// ShimSpecs is the folder with the CDI specs that the toolkit keeps for modes which need no spec of the user's.
func (c *Config) ShimSpecs() string { return filepath.Join(filepath.Dir(c.Path), "cdi") }

// Default is the configuration without a file.
func Default() *Config {
	config := &Config{
		AcceptEnvUnprivileged:       true,
		SupportedDriverCapabilities: "compat32,compute,display,graphics,ngx,utility,video",
		Runtime: Runtime{
			Debug:       os.DevNull,
			LogLevel:    "info",
			Mode:        "auto",
			Runtimes:    []string{"runc", "crun"},
			ModulesFile: "/proc/modules",
		},
	}
	cdi := &config.Runtime.Modes.CDI
	cdi.AnnotationPrefixes = []string{"cdi.k8s.io/"}
	cdi.DefaultKind = "nvidia.com/gpu"
	cdi.SpecDirs = []string{"/etc/cdi", "/var/run/cdi"}
	return config
}

// Load reads the file that is in force. A missing file gives the defaults.
func Load() (*Config, error) { return LoadFile(find()) }

// LoadFile reads one file. A missing file gives the defaults.
func LoadFile(path string) (*Config, error) {
	config := Default()
	config.Path = path
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the NVIDIA runtime's configuration: %w", err)
	}
	if err := toml.Unmarshal(text, config); err != nil {
		return nil, fmt.Errorf("the NVIDIA runtime's configuration %s is not valid; correct it, or restart the toolkit's pod, which writes it: %w", path, err)
	}
	return config, config.check()
}

func (c *Config) check() error {
	if path := c.CLI.Ldconfig; path != "" && !strings.HasPrefix(path, "@") && !c.Features.AllowLdconfigFromContainer {
		return fmt.Errorf(
			"%s: nvidia-container-cli.ldconfig is %q; a path of the host begins with @, and one of the container needs features.allow-ldconfig-from-container",
			c.Path, path,
		)
	}
	return nil
}

// find is the file named by the variable, else the one that was installed beside this executable, else the host's.
func find() string {
	if path := os.Getenv(PathEnv); path != "" {
		return path
	}
	if own := OwnFolder(); own != "" {
		path := filepath.Join(own, ".config", relativePath)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	base := os.Getenv("XDG_CONFIG_HOME")
	if base == "" {
		base = "/etc"
	}
	return filepath.Join(base, relativePath)
}

// OwnFolder is the folder in which this executable was installed; empty if the kernel does not tell.
func OwnFolder() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Dir(path)
}
