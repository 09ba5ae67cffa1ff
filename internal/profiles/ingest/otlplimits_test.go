package ingest

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// smallLimits are limits of which a request of some megabytes is a multiple.
func smallLimits() Limits {
	return Limits{DecompressedBytes: 1 << 20, BurstBytes: 2 << 20, RateBytes: 1 << 20, LabelValueBytes: 1 << 20}
}

// A small request becomes large when it is converted: many elements of its lists refer to the same long texts. The limits
// hold for the converted size.
func TestPushOTLP_TextsThatManyElementsShareDoNotFillMemory(t *testing.T) {
	const long, many = 256 << 10, 400
	first := func(p pprofile.Profiles) pprofile.Profile {
		return p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
	}
	text := strings.Repeat("x", long)
	repeated := func(n, index int) []int32 {
		all := make([]int32, n)
		for i := range all {
			all[i] = int32(index)
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		change func(p pprofile.Profiles)
	}{
		{"attributes of a sample", func(p pprofile.Profiles) {
			a := p.Dictionary().AttributeTable().AppendEmpty()
			a.SetKeyStrindex(otlpDictionary(p, "path")["path"])
			a.Value().SetStr(text)
			first(p).Samples().At(0).AttributeIndices().FromRaw(repeated(many, p.Dictionary().AttributeTable().Len()-1))
		}},
		{"attributes of a profile", func(p pprofile.Profiles) {
			number := otlpDictionary(p, text)[text]
			a := p.Dictionary().AttributeTable().AppendEmpty()
			a.SetKeyStrindex(number)
			a.Value().SetStr("v")
			first(p).AttributeIndices().FromRaw(repeated(many, p.Dictionary().AttributeTable().Len()-1))
		}},
		{"functions of a stack", func(p pprofile.Profiles) {
			dict, number := p.Dictionary(), otlpDictionary(p, text)[text]
			var stack []int32
			for range many {
				f := dict.FunctionTable().AppendEmpty()
				f.SetNameStrindex(number)
				f.SetSystemNameStrindex(number)
				f.SetFilenameStrindex(number)
				l := dict.LocationTable().AppendEmpty()
				l.Lines().AppendEmpty().SetFunctionIndex(int32(dict.FunctionTable().Len() - 1))
				stack = append(stack, int32(dict.LocationTable().Len()-1))
			}
			dict.StackTable().AppendEmpty().LocationIndices().FromRaw(stack)
			first(p).Samples().At(0).SetStackIndex(int32(dict.StackTable().Len() - 1))
			// The same sample in many profiles.
			for range 20 {
				first(p).CopyTo(p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().AppendEmpty())
			}
		}},
		{"sample types of profiles", func(p pprofile.Profiles) {
			first(p).SampleType().SetUnitStrindex(otlpDictionary(p, text)[text])
			for range many {
				first(p).CopyTo(p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().AppendEmpty())
			}
		}},
		{"labels of services", func(p pprofile.Profiles) {
			for i := range 2000 {
				p.ResourceProfiles().At(0).Resource().Attributes().PutStr(fmt.Sprint("label", i), "v")
			}
			key := otlpDictionary(p, "service.name")["service.name"]
			for i := range 2000 {
				a := p.Dictionary().AttributeTable().AppendEmpty()
				a.SetKeyStrindex(key)
				a.Value().SetStr(fmt.Sprint("service", i))
				s := first(p).Samples().AppendEmpty()
				s.AttributeIndices().FromRaw([]int32{int32(p.Dictionary().AttributeTable().Len() - 1)})
				s.Values().FromRaw([]int64{1})
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, store := newIngester(t, smallLimits())
			request := otlpRequest(tt.change)
			var rejected int
			var first, err error
			used := allocated(func() { rejected, first, err = pushOTLP(t, in, request) })
			if err == nil {
				err = first
			}
			if !errors.Is(err, pprof.ErrLimit) || StatusOf(err) != http.StatusBadRequest || !strings.HasPrefix(err.Error(), "resource_profiles[0].scope_profiles[0].profiles[") {
				t.Errorf("%d rejected, %d stored: %.300v", rejected, len(store.list()), err)
			}
			if used > 60<<20 {
				t.Errorf("%d MiB were allocated", used>>20)
			}
		})
	}
}

// Attributes of a resource are read for each of its profiles: those at the end are rejected, and the response states it.
func TestPushOTLP_AttributesThatManyProfilesShareAreCounted(t *testing.T) {
	const profiles = 100
	in, store := newIngester(t, smallLimits())
	rejected, first, err := pushOTLP(t, in, otlpRequest(func(p pprofile.Profiles) {
		resource := p.ResourceProfiles().At(0)
		for range 10_000 {
			a := resource.Resource().Attributes()
			a.PutEmpty(fmt.Sprint("k", a.Len())).SetStr("") // an empty one is no label
		}
		scope := resource.ScopeProfiles().At(0)
		for range profiles - 1 {
			scope.Profiles().At(0).CopyTo(scope.Profiles().AppendEmpty())
		}
	}))
	if err != nil || rejected == 0 || !errors.Is(first, pprof.ErrLimit) || len(store.list()) != 2*(profiles-rejected) {
		t.Errorf("%d rejected, %d stored: %v, %v", rejected, len(store.list()), first, err)
	}
}
