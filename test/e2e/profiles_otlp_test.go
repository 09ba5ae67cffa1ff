package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

func TestProfiles_OTLPOfACollectorIsQueryable(t *testing.T) {
	s := startServe(t, nil)
	request := fmt.Sprintf(`{
  "resourceProfiles": [{
    "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}, {"key": "host.name", "value": {"stringValue": "a1"}}]},
    "scopeProfiles": [{"profiles": [{
      "sampleType": {"typeStrindex": 1, "unitStrindex": 2}, "periodType": {"typeStrindex": 3, "unitStrindex": 4}, "period": "10000000",
      "timeUnixNano": "%d", "durationNano": "1000000000",
      "samples": [{"stackIndex": 1, "values": ["17"]}]}]}]}],
  "dictionary": {
    "stringTable": ["", "samples", "count", "cpu", "nanoseconds", "main", "work"], "mappingTable": [{}], "linkTable": [{}], "attributeTable": [{}],
    "functionTable": [{}, {"nameStrindex": 5}, {"nameStrindex": 6}],
    "locationTable": [{}, {"lines": [{"functionIndex": 1}]}, {"lines": [{"functionIndex": 2}]}],
    "stackTable": [{}, {"locationIndices": [2, 1]}]}}`, time.Now().UnixNano())
	if status, text := s.send(http.MethodPost, "/v1development/profiles", "application/json", []byte(request)); status != http.StatusOK || text != "{}" {
		t.Fatalf("%d %s", status, text)
	}
	f := s.flame(cpuType, `{service_name="shop",host_name="a1"}`)
	if f.Flamegraph.Total != "170000000" || !f.has("main") || !f.has("work") {
		t.Errorf("%+v", f)
	}
}
