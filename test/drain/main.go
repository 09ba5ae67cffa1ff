// Command drain reads by remote read with ferula's client and discards the samples. The bench runs it as a process and
// measures its memory from outside.
//
//	GET /drain?url=URL&metric=NAME&start=MS&end=MS&form=chunks|samples
//
// returns the numbers of series and samples, and a hash over all labels, timestamps and values. The hash depends neither
// on the order of series nor on chunk boundaries.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"net/http"
	_ "net/http/pprof" // the bench requests garbage collections
	"os"
	"strconv"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	flag.Parse()
	http.HandleFunc("/-/ready", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/drain", func(w http.ResponseWriter, r *http.Request) {
		summary, err := drain(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		fmt.Fprintln(w, summary)
	})
	if err := http.ListenAndServe(*listen, nil); err != nil {
		fmt.Fprintln(os.Stderr, "drain:", err)
		os.Exit(1)
	}
}

func drain(r *http.Request) (string, error) {
	form := r.URL.Query()
	mint, err := strconv.ParseInt(form.Get("start"), 10, 64)
	if err != nil {
		return "", err
	}
	maxt, err := strconv.ParseInt(form.Get("end"), 10, 64)
	if err != nil {
		return "", err
	}
	client := remoteread.NewClient(remoteread.ClientOptions{URL: form.Get("url"), SamplesOnly: form.Get("form") == "samples", Tries: 1, HoldBytesMax: 64 << 20})
	q, err := client.RawQuerier(r.Context(), mint, maxt)
	if err != nil {
		return "", err
	}
	defer q.Close()
	return hash(r.Context(), q.Select(r.Context(), series.SelectOptions{}, labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, form.Get("metric"))))
}

func hash(ctx context.Context, set series.Set) (string, error) {
	var nSeries, nSamples, sum uint64
	var one xxhash.Digest
	var iter chunkenc.Iterator
	var buf [16]byte
	xor := chunkenc.NewXORChunk()
	for set.Next() && ctx.Err() == nil {
		nSeries++
		one.Reset()
		_, _ = one.Write(set.Labels())
		for _, c := range set.Chunks() {
			if c.Encoding != chunkenc.EncXOR {
				return "", fmt.Errorf("unsupported chunk encoding %s", c.Encoding)
			}
			xor.Reset(c.Data)
			iter = xor.Iterator(iter)
			for iter.Next() != chunkenc.ValNone {
				t, v := iter.At()
				binary.LittleEndian.PutUint64(buf[:], uint64(t))
				binary.LittleEndian.PutUint64(buf[8:], math.Float64bits(v))
				_, _ = one.Write(buf[:])
				nSamples++
			}
			if err := iter.Err(); err != nil {
				return "", err
			}
		}
		sum += one.Sum64()
	}
	if err := set.Err(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d series, %d samples, hash %016x", nSeries, nSamples, sum), ctx.Err()
}
