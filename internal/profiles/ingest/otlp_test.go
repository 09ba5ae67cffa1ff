package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// otlpDictionary adds strings to a dictionary and returns their numbers.
func otlpDictionary(p pprofile.Profiles, texts ...string) map[string]int32 {
	if p.Dictionary().StringTable().Len() == 0 {
		p.Dictionary().StringTable().Append("")
	}
	numbers := map[string]int32{}
	for _, text := range texts {
		numbers[text] = int32(p.Dictionary().StringTable().Len())
		p.Dictionary().StringTable().Append(text)
	}
	return numbers
}

// otlpRequest is a request with one CPU profile of two processes of a host, as counts of
// samples: three samples of main;work in shop, in a span, and two samples of an address in a
// program without a service name.
func otlpRequest(change func(pprofile.Profiles)) pprofile.Profiles {
	all := pprofile.NewProfiles()
	dict := all.Dictionary()
	text := otlpDictionary(all, "samples", "count", "cpu", "nanoseconds", "main", "work", "main.go", "/lib/libc.so", "service.name", "process.executable.name", "thread.id")
	dict.MappingTable().AppendEmpty()
	dict.MappingTable().AppendEmpty().SetFilenameStrindex(text["/lib/libc.so"])
	dict.FunctionTable().AppendEmpty()
	dict.LocationTable().AppendEmpty()
	for _, name := range []string{"main", "work"} {
		f := dict.FunctionTable().AppendEmpty()
		f.SetNameStrindex(text[name])
		f.SetFilenameStrindex(text["main.go"])
	}
	// One location with two lines: work was inlined into main.
	location := dict.LocationTable().AppendEmpty()
	for _, function := range []int32{2, 1} {
		line := location.Lines().AppendEmpty()
		line.SetFunctionIndex(function)
		line.SetLine(10)
	}
	native := dict.LocationTable().AppendEmpty()
	native.SetMappingIndex(1)
	native.SetAddress(0x1234)
	dict.LinkTable().AppendEmpty()
	link := dict.LinkTable().AppendEmpty()
	link.SetTraceID([16]byte{0xAB, 15: 1})
	link.SetSpanID([8]byte{0xCD, 7: 2})
	dict.AttributeTable().AppendEmpty()
	for _, pair := range [][2]string{{"service.name", "shop"}, {"process.executable.name", "nginx"}} {
		a := dict.AttributeTable().AppendEmpty()
		a.SetKeyStrindex(text[pair[0]])
		a.Value().SetStr(pair[1])
	}
	thread := dict.AttributeTable().AppendEmpty()
	thread.SetKeyStrindex(text["thread.id"])
	thread.Value().SetInt(42)
	dict.StackTable().AppendEmpty()
	dict.StackTable().AppendEmpty().LocationIndices().FromRaw([]int32{1})
	dict.StackTable().AppendEmpty().LocationIndices().FromRaw([]int32{2})

	resource := all.ResourceProfiles().AppendEmpty()
	resource.Resource().Attributes().PutStr("host.name", "a1")
	resource.Resource().Attributes().PutStr("k8s.pod.label.app/part", "web")
	resource.Resource().Attributes().PutEmptySlice("process.command_args").AppendEmpty().SetStr("-v")
	p := resource.ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
	p.SampleType().SetTypeStrindex(text["samples"])
	p.SampleType().SetUnitStrindex(text["count"])
	p.PeriodType().SetTypeStrindex(text["cpu"])
	p.PeriodType().SetUnitStrindex(text["nanoseconds"])
	p.SetPeriod(50_000_000)
	p.SetTime(1_800_000_000_000_000_000)
	p.SetDurationNano(5_000_000_000)
	shop := p.Samples().AppendEmpty()
	shop.SetStackIndex(1)
	shop.SetLinkIndex(1)
	shop.AttributeIndices().FromRaw([]int32{1, 3})
	shop.TimestampsUnixNano().FromRaw([]uint64{1, 2, 3})
	other := p.Samples().AppendEmpty()
	other.SetStackIndex(2)
	other.AttributeIndices().FromRaw([]int32{2})
	other.Values().FromRaw([]int64{2})
	if change != nil {
		change(all)
	}
	return all
}

