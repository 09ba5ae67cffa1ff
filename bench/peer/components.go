package peer

import (
	"net"

	"github.com/ferula-io/ferula/bench/proc"
)

// Sidecar configures a sidecar of a Prometheus.
type Sidecar struct {
	Prometheus string // URL
	TSDB       string // Prometheus' data directory
	GRPC       string // address of its StoreAPI
	Log        string
}

// Sidecar returns the specification of Thanos' sidecar, or ferula's. Both take the same flags.
func (p Program) Sidecar(s Sidecar) proc.Spec {
	return p.component("sidecar", s.Log, "--grpc-address="+s.GRPC, "--prometheus.url="+s.Prometheus, "--tsdb.path="+s.TSDB)
}

// Store configures a store gateway over a bucket in a directory.
type Store struct {
	Bucket string // directory
	Data   string // its own directory
	GRPC   string // address of its StoreAPI
	Log    string
}

// Store returns the specification of Thanos' store gateway, or ferula's. Both take the same flags.
func (p Program) Store(s Store) proc.Spec {
	return p.component("store", s.Log, "--grpc-address="+s.GRPC, "--data-dir="+s.Data,
		"--objstore.config={type: FILESYSTEM, config: {directory: "+s.Bucket+"}}")
}

// Query configures a querier.
type Query struct {
	Endpoints []string // addresses of StoreAPIs
	GRPC      string   // address of its StoreAPI
	Log       string
}

// Query returns the specification of Thanos' querier, or ferula's. Both take the same flags. Series that differ in the label
// replica only are deduplicated.
func (p Program) Query(q Query) proc.Spec {
	args := []string{"--grpc-address=" + q.GRPC, "--query.replica-label=replica"}
	for _, address := range q.Endpoints {
		args = append(args, "--endpoint="+address)
	}
	return p.component("query", q.Log, args...)
}

func (p Program) component(name, log string, more ...string) proc.Spec {
	return proc.Spec{
		Name: p.Name + " " + name, Path: p.Path, Env: RuntimeEnv(), Ready: "/-/ready", Log: log,
		Args: func(addr string) []string { return append([]string{name, "--http-address=" + addr}, more...) },
	}
}

// FreeAddress returns a loopback address whose port is free now. The port is not reserved.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
