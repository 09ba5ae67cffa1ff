package otlpprofile

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Response encodes the response to a request. rejected is the number of its profiles that were
// rejected, and first is the error of one of them.
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

// encoded returns b; nil with an error. Messages of numbers and valid texts encode without
// error.
func encoded(b []byte, err error) []byte {
	if err != nil {
		return nil
	}
	return b
}
