package storeapi

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/bench/streams"
)

const (
	dataVersion  = 2 // must change whenever ensure writes other data
	seriesCount  = 100_000
	seriesPerPod = 10
	startMS      = 1767225600_000
	stepMS       = 15_000
)

// sampleCounts are the numbers of samples of a series, a file each.
var sampleCounts = []int{100, 240}

// lset returns the nine labels of series number i, as of a container in a cluster.
func lset(i int) []streams.Label {
	pod := i / seriesPerPod
	return []streams.Label{
		{Name: "__name__", Value: "container_network_receive_bytes_total"},
		{Name: "cluster", Value: "eu-west-1-production"},
		{Name: "container", Value: fmt.Sprintf("container-%d", i%seriesPerPod)},
		{Name: "endpoint", Value: "https-metrics"},
		{Name: "instance", Value: fmt.Sprintf("10.%d.%d.%d:10250", 32+pod>>16, pod>>8&255, pod&255)},
		{Name: "job", Value: "kubernetes-pods"},
		{Name: "namespace", Value: fmt.Sprintf("team-%02d", pod%20)},
		{Name: "node", Value: fmt.Sprintf("ip-10-0-%03d.eu-west-1.compute.internal", pod%100)},
		{Name: "pod", Value: fmt.Sprintf("service-%03d-%08x-%05d", pod%250, uint32(pod)*2654435761, pod)},
	}
}

// ensure returns a file with seriesCount series, sorted by labels, of this many samples each. It creates the file if it does not
// exist. The series are gauges, scraped every 15 s. Every third value differs from the previous one, by at most 1.00.
func ensure(cache string, samples int) (string, error) {
	path := filepath.Join(cache, "streams", fmt.Sprintf("v%d-%dx%d", dataVersion, seriesCount, samples))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	list := make([]streams.Series, seriesCount)
	for i := range list {
		chunks, err := chunksOf(i, samples)
		if err != nil {
			return "", err
		}
		list[i] = streams.Series{Labels: lset(i), Chunks: chunks}
	}
	slices.SortFunc(list, func(a, b streams.Series) int {
		return slices.CompareFunc(a.Labels, b.Labels, func(a, b streams.Label) int { return strings.Compare(a.Value, b.Value) })
	})
	part := path + ".part"
	if err := streams.Write(part, list); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}

func chunksOf(i, samples int) (chunks []streams.Chunk, err error) {
	rng := rand.New(rand.NewPCG(1, uint64(i)))
	value := rng.IntN(100_000)
	times, values := make([]int64, samples), make([]float64, samples)
	for j := range samples {
		if j%3 == 0 { // as many gauges do, it keeps its value in between
			value += rng.IntN(201) - 100
		}
		times[j], values[j] = startMS+int64(j)*stepMS, float64(value)/100
	}
	encoded, err := stores.Chunks(times, values)
	for _, c := range encoded {
		chunks = append(chunks, streams.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS, Encoding: byte(c.Encoding), Data: c.Data})
	}
	return chunks, err
}
