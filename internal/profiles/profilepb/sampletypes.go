package profilepb

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// SampleTypeConfig is an SDK's description of one sample type of a profile.
type SampleTypeConfig struct {
	DisplayName string
	Cumulative  bool
}

// ParseSampleTypes parses the sample_type_config of /ingest: a JSON object with one
// object per sample type. Unknown keys are ignored.
func ParseSampleTypes(text []byte) (map[string]SampleTypeConfig, error) {
	var root structpb.Struct
	if err := protojson.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("sample_type_config: %w", err)
	}
	all := make(map[string]SampleTypeConfig, len(root.GetFields()))
	for name, value := range root.GetFields() {
		object := value.GetStructValue()
		if object == nil {
			return nil, fmt.Errorf("sample_type_config: %q is not an object", name)
		}
		f := object.GetFields()
		all[name] = SampleTypeConfig{
			DisplayName: f["display-name"].GetStringValue(), Cumulative: f["cumulative"].GetBoolValue(),
		}
	}
	return all, nil
}
