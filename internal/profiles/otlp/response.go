package otlp

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Response encodes the response to a request. rejected is the number of profiles of the request
// that were rejected. first is the error of one rejected profile; it is not used if rejected is 0.
func Response(rejected int, first error, asJSON bool) []byte {
	if rejected == 0 { // partial_success must not be set, and the library always sets it
		if asJSON {
			return []byte("{}")
		}
		return nil
	}
	response := pprofileotlp.NewExportResponse()
	response.PartialSuccess().SetRejectedProfiles(int64(rejected))
	response.PartialSuccess().SetErrorMessage(first.Error())
	if asJSON {
		return encoded(response.MarshalJSON())
	}
	return encoded(response.MarshalProto())
}

// Status encodes the response to a refused request: a google.rpc.Status. code is a gRPC status code.
func Status(code int32, text string, asJSON bool) []byte {
	status := &statuspb.Status{Code: code, Message: strings.ToValidUTF8(text, "\uFFFD")}
	if asJSON {
		return encoded(protojson.Marshal(status))
	}
	return encoded(proto.Marshal(status))
}

// encoded returns b, or nil if err is set. The messages of this file have only numbers and valid
// texts, so their encoding does not fail.
func encoded(b []byte, err error) []byte {
	if err != nil {
		return nil
	}
	return b
}
