// Package oci reads and changes what a container runtime hands over: the state on a hook's standard input and the
// bundle's config.json. What is to be changed is decided elsewhere.
package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ConfigName is the name of a bundle's configuration.
const ConfigName = "config.json"

// State is the container's state as hooks get it. Root is an extension of crun: the root file system's path, which
// spares reading a configuration that may not be readable in a user namespace.
type State struct {
	specs.State
	Root string `json:"root,omitempty"`
}

// LoadState reads the state from a file, or from standard input if the name is empty or "-".
func LoadState(name string) (*State, error) {
	input := io.Reader(os.Stdin)
	if name != "" && name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("cannot open the container's state: %w", err)
		}
		defer file.Close()
		input = file
	}
	state := &State{}
	if err := json.NewDecoder(input).Decode(state); err != nil {
		return nil, fmt.Errorf("cannot read the container's state (a runtime gives it as JSON on standard input): %w", err)
	}
	return state, nil
}

// ContainerRoot is the path of the container's root file system on the host: `root.path` of the bundle's configuration,
// relative to the bundle if it is not absolute. The host's own root is refused.
func (s *State) ContainerRoot() (string, error) {
	root := s.Root
	if root == "" {
		read, err := s.rootOfBundle()
		if err != nil {
			return "", err
		}
		root = read
	}
	if root == "" {
		return "", errors.New("the container's configuration names no root file system (root.path)")
	}
	if !filepath.IsAbs(root) {
		root = filepath.Join(s.Bundle, root)
	}
	if root = filepath.Clean(root); root == "/" {
		return "", errors.New("the container's root file system is the host's (/); hooks do not change that one")
	}
	return root, nil
}

func (s *State) rootOfBundle() (string, error) {
	path := filepath.Join(s.Bundle, ConfigName)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the container's configuration: %w", err)
	}
	var config struct {
		Root struct {
			Path string `json:"path"`
		} `json:"root"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("cannot read %s: %w", path, err)
	}
	return config.Root.Path, nil
}
