// Package requirements checks what images demand of driver and GPU in NVIDIA_REQUIRE_* (contracts/toolkit-cdi.md 6.4).
package requirements

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const prefix = "NVIDIA_REQUIRE_"

// Properties are what conditions are about, by name: cuda, driver, arch and brand. One that is not known is left out,
// and conditions on it are passed over.
type Properties map[string]string

// compare says how a property's value stands to the one in a condition.
type compare func(have, want string) (int, error)

var comparisons = map[string]compare{
	"cuda":   compareVersions,
	"driver": compareVersions,
	"arch":   compareVersions,
	"brand":  compareBrands,
}

// operators with the longer ones first.
var operators = []struct {
	text string
	met  func(order int) bool
}{
	{"!=", func(order int) bool { return order != 0 }},
	{"<=", func(order int) bool { return order <= 0 }},
	{">=", func(order int) bool { return order >= 0 }},
	{"=", func(order int) bool { return order == 0 }},
	{"<", func(order int) bool { return order < 0 }},
	{">", func(order int) bool { return order > 0 }},
}

// OfImage are the requirements in an image's variables; all of them must be met. An image that is legacy demands the
// CUDA version it was made for.
func OfImage(variables map[string]string, legacy bool) ([]string, error) {
	if disabled, err := strconv.ParseBool(variables["NVIDIA_DISABLE_REQUIRE"]); err == nil && disabled {
		return nil, nil
	}
	var requirements []string
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, prefix+"JETPACK") {
			requirements = append(requirements, variables[name])
		}
	}
	if legacy {
		version, err := parseVersion(variables["CUDA_VERSION"])
		if err != nil {
			return nil, fmt.Errorf("invalid CUDA version %s: %w", variables["CUDA_VERSION"], err)
		}
		requirements = append(requirements, fmt.Sprintf("cuda>=%d.%d", version[0], version[1]))
	}
	return requirements, nil
}

// Check is the error for the first requirement that is not met or cannot be read.
func Check(requirements []string, properties Properties) error {
	for _, requirement := range requirements {
		if err := checkOne(requirement, properties); err != nil {
			return err
		}
	}
	return nil
}

// checkOne checks alternatives that blanks separate. Each is a list of conditions, separated by commas. Every condition
// is read, also where one that is met comes first: a mistake is a mistake on every node.
func checkOne(requirement string, properties Properties) error {
	alternatives, unmet := 0, []string{}
	for _, alternative := range strings.Fields(requirement) {
		conditions, failed := 0, ""
		for _, text := range strings.Split(alternative, ",") {
			met, known, err := checkCondition(text, properties)
			if err != nil {
				return err
			}
			if known {
				conditions++
			}
			if known && !met && failed == "" {
				failed = text
			}
		}
		if conditions == 0 {
			continue
		}
		alternatives++
		if failed != "" {
			unmet = append(unmet, failed)
		}
	}
	if alternatives > 0 && len(unmet) == alternatives {
		return fmt.Errorf("unsatisfied condition: %s (this node: %s); update the driver, or use an image for an earlier CUDA version", strings.Join(unmet, " or "), properties)
	}
	return nil
}

func checkCondition(text string, properties Properties) (met, known bool, err error) {
	if text == "" {
		return false, false, nil
	}
	end := strings.IndexAny(text, "<>=!")
	if end < 0 {
		return false, false, fmt.Errorf("invalid constraint: %s (want a property, one of = != < <= > >=, and a value)", text)
	}
	name, rest := text[:end], text[end:]
	comparison, isProperty := comparisons[name]
	if !isProperty {
		return false, false, nil
	}
	for _, operator := range operators {
		want, found := strings.CutPrefix(rest, operator.text)
		if !found {
			continue
		}
		have, isKnown := properties[name]
		if !isKnown { // the value must be one all the same
			_, err := comparison(want, want)
			return false, false, inCondition(err, text)
		}
		order, err := comparison(have, want)
		return err == nil && operator.met(order), true, inCondition(err, text)
	}
	return false, false, fmt.Errorf("invalid constraint: %s (unknown operator)", text)
}

func inCondition(err error, text string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("invalid constraint: %s: %w", text, err)
}

// String gives the properties for a message.
func (p Properties) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p)) {
		all = append(all, name+"="+p[name])
	}
	return strings.Join(all, ", ")
}

// compareBrands ignores case: the driver says Tesla or Nvidia, images say tesla and nvidia.
func compareBrands(have, want string) (int, error) {
	return strings.Compare(strings.ToLower(have), strings.ToLower(want)), nil
}

type version [3]uint64

func compareVersions(have, want string) (int, error) {
	wanted, err := parseVersion(want)
	if err != nil {
		return 0, err
	}
	had, err := parseVersion(have)
	if err != nil {
		return 0, fmt.Errorf("this node's value is %w", err)
	}
	return slices.Compare(had[:], wanted[:]), nil
}

// parseVersion reads up to three numbers with dots; what follows a dash or plus sign does not count.
func parseVersion(text string) (version, error) {
	var parsed version
	numbers, _, _ := strings.Cut(strings.TrimPrefix(text, "v"), "-")
	numbers, _, _ = strings.Cut(numbers, "+")
	parts := strings.Split(numbers, ".")
	if len(parts) > len(parsed) {
		return parsed, fmt.Errorf("invalid version string: %q", text)
	}
	for index, part := range parts {
		number, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return parsed, fmt.Errorf("invalid version string: %q", text)
		}
		parsed[index] = number
	}
	return parsed, nil
}
