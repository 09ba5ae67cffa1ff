package ingest

import (
	"net/http"
	"reflect"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/protobuf/encoding/protowire"
)

// otlpEncodings are the encodings in which clients send a request.
func otlpEncodings(t *testing.T, change func(pprofile.Profiles)) map[string][]byte {
	t.Helper()
	text, err := pprofileotlp.NewExportRequestFromProfiles(otlpRequest(change)).MarshalJSON()
	must(t, err)
	fromJSON, err := otlpFromJSON(text, otlpJSONMax)
	must(t, err)
	referenced, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(otlpRequest(change)) // keys and texts of attributes are in the dictionary
	must(t, err)
	return map[string][]byte{"inline": otlpProto(t, otlpRequest(change)), "JSON": fromJSON, "references": referenced}
}

func TestPushOTLP_EveryEncodingIsStoredAlike(t *testing.T) {
	change := func(p pprofile.Profiles) {
		resource := p.ResourceProfiles().At(0)
		resource.Resource().Attributes().PutInt("process.pid", 7)
		resource.ScopeProfiles().At(0).Scope().Attributes().PutStr("kind", "test")
		resource.ScopeProfiles().At(0).Profiles().At(0).SetProfileID([16]byte{9, 9})
	}
	for name, raw := range otlpEncodings(t, change) {
		in, store := newIngester(t, Limits{})
		request, err := decodeOTLP(raw, otlpMax)
		must(t, err)
		if rejected, first, err := in.pushOTLP(t.Context(), "acme", request); rejected != 0 || first != nil || err != nil {
			t.Fatal(name, rejected, first, err)
		}
		all := store.list()
		if len(all) != 2 || all[0].labels != "__name__=process_cpu,host_name=a1,k8s_pod_label_app_part=web,kind=test,process_pid=7,service_name=shop" ||
			!reflect.DeepEqual(all[0].stacks("cpu"), map[string]int64{"main;work": 150_000_000}) {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

func TestPushOTLP_AnInvalidReferenceNamesItsPlace(t *testing.T) {
	for want, change := range map[string]func(pprofile.Profiles){
		"samples[0]: bad request: invalid OTLP profiles: location 9, but location_table has 3 elements": func(p pprofile.Profiles) {
			p.Dictionary().StackTable().At(1).LocationIndices().FromRaw([]int32{9})
		},
		"samples[0]: bad request: invalid OTLP profiles: function -1, but function_table has 3 elements": func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(1).Lines().At(0).SetFunctionIndex(-4)
		},
		"samples[0]: bad request: invalid OTLP profiles: string 12, but string_table has 12 elements": func(p pprofile.Profiles) {
			p.Dictionary().FunctionTable().At(1).SetNameStrindex(12)
		},
		"samples[0]: bad request: invalid OTLP profiles: 2 values at 3 timestamps": func(p pprofile.Profiles) {
			p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(0).Values().FromRaw([]int64{1, 2})
		},
	} {
		in, _ := newIngester(t, Limits{})
		_, _, err := pushOTLP(t, in, otlpRequest(change))
		if err == nil || err.Error() != "resource_profiles[0].scope_profiles[0].profiles[0]: "+want || StatusOf(err) != http.StatusBadRequest {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// inOTLP nests an encoded message in messages, given by their field numbers from the outside.
func inOTLP(inner []byte, numbers ...protowire.Number) []byte {
	for i := len(numbers) - 1; i >= 0; i-- {
		inner = protowire.AppendBytes(protowire.AppendTag(nil, numbers[i], protowire.BytesType), inner)
	}
	return inner
}

// An empty element takes two bytes on the wire. Decoding and converting it must not take many more.
func TestDecodeOTLP_ManyElementsInFewBytesTakeLittleMemory(t *testing.T) {
	const many, limit = 1_000_000, 100_000 // a slice that grows leaves about five times its size
	for name, at := range map[string][]protowire.Number{
		"resources": {1}, "scopes": {1, 2}, "attributes": {1, 1, 1}, "profiles": {1, 2, 2}, "samples": {1, 2, 2, 2}, "sample types": {1, 2, 2, 1},
		"mappings": {2, 1}, "locations": {2, 2}, "lines": {2, 2, 3}, "functions": {2, 3}, "links": {2, 4}, "strings": {2, 5}, "table of attributes": {2, 6}, "stacks": {2, 7},
	} {
		var list []byte
		for range many {
			list = protowire.AppendBytes(protowire.AppendTag(list, at[len(at)-1], protowire.BytesType), nil)
		}
		raw := inOTLP(list, at[:len(at)-1]...)
		in, _ := newIngester(t, smallLimits())
		var err error
		used := allocated(func() {
			var request *otlpExport
			if request, err = decodeOTLP(raw, otlpLimits{limit, 100}); err == nil {
				_, _, err = in.pushOTLP(t.Context(), "acme", request)
			}
		})
		if err != nil && StatusOf(err) != http.StatusBadRequest || used > 150*limit {
			t.Errorf("%s: %d KiB were allocated, %v", name, used>>10, err)
		}
	}
}

// A message of the dictionary is read by each sample that refers to it: a large one must not be read a million times.
func TestPushOTLP_LargeElementsThatManySamplesShareAreCounted(t *testing.T) {
	junk := make([]byte, 0, 4<<20)
	for len(junk) < 4<<20 {
		junk = protowire.AppendVarint(protowire.AppendTag(junk, 15, protowire.VarintType), 1)
	}
	dictionary := otlpProto(t, otlpRequest(nil))
	dictionary = append(dictionary, inOTLP(junk, 2, 7)...) // stack 3
	var samples []byte
	for range 100_000 {
		samples = append(samples, inOTLP(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3), 2)...)
	}
	types := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	request, err := decodeOTLP(append(dictionary, inOTLP(append(inOTLP(types, 1), samples...), 1, 2, 2)...), otlpMax)
	must(t, err)
	in, _ := newIngester(t, smallLimits())
	if rejected, first, err := in.pushOTLP(t.Context(), "acme", request); rejected != 1 || first == nil || !strings.Contains(first.Error(), "the strings of the request") || err != nil {
		t.Error(rejected, first, err)
	}
}

func TestDecodeOTLP_LimitsAreExact(t *testing.T) {
	var list []byte
	for range 11 {
		list = append(list, inOTLP(nil, 2)...)
	}
	raw := inOTLP(list, 1, 2)
	for limits, want := range map[otlpLimits]string{{13, 11}: "", {12, 11}: "too many elements", {13, 10}: "too many profiles"} {
		_, err := decodeOTLP(raw, limits)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || StatusOf(err) != http.StatusBadRequest || reasonOf(err) != "profile_size") {
			t.Errorf("%+v: %v", limits, err)
		}
	}
	deep := []byte(`{"resourceProfiles":[{"resource":{"attributes":[{"key":"a","value":` + strings.Repeat(`{"arrayValue":{"values":[`, 1_000_000))
	for text, want := range map[string]string{
		string(deep): "more than 64 levels", `{"resourceProfiles":[` + strings.Repeat("{},", 10_000) + `{}]}`: "more than 8192 elements", `{"resourceProfiles":`: "invalid OTLP profiles",
	} {
		most := 8 << 10
		if len(text) == len(deep) {
			most = 1 << 30
		}
		if _, err := otlpFromJSON([]byte(text), most); err == nil || !strings.Contains(err.Error(), want) || StatusOf(err) != http.StatusBadRequest {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func FuzzDecodeOTLP(f *testing.F) {
	raw := otlpProto(f, otlpRequest(nil))
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	limits := smallLimits().withDefaults()
	f.Fuzz(func(t *testing.T, src []byte) {
		request, err := decodeOTLP(src, otlpLimits{10_000, 100})
		if err == nil {
			c := &otlpConverter{request: request, limits: &limits, left: limits.BurstBytes, reads: readsMax(&limits)}
			for i := range request.profiles {
				if _, e := c.convert(&request.profiles[i]); e != nil {
					err = e
				}
			}
		}
		if err != nil && StatusOf(err) != http.StatusBadRequest {
			t.Fatal(err)
		}
	})
}
