package splice

import (
	"testing"

	"github.com/ferula-io/ferula/promjson"
)

func TestUniteMembers_APartialListMakesTheUnionPartial(t *testing.T) {
	list := func(value string) List {
		return List{members: []promjson.Member{{Name: "isPartial", Value: []byte(value)}}}
	}
	for _, lists := range [][]List{{list("false"), list("true")}, {list("true"), list("false")}, {list("false"), list("true"), list("false")}} {
		if got := uniteMembers(lists); len(got) != 1 || string(got[0].Value) != "true" {
			t.Errorf("%d lists: %+v", len(lists), got)
		}
	}
	if got := uniteMembers([]List{list("false"), list("null")}); len(got) != 1 || isPartial(got[0]) {
		t.Errorf("no list is partial: %+v", got)
	}
}
