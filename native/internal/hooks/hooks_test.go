package hooks

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestProcMountsBelowARoot(t *testing.T) {
	table := filepath.Join(t.TempDir(), "mountinfo")
	text := `22 1 0:21 / /proc rw - proc proc rw
23 1 0:22 / /run/c/rootfs/proc rw,nosuid shared:5 - proc proc rw
24 1 0:22 / /run/c/rootfs/a\040b rw - proc proc rw
25 1 0:22 / /run/c/rootfs-other/proc rw - proc proc rw
26 1 0:22 / /run/c/rootfs/sys rw - sysfs sysfs rw
27 1 0:22 /1 /run/c/rootfs/proc rw - proc proc rw
`
	if err := os.WriteFile(table, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	places, err := procMounts(table, "/run/c/rootfs")
	if want := []string{"/a b", "/proc"}; err != nil || !reflect.DeepEqual(places, want) {
		t.Errorf("%v, %v; want %v", places, err, want)
	}
}

func TestLoaderConfigurationIsReadAsLdconfigReadsIt(t *testing.T) {
	parsed := parseConfig("# c\n/a/ # d\n  /b=libc6\ninclude x/*.conf /y.conf\nhwcap 1 nosegneg\n\ninclude\n")
	want := loaderConfig{folders: []string{"/a", "/b"}, includes: []string{"x/*.conf", "/y.conf"}}
	if !reflect.DeepEqual(parsed, want) {
		t.Errorf("%v; want %v", parsed, want)
	}
}

func TestVersionsOfDrivers(t *testing.T) {
	for version, want := range map[string][]int{"580.95.05": {580, 95, 5}, "580.0": {580}, "1": {1}, "": nil, "a": nil, "1..2": nil, "-1": nil} {
		if got := numbers(version); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
}

func TestDriverParameters(t *testing.T) {
	for text, want := range map[string]string{
		"A: 1\nModifyDeviceFiles: 1\nB: 2\n": "A: 1\nModifyDeviceFiles: 0\nB: 2\n",
		"ModifyDeviceFiles: 1":               "ModifyDeviceFiles: 0",
		"ModifyDeviceFiles: 0\n":             "",
		"XModifyDeviceFiles: 1\n":            "",
		"":                                   "",
	} {
		if changed, needed := withoutModification(text); needed != (want != "") || (needed && changed != want) {
			t.Errorf("%q: %q, %t", text, changed, needed)
		}
	}
}

func FuzzNote(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(_ *testing.T, library []byte) {
		note, err := readNote(bytes.NewReader(library))
		if err == nil {
			decide("580.1", note, hostVersions{driver: "570.1"})
		}
	})
}
