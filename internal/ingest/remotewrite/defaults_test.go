package remotewrite

import (
	"strings"
	"testing"

	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.InFlightMax != 16 || o.DecodedMax != 256<<20 || o.DecodingMax != 512<<20 || o.BodyMaxBytes != 32<<20 || o.Bodies == nil {
		t.Errorf("%+v", o)
	}
	if o := (Options{InFlightMax: 1, DecodedMax: 2, DecodingMax: 3, BodyMaxBytes: 4}).withDefaults(); o.InFlightMax != 1 || o.DecodedMax != 2 || o.DecodingMax != 3 || o.BodyMaxBytes != 4 {
		t.Errorf("%+v", o)
	}
	if o := (Options{DecodedMax: 1 << 40, BodyMaxBytes: 32<<20 + 1}).withDefaults(); o.DecodingMax != 1<<40 || o.BodyMaxBytes != 32<<20 {
		t.Errorf("%+v", o)
	}
	if o := (Options{BodyMaxBytes: 32 << 20}).withDefaults(); o.BodyMaxBytes != 32<<20 {
		t.Errorf("%+v", o)
	}
}

func TestOptions_MessagesAreOfTwoVersions(t *testing.T) {
	v1, v2 := string(remoteapi.WriteV1MessageType), string(remoteapi.WriteV2MessageType)
	if err := (Options{Messages: []string{v1, v2}}).Validate(); err != nil {
		t.Error(err)
	}
	err := Options{Messages: []string{"one", v1, "two"}}.Validate()
	if err == nil || !strings.Contains(err.Error(), `"one"`) || !strings.Contains(err.Error(), `"two"`) || strings.Contains(err.Error(), `message "`+v1) {
		t.Error(err)
	}
	if got := (Options{}).accepted(); len(got) != 2 {
		t.Errorf("%v", got)
	}
	if got := (Options{Messages: []string{v2}}).accepted(); len(got) != 1 || got[0] != remoteapi.WriteV2MessageType {
		t.Errorf("%v", got)
	}
}
