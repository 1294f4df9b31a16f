package oci

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Config is a bundle's configuration: Spec may be changed, and Save writes the changes. Fields that this release of the
// runtime specification does not know stay as they are.
type Config struct {
	Spec specs.Spec
	path string
	text []byte
}

// LoadConfig reads config.json of a bundle.
func LoadConfig(bundle string) (*Config, error) {
	path := filepath.Join(bundle, ConfigName)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the container's configuration: %w", err)
	}
	config := &Config{path: path, text: text}
	if err := json.Unmarshal(text, &config.Spec); err != nil {
		return nil, fmt.Errorf("cannot read the container's configuration %s: %w", path, err)
	}
	return config, nil
}

// Save writes the configuration in place of the old one, which stays whole until the new one is complete. Nothing is
// written if nothing was changed.
func (c *Config) Save() error {
	var before specs.Spec
	if err := json.Unmarshal(c.text, &before); err != nil {
		return fmt.Errorf("cannot read %s: %w", c.path, err)
	}
	if reflect.DeepEqual(before, c.Spec) {
		return nil
	}
	trees, err := treesOf(c.text, before, c.Spec)
	if err != nil {
		return fmt.Errorf("cannot put the new configuration of %s together: %w", c.path, err)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(merge(trees[0], trees[1], trees[2])); err != nil {
		return fmt.Errorf("cannot put the new configuration of %s together: %w", c.path, err)
	}
	return replace(c.path, text.Bytes())
}

// treesOf gives the JSON values of: the text as it is, and what the library makes of the old and the new Spec.
func treesOf(text []byte, before, after specs.Spec) ([3]any, error) {
	var trees [3]any
	texts := [3][]byte{text}
	for index, spec := range []specs.Spec{before, after} {
		encoded, err := json.Marshal(spec)
		if err != nil {
			return trees, err
		}
		texts[index+1] = encoded
	}
	for index, encoded := range texts {
		decoder := json.NewDecoder(bytes.NewReader(encoded))
		decoder.UseNumber()
		if err := decoder.Decode(&trees[index]); err != nil {
			return trees, err
		}
	}
	return trees, nil
}

// merge applies the difference between before and after to original, which may have more fields than both.
func merge(original, before, after any) any {
	if reflect.DeepEqual(before, after) {
		return original
	}
	switch changed := after.(type) {
	case map[string]any:
		old, isMap := before.(map[string]any)
		kept, keeps := original.(map[string]any)
		if isMap && keeps {
			return mergeMaps(kept, old, changed)
		}
	case []any:
		old, isList := before.([]any)
		kept, keeps := original.([]any)
		if isList && keeps && len(old) == len(kept) {
			return mergeLists(kept, old, changed)
		}
	}
	return after
}

func mergeMaps(original, before, after map[string]any) map[string]any {
	merged := make(map[string]any, len(original)+len(after))
	for key, value := range original {
		_, was := before[key]
		if _, is := after[key]; is || !was {
			merged[key] = value
		}
	}
	for key, value := range after {
		if _, has := original[key]; has || !reflect.DeepEqual(before[key], value) { // else a zero that the library adds
			merged[key] = merge(original[key], before[key], value)
		}
	}
	return merged
}

// mergeLists takes entries that were there before in their original form, wherever they are now.
func mergeLists(original, before, after []any) []any {
	merged := make([]any, len(after))
	taken := make([]bool, len(before))
	first := 0 // all before it are taken: lists are long, and their order seldom changes
	for index, value := range after {
		merged[index] = value
		for first < len(before) && taken[first] {
			first++
		}
		for old := first; old < len(before); old++ {
			if !taken[old] && reflect.DeepEqual(before[old], value) {
				taken[old] = true
				merged[index] = original[old]
				break
			}
		}
	}
	return merged
}

func replace(path string, text []byte) error {
	failed := func(err error) error {
		return fmt.Errorf("cannot write the container's configuration %s (the old one is untouched): %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return failed(err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".config-*.json")
	if err != nil {
		return failed(err)
	}
	defer os.Remove(file.Name()) // gone by then unless something failed
	defer file.Close()
	if err := file.Chmod(info.Mode().Perm()); err != nil {
		return failed(err)
	}
	if owner, known := info.Sys().(*syscall.Stat_t); known {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return failed(err)
		}
	}
	if _, err := file.Write(text); err != nil {
		return failed(err)
	}
	if err := file.Close(); err != nil {
		return failed(err)
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return failed(err)
	}
	return nil
}
