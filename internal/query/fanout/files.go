package fanout

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/envsubst"
)

// Files are the sources of endpoints, read periodically.
type Files struct {
	Config     []byte   // Thanos' YAML of endpoints; nil for none
	ConfigFile string   // file with the same, in which $(NAME) is replaced; "" for none
	Discovery  []string // patterns of files in Prometheus' format of discovery by files
}

// Any reports whether any source is configured.
func (f Files) Any() bool { return len(f.Config) > 0 || f.ConfigFile != "" || len(f.Discovery) > 0 }

// Read reads all sources.
func (f Files) Read() ([]Address, error) {
	var all []Address
	text := f.Config
	if f.ConfigFile != "" {
		read, err := os.ReadFile(f.ConfigFile)
		if err != nil {
			return nil, err
		}
		expanded, err := envsubst.Expand(string(read))
		if err != nil {
			return nil, fmt.Errorf("endpoint configuration %s: %w", f.ConfigFile, err)
		}
		text = []byte(expanded)
	}
	if len(text) > 0 {
		found, err := parseEndpoints(text)
		if err != nil {
			return nil, fmt.Errorf("endpoint configuration %s: %w", f.ConfigFile, err)
		}
		all = append(all, found...)
	}
	for _, pattern := range f.Discovery {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		slices.Sort(names)
		for _, name := range names {
			found, err := readDiscovery(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

func parseEndpoints(text []byte) ([]Address, error) {
	var config struct {
		Default   yaml.Node `yaml:"default_client_config"`
		Endpoints []struct {
			Address       string    `yaml:"address"`
			Strict        bool      `yaml:"strict"`
			Group         bool      `yaml:"group"`
			ServiceConfig string    `yaml:"service_config"`
			ClientConfig  yaml.Node `yaml:"client_config"`
		} `yaml:"endpoints"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !config.Default.IsZero() {
		return nil, errors.New("default_client_config is not supported: use --grpc-client-tls-*, which apply to all endpoints")
	}
	var all []Address
	for i, e := range config.Endpoints {
		switch {
		case e.Address == "":
			return nil, fmt.Errorf("endpoint %d has no address", i)
		case !e.ClientConfig.IsZero():
			return nil, fmt.Errorf("endpoint %s: client_config is not supported: use --grpc-client-tls-*, which apply to all endpoints", e.Address)
		case e.ServiceConfig != "":
			return nil, fmt.Errorf("endpoint %s: service_config is not supported", e.Address)
		}
		address, err := Address{Name: e.Address, Strict: e.Strict, Group: e.Group}.Checked()
		if err != nil {
			return nil, err
		}
		all = append(all, address)
	}
	return all, nil
}

// readDiscovery reads YAML, which includes JSON.
func readDiscovery(name string) ([]Address, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var groups []struct {
		Targets []string `yaml:"targets"`
	}
	if err := yaml.Unmarshal(text, &groups); err != nil {
		return nil, err
	}
	var all []Address
	for _, g := range groups {
		for _, target := range g.Targets {
			all = append(all, Address{Name: target})
		}
	}
	return all, nil
}
