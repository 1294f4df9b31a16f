package requests

import (
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func container(env ...string) *Container {
	return Of(&specs.Spec{Process: &specs.Process{Env: env}}, func(string, ...any) {})
}

func TestWordsAreResolvedInOrder(t *testing.T) {
	for list, want := range map[string]string{
		"3,all": "all", "none,all": "none", "all,none": "all", "all,void": "", "": "", " , ": "", "1, 0,1": "1,0",
	} {
		devices := container(visibleDevices + "=" + list).Devices(Rules{AcceptEnvUnprivileged: true})
		if got := strings.Join(devices, ","); got != want {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

func TestAContainerWithoutAProcessAsksForNothing(t *testing.T) {
	if devices := Of(&specs.Spec{}, nil).Devices(Rules{AcceptVolumeMounts: true, AcceptEnvUnprivileged: true}); devices != nil {
		t.Error(devices)
	}
}

func TestChannels(t *testing.T) {
	for list, want := range map[string][]string{
		"7": {"7"}, "channel7,007": {"7"}, "0,1048575": {"0", "1048575"}, "3,all": {"all"},
	} {
		if got, err := channels(Items(list)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v", list, got, err)
		}
	}
}

func TestNamesByVolume(t *testing.T) {
	for name, want := range map[string]string{
		"nvidia.com/gpu=0": "nvidia.com/gpu=0", "nvidia.com/gpu/0": "nvidia.com/gpu=0", "a/b/c/d": "a/b=c/d", "a/b": "", "x": "",
	} {
		got, err := qualifiedByVolume(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func FuzzDevices(f *testing.F) {
	f.Add("0,1,all", "cdi/a/b/c")
	f.Fuzz(func(t *testing.T, list, volume string) {
		spec := &specs.Spec{
			Process: &specs.Process{Env: []string{visibleDevices + "=" + list}},
			Mounts:  []specs.Mount{{Source: "/dev/null", Destination: volumeRoot + volume}},
		}
		for _, accepted := range []bool{true, false} {
			devices := Of(spec, func(string, ...any) {}).Devices(Rules{AcceptVolumeMounts: accepted, AcceptEnvUnprivileged: true})
			if !reflect.DeepEqual(devices, unique(devices)) {
				t.Errorf("%q has a device twice", devices)
			}
			for _, device := range devices {
				if device == "" {
					t.Errorf("%q has an empty device", devices)
				}
			}
		}
	})
}
