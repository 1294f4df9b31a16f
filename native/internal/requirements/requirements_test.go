package requirements

import (
	"strings"
	"testing"
)

func TestVersionsCompareByNumbers(t *testing.T) {
	for _, row := range []struct {
		have, want string
		order      int
	}{
		{"12.4", "12.4", 0}, {"12.4", "12.4.0", 0}, {"12.10", "12.9", 1}, {"9", "10", -1}, {"580.95.05", "580.95.5", 0},
		{"v1.2", "1.2", 0}, {"1.2-rc.1", "1.2", 0}, {"1.2.3+build", "1.2.3", 0},
	} {
		order, err := compareVersions(row.have, row.want)
		if err != nil || order != row.order {
			t.Errorf("%s against %s: %d, %v; want %d", row.have, row.want, order, err, row.order)
		}
	}
}

func TestWhatIsNoVersionIsAnError(t *testing.T) {
	for _, text := range []string{"", "x", "1.", ".1", "1.2.3.4", "-1", "1 2", "99999999999"} {
		if parsed, err := parseVersion(text); err == nil {
			t.Errorf("%q was read as %v", text, parsed)
		}
	}
}

func TestEveryOperator(t *testing.T) {
	for operator, met := range map[string][3]bool{ // for a value below, equal to and above the one in the condition
		"=": {false, true, false}, "!=": {true, false, true}, "<": {true, false, false},
		"<=": {true, true, false}, ">": {false, false, true}, ">=": {false, true, true},
	} {
		for index, value := range []string{"11", "12", "13"} {
			err := Check([]string{"cuda" + operator + "12"}, Properties{"cuda": value})
			if (err == nil) != met[index] {
				t.Errorf("cuda=%s, cuda%s12: %v", value, operator, err)
			}
		}
	}
}

func TestBrandsAreComparedWithoutCase(t *testing.T) {
	for condition, met := range map[string]bool{
		"brand=tesla": true, "brand=TESLA": true, "brand!=tesla": false, "brand=geforce": false, "brand!=geforce": true,
	} {
		if err := Check([]string{condition}, Properties{"brand": "Tesla"}); (err == nil) != met {
			t.Errorf("%s with Tesla: %v", condition, err)
		}
	}
}

func TestAnUnmetRequirementSaysWhatThereIs(t *testing.T) {
	err := Check([]string{"cuda>=13 driver>600"}, Properties{"cuda": "12.4", "driver": "550.1"})
	if err == nil || !strings.Contains(err.Error(), "cuda>=13 or driver>600 (this node: cuda=12.4, driver=550.1)") {
		t.Error(err)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("cuda>=12.4 brand=tesla,driver>=535,driver<536")
	f.Add("=,<>! ,,")
	f.Fuzz(func(t *testing.T, requirement string) {
		first := Check([]string{requirement}, Properties{"cuda": "12.4", "brand": "tesla"})
		second := Check([]string{"", requirement}, Properties{"cuda": "12.4", "brand": "tesla"})
		if (first == nil) != (second == nil) {
			t.Errorf("%v, %v", first, second)
		}
	})
}
