package frontend

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/canned"
	"github.com/ferula-io/ferula/bench/proc"
)

func panelsForTest(t *testing.T, n int) *panels {
	t.Helper()
	p, err := renderPanels(n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// halves returns what the downstream receives if each query is sent n times.
func (p *panels) halves(n int) (all []canned.Served) {
	for range n {
		for _, a := range p.responses {
			for _, half := range a.Halves {
				all = append(all, canned.Served{Query: a.Query, StartMS: half.StartMS, EndMS: half.EndMS, Encoding: "gzip"})
			}
		}
	}
	return all
}

func TestRenderPanels_QueriesDifferAndHaveAsManySamples(t *testing.T) {
	p := panelsForTest(t, 3)
	for i, a := range p.responses {
		if a.Samples() != smallSeries*points || len(a.Whole.Plain) != len(p.responses[0].Whole.Plain) {
			t.Errorf("%s: %d samples, %d bytes", a.Query, a.Samples(), len(a.Whole.Plain))
		}
		for _, other := range p.responses[:i] {
			if a.Query == other.Query {
				t.Errorf("%s is there twice", a.Query)
			}
		}
	}
}

func TestCheckPanelParts_RejectsOtherRequestsThanTwoHalves(t *testing.T) {
	p := panelsForTest(t, 2)
	whole := canned.Served{Query: p.responses[0].Query, StartMS: p.responses[0].Whole.StartMS, EndMS: p.responses[0].Whole.EndMS}
	for name, c := range map[string]struct {
		served []canned.Served
		want   error
	}{
		"two halves each":         {p.halves(3), nil},
		"nothing":                 {nil, errParts},
		"a half too few":          {p.halves(3)[1:], errParts},
		"a half too many":         {append(p.halves(3), p.halves(1)[0]), errParts},
		"a whole one, too":        {append(p.halves(3), whole), errParts},
		"a whole one for a half":  {append(p.halves(3)[1:], whole), errParts},
		"shared between requests": {p.halves(2), errParts},
	} {
		if err := checkPanelParts(p, []int{3, 3}, slices.Clone(c.served)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestPanels_UnequalResponsesAreErrors(t *testing.T) {
	p := panelsForTest(t, 1)
	a := p.responses[0]
	for name, c := range map[string]struct {
		text []byte
		want error
	}{
		"the same":        {a.Whole.Plain, nil},
		"one byte less":   {a.Whole.Plain[:len(a.Whole.Plain)-1], area.ErrUnequal},
		"of one half":     {a.Halves[0].Plain, area.ErrUnequal},
		"an empty matrix": {[]byte(`{"status":"success","data":{"resultType":"matrix","result":[]}}`), area.ErrUnequal},
	} {
		f := frontForTest(t, ferula, a, encode(c.text), a.Halves[:]...)
		if err := benchForTest(a).comparePanels(context.Background(), f, p, zipped); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestSendPanel_RejectsAnotherLengthThanTheComparedOne(t *testing.T) {
	p := panelsForTest(t, 1)
	a := p.responses[0]
	b, f := benchForTest(a), frontForTest(t, ferula, a, encode(a.Whole.Plain), a.Halves[:]...)
	if err := b.comparePanels(context.Background(), f, p, identity); err != nil {
		t.Fatal(err)
	}
	client := proc.NewClient(f.server.URL())
	if err := b.sendPanel(context.Background(), client, f, p, 0, identity); err != nil {
		t.Error(err)
	}
	p.lengths[f][identity][0]++
	if err := b.sendPanel(context.Background(), client, f, p, 0, identity); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("got %v", err)
	}
}
