package oci

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestMergeKeepsWhatTheLibraryDoesNotKnow(t *testing.T) {
	for _, row := range [][4]string{ // as it is, known of it before, known of it after, merged
		{`{"a":1,"x":2}`, `{"a":1}`, `{"a":3}`, `{"a":3,"x":2}`},
		{`{"a":1,"x":2}`, `{"a":1}`, `{}`, `{"x":2}`},
		{`{"x":2}`, `{"zero":0}`, `{"zero":0,"b":1}`, `{"x":2,"b":1}`},
		{`{"l":[{"k":1,"x":9},{"k":2}]}`, `{"l":[{"k":1},{"k":2}]}`, `{"l":[{"k":2},{"k":3},{"k":1}]}`, `{"l":[{"k":2},{"k":3},{"k":1,"x":9}]}`},
		{`{"l":[1,1]}`, `{"l":[1,1]}`, `{"l":[1,1,1]}`, `{"l":[1,1,1]}`},
		{`{"a":null}`, `{}`, `{"a":{"b":1}}`, `{"a":{"b":1}}`},
		{`{"a":{"x":1}}`, `{"a":{}}`, `{"a":{"b":1}}`, `{"a":{"x":1,"b":1}}`},
	} {
		var trees [4]any
		for index, text := range row {
			if err := json.Unmarshal([]byte(text), &trees[index]); err != nil {
				t.Fatal(err)
			}
		}
		if merged := merge(trees[0], trees[1], trees[2]); !reflect.DeepEqual(merged, trees[3]) {
			t.Errorf("%s, %s -> %s: %v", row[0], row[1], row[2], merged)
		}
	}
}