func otlpProto(t testing.TB, p pprofile.Profiles) []byte {
	t.Helper()
	raw, err := pprofileotlp.NewExportRequestFromProfiles(p).MarshalProto()
	must(t, err)
	return raw
}

// pushOTLP pushes a request as the receiver does.
func pushOTLP(t *testing.T, in *Ingester, p pprofile.Profiles) (rejected int, first, err error) {
	t.Helper()
	request, err := decodeOTLP(otlpProto(t, p), otlpMax)
	must(t, err)
	return in.pushOTLP(context.Background(), "acme", request)
}

func TestPushOTLP_ProfileIsStoredByService(t *testing.T) {
	in, store := newIngester(t, Limits{})
	if rejected, first, err := pushOTLP(t, in, otlpRequest(nil)); err != nil || rejected != 0 || first != nil {
		t.Fatal(rejected, first, err)
	}
	all := store.list()
	if len(all) != 2 || all[0].tenant != "acme" {
		t.Fatalf("%+v", all)
	}
	if want := "__name__=process_cpu,host_name=a1,k8s_pod_label_app_part=web,service_name=shop"; all[0].labels != want {
		t.Errorf("got %s want %s", all[0].labels, want)
	}
	if want := "__name__=process_cpu,host_name=a1,k8s_pod_label_app_part=web,service_name=nginx"; all[1].labels != want {
		t.Errorf("got %s want %s", all[1].labels, want)
	}
	if got, want := all[0].stacks("cpu"), map[string]int64{"main;work": 150_000_000}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v want %v", got, want)
	}
	if got, want := all[1].stacks("cpu"), map[string]int64{"0x1234": 100_000_000}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v want %v", got, want)
	}
	labels := all[0].profile.Sample[0].Label
	want := map[string][]string{"trace_id": {"ab000000000000000000000000000001"}, "span_id": {"cd00000000000002"}}
	if !reflect.DeepEqual(labels, want) {
		t.Errorf("got %v want %v", labels, want)
	}
	p := all[1].profile
	if p.TimeNanos != 1_800_000_000_000_000_000 || p.DurationNanos != 5_000_000_000 || p.Period != 50_000_000 || p.Sample[0].Location[0].Line[0].Function.Filename != "/lib/libc.so" {
		t.Errorf("%v", p)
	}
}

func TestPushOTLP_InvalidProfilesAreRejectedAloneAndNamed(t *testing.T) {
	in, store := newIngester(t, Limits{})
	mixed := otlpRequest(func(p pprofile.Profiles) {
		scope := p.ResourceProfiles().At(0).ScopeProfiles().At(0)
		old := scope.Profiles().AppendEmpty() // 1
		scope.Profiles().At(0).CopyTo(old)
		old.SetTime(1_700_000_000_000_000_000)
		broken := scope.Profiles().AppendEmpty() // 2
		scope.Profiles().At(0).CopyTo(broken)
		broken.Samples().At(1).SetStackIndex(77)
	})
	rejected, first, err := pushOTLP(t, in, mixed)
	if err != nil || rejected != 2 || !strings.HasPrefix(first.Error(), "resource_profiles[0].scope_profiles[0].profiles[1]: start time ") {
		t.Errorf("%d rejected: %v, %v", rejected, first, err)
	}
	if n := len(store.list()); n != 2 {
		t.Errorf("%d profiles are stored", n)
	}
	if old, invalid := in.discarded.With("too_old").Get(), in.discarded.With("invalid").Get(); old != 2 || invalid != 1 {
		t.Errorf("%v too old, %v invalid", old, invalid)
	}
	broken := otlpRequest(func(p pprofile.Profiles) {
		p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(1).SetStackIndex(77)
	})
	_, _, err = pushOTLP(t, in, broken)
	want := "resource_profiles[0].scope_profiles[0].profiles[0]: samples[1]: bad request: invalid OTLP profiles: stack 77, but stack_table has 3 elements"
	if err == nil || err.Error() != want || StatusOf(err) != http.StatusBadRequest {
		t.Errorf("got %v want %s", err, want)
	}
}

