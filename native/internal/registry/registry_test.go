package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

const (
	gpus   = `{"cdiVersion":"0.5.0","kind":"a.b/gpu","containerEdits":{"env":["C=1"]},"devices":[{"name":"0","containerEdits":{"env":["D=0"]}},{"name":"1","containerEdits":{"mounts":[{"hostPath":"/h","containerPath":"/c"}]}}]}`
	others = `{"cdiVersion":"0.5.0","kind":"a.b/gpu","devices":[{"name":"0","containerEdits":{"env":["D=other"]}}]}`
	inYAML = "---\ncdiVersion: 0.5.0\nkind: a.b/gpu\ndevices:\n- name: \"2\"\n  containerEdits:\n    env: [E=1]\n"
)

// folders are files by their path below a folder of specs, low and high priority.
var folders = map[string]map[string]string{
	"json":              {"low/a.json": gpus},
	"json in yaml":      {"low/a.yaml": gpus},
	"json and yaml":     {"low/a.json": gpus, "high/b.yaml": inYAML},
	"priority":          {"low/a.json": gpus, "high/b.json": others},
	"conflict":          {"low/a.json": gpus, "low/b.json": others},
	"conflict, and one": {"low/a.json": gpus, "low/b.json": others, "high/c.json": others},
	"another kind":      {"low/a.json": gpus, "low/b.json": `{"cdiVersion":"0.5.0","kind":"x/y","devices":[{"name":"0","containerEdits":{"env":["A=b"]}}]}`},
	"a bad file":        {"low/a.json": gpus, "high/b.json": `{"cdiVersion":"9","kind":"a.b/gpu"}`},
	"a bad other file":  {"low/a.json": gpus, "high/b.json": `{`},
	"unknown field":     {"low/a.json": gpus, "high/b.json": `{"cdiVersion":"0.5.0","kind":"a.b/gpu","z":1,"devices":[{"name":"0","containerEdits":{"env":["D=9"]}}]}`},
	"no devices":        {"low/a.json": `{"cdiVersion":"0.5.0","kind":"a.b/gpu","devices":[]}`},
	"empty edits":       {"low/a.json": `{"cdiVersion":"0.5.0","kind":"a.b/gpu","devices":[{"name":"0","containerEdits":{"env":[]}}]}`},
	"bad edits":         {"low/a.json": `{"cdiVersion":"0.5.0","kind":"a.b/gpu","devices":[{"name":"0","containerEdits":{"env":["x"]}}]}`},
	"low version":       {"low/a.json": `{"cdiVersion":"0.3.0","kind":"a.b/gpu","devices":[{"name":"0","containerEdits":{"env":["A=b"]}}]}`},
	"twice in one":      {"low/a.json": `{"cdiVersion":"0.5.0","kind":"a.b/gpu","devices":[{"name":"0","containerEdits":{"env":["A=b"]}},{"name":"0","containerEdits":{"env":["A=c"]}}]}`},
	"bad annotation":    {"low/a.json": `{"cdiVersion":"0.6.0","kind":"a.b/gpu","annotations":{"a b":"c"},"devices":[{"name":"0","containerEdits":{"env":["A=b"]}}]}`},
	"annotation":        {"low/a.json": `{"cdiVersion":"0.6.0","kind":"a.b/gpu","devices":[{"name":"0","annotations":{"a":"c"},"containerEdits":{"env":["A=b"]}}]}`},
	"escapes":           {"low/a.json": `{"cdiVersion":"0.5.0","kind":"a.b\/gpu","devices":[{"name":"0","containerEdits":{"env":["A=b"]}}]}`},
	"a null":            {"low/a.json": `{"cdiVersion":"0.5.0","kind":"a.b/gpu","devices":[{"name":"0","containerEdits":{"mounts":null,"env":["A=b"]}}]}`},
	"a number":          {"low/a.json": `{"cdiVersion":"0.5.0","kind":"a.b/gpu","devices":[{"name":0,"containerEdits":{"env":["A=b"]}}]}`},
	"two documents":     {"low/a.json": gpus + others},
	"other suffixes":    {"low/a.yml": inYAML, "low/b": gpus, "low/c.json/d.json": gpus},
	"nothing":           {},
	"empty file":        {"low/a.json": "", "low/b.yaml": ""},
}

var asked = [][]string{{"a.b/gpu=0"}, {"a.b/gpu=1", "a.b/gpu=0"}, {"a.b/gpu=2"}, {"a.b/gpu=0", "a.b/gpu=9"}, {"a.b/gpu=0", "a.b/gpu=0"}}

func TestItDecidesAsTheLibraryDoes(t *testing.T) {
	for title, files := range folders {
		base := t.TempDir()
		for name, text := range files {
			path := filepath.Join(base, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		paths := []string{filepath.Join(base, "low"), filepath.Join(base, "high"), filepath.Join(base, "missing")}
		for _, names := range asked {
			compare(t, fmt.Sprintf("%s, %v", title, names), paths, names)
		}
	}
}

func compare(t *testing.T, title string, paths, names []string) {
	t.Helper()
	library, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(paths...))
	if err != nil {
		t.Fatal(err)
	}
	want, got := &specs.Spec{}, &specs.Spec{}
	_, wantErr := library.InjectDevices(want, names...)
	registry := Open(paths, "a.b/gpu", "c.d/none")
	if gotErr := registry.Inject(got, names...); (gotErr == nil) != (wantErr == nil) {
		t.Errorf("%s: %v; the library: %v", title, gotErr, wantErr)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v; the library: %v", title, got, want)
	}
	for _, name := range append(names, "c.d/none=0") {
		if has := registry.Has(name); has != (library.GetDevice(name) != nil) {
			t.Errorf("%s: has %s: %t", title, name, has)
		}
	}
}

func TestInTheOrdinaryCaseTheLibraryIsNotAsked(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"a.json": gpus, "b.yaml": "kind: of/others\nlong: []", "c.yaml": inYAML} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	registry := Open([]string{folder}, "a.b/gpu")
	if err := registry.Inject(&specs.Spec{}, "a.b/gpu=0", "a.b/gpu=2"); err != nil || registry.library != nil || registry.Has("a.b/gpu=7") {
		t.Error(err, registry.library)
	}
}