func TestPushOTLP_StacksThatManySamplesShareDoNotFillMemory(t *testing.T) {
	shared := otlpRequest(func(p pprofile.Profiles) {
		// A stack of 900 frames that many samples share, each in a service of its own.
		dict := p.Dictionary()
		stack := make([]int32, 900)
		for i := range stack {
			stack[i] = 1
		}
		dict.StackTable().AppendEmpty().LocationIndices().FromRaw(stack)
		text := otlpDictionary(p, "service.name")
		profile := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
		profile.Samples().RemoveIf(func(pprofile.Sample) bool { return true })
		for i := range 5000 {
			a := dict.AttributeTable().AppendEmpty()
			a.SetKeyStrindex(text["service.name"])
			a.Value().SetStr(fmt.Sprint("service", i))
			s := profile.Samples().AppendEmpty()
			s.SetStackIndex(3)
			s.AttributeIndices().FromRaw([]int32{int32(dict.AttributeTable().Len() - 1)})
			s.Values().FromRaw([]int64{1})
		}
	})
	in, store := newIngester(t, Limits{DecompressedBytes: 1 << 20, BurstBytes: 2 << 20, RateBytes: 1 << 20})
	_, _, err := pushOTLP(t, in, shared)
	if !errors.Is(err, pprof.ErrLimit) || StatusOf(err) != http.StatusBadRequest || len(store.list()) != 0 {
		t.Error(err)
	}
	if n := in.discarded.With("profile_size").Get(); n != 1 {
		t.Errorf("%v are counted", n)
	}
}

func TestPushOTLP_OverTheSeriesNothingIsStored(t *testing.T) {
	in, store := newIngester(t, Limits{Series: 1})
	if _, _, err := pushOTLP(t, in, otlpRequest(nil)); StatusOf(err) != http.StatusTooManyRequests || len(store.list()) != 0 { // two services
		t.Errorf("%v, %d stored", err, len(store.list()))
	}
}

func TestPushOTLP_GreatestValueThatFitsIsStored(t *testing.T) {
	const period = 50_000_000
	for _, tt := range []struct {
		sampleType string
		value      int64
		want       int64 // 0: an error
	}{
		{"samples", math.MaxInt64 / period, math.MaxInt64 / period * period},
		{"samples", math.MaxInt64/period + 1, 0},
		{"events", math.MaxInt64, math.MaxInt64},
	} {
		in, store := newIngester(t, Limits{})
		_, _, err := pushOTLP(t, in, otlpRequest(func(p pprofile.Profiles) {
			one := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
			if tt.sampleType != "samples" {
				p.Dictionary().StringTable().Append(tt.sampleType)
				one.SampleType().SetTypeStrindex(int32(p.Dictionary().StringTable().Len() - 1))
			}
			one.Samples().At(1).Values().FromRaw([]int64{tt.value})
		}))
		if tt.want == 0 {
			want := fmt.Sprintf("samples[1]: bad request: %d samples of %d ns overflow a value", tt.value, period)
			if err == nil || !strings.HasSuffix(err.Error(), want) || StatusOf(err) != http.StatusBadRequest || len(store.list()) != 0 {
				t.Errorf("%d: got %v, want %s", tt.value, err, want)
			}
			continue
		}
		all := store.list()
		if err != nil || len(all) != 2 || all[1].profile.Sample[0].Value[0] != tt.want {
			t.Errorf("%d %s: %v, %+v", tt.value, tt.sampleType, err, all)
		}
	}
}
