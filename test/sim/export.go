package sim

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// formats are the formats of `ferula read`.
var formats = []string{"jsonl", "csv", "openmetrics", "parquet", "blocks"}

// export runs `ferula read` and parses its output. source is the flag of the source, like
// --url=http://…. The format openmetrics has no native histograms.
func export(ctx context.Context, binary, source, format string, minMS, maxMS int64, drop []string) (samples, error) {
	selector := everything
	if format == "openmetrics" {
		selector = withoutNative
	}
	dir, err := os.MkdirTemp("", "ferula-sim-read-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	output := filepath.Join(dir, "out")
	if format != "blocks" && format != "parquet" {
		output = "-"
	}
	args := []string{"read", source, "--match=" + selector, "--output=" + output, "--format=" + format, "--no-progress",
		"--start=" + seconds(minMS), "--end=" + seconds(maxMS), "--retries=0", "--log.level=warn"}
	command := exec.CommandContext(ctx, binary, args...)
	var out, stderr bytes.Buffer
	command.Stdout, command.Stderr = &out, &stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("ferula %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	switch format {
	case "jsonl":
		return parseJSONLines(out.Bytes(), drop)
	case "csv":
		return parseCSV(out.Bytes(), drop)
	case "parquet":
		return parseParquet(output, drop)
	case "blocks":
		got, _, err := blockSamples(output, drop)
		return got, err
	default:
		return parseOpenMetrics(out.String(), drop)
	}
}

func parseJSONLines(text []byte, drop []string) (samples, error) {
	got := samples{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var line matrix
		if err := decoder.Decode(&line); err == io.EOF {
			return got, nil
		} else if err != nil {
			return nil, fmt.Errorf("jsonl: %w", err)
		}
		if err := got.addMatrix(line, drop); err != nil {
			return nil, fmt.Errorf("jsonl: %w", err)
		}
	}
}

// addRow adds a row of the formats csv and parquet.
func (s samples) addRow(labelsJSON string, ms int64, value *float64, histogram string, drop []string) error {
	labels := map[string]string{}
	if err := json.Unmarshal([]byte(labelsJSON), &labels); err != nil {
		return fmt.Errorf("labels %q: %w", labelsJSON, err)
	}
	key := dataKey(labels, drop)
	if histogram != "" {
		return s.putHistogramJSON(key, ms, []byte(histogram))
	}
	if _, double := s[key][ms]; double || value == nil {
		return fmt.Errorf("sample {%s} @%d occurs twice or has no value", key, ms)
	}
	s.put(key, ms, *value)
	return nil
}

func parseCSV(text []byte, drop []string) (samples, error) {
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, errors.New("csv: no header")
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	got := samples{}
	for _, row := range rows[1:] {
		ms, err := strconv.ParseInt(row[column["timestamp"]], 10, 64)
		if err != nil {
			return nil, err
		}
		var value *float64
		if text := row[column["value"]]; text != "" {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, err
			}
			value = &v
		}
		if err := got.addRow(row[column["labels"]], ms, value, row[column["histogram"]], drop); err != nil {
			return nil, fmt.Errorf("csv: %w", err)
		}
	}
	return got, nil
}

func parseParquet(file string, drop []string) (samples, error) {
	type row struct {
		Labels    string   `parquet:"labels"`
		Timestamp int64    `parquet:"timestamp,timestamp(millisecond)"`
		Value     *float64 `parquet:"value,optional"`
		Histogram *string  `parquet:"histogram,optional"`
	}
	rows, err := parquet.ReadFile[row](file)
	if err != nil {
		return nil, fmt.Errorf("parquet: %w", err)
	}
	got := samples{}
	for _, r := range rows {
		histogram := ""
		if r.Histogram != nil {
			histogram = *r.Histogram
		}
		if err := got.addRow(r.Labels, r.Timestamp, r.Value, histogram, drop); err != nil {
			return nil, fmt.Errorf("parquet: %w", err)
		}
	}
	return got, nil
}

// parseOpenMetrics reads lines `name{labels} value timestamp`. The simulator's
// label values hold no spaces, commas or quotes.
func parseOpenMetrics(text string, drop []string) (samples, error) {
	got := samples{}
	ended := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "# EOF" {
			ended = true
		}
		if line == "" || line[0] == '#' {
			continue
		}
		head, rest, _ := strings.Cut(line, " ")
		value, stamp, _ := strings.Cut(rest, " ")
		name, list, _ := strings.Cut(head, "{")
		labels := map[string]string{"__name__": name}
		for _, pair := range strings.Split(strings.TrimSuffix(list, "}"), ",") {
			if label, quoted, ok := strings.Cut(pair, "="); ok {
				labels[label] = strings.Trim(quoted, `"`)
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("openmetrics: %q: %w", line, err)
		}
		at, err := strconv.ParseFloat(stamp, 64)
		if err != nil {
			return nil, fmt.Errorf("openmetrics: %q: %w", line, err)
		}
		key, ms := dataKey(labels, drop), int64(at*1000+0.5)
		if _, double := got[key][ms]; double {
			return nil, fmt.Errorf("openmetrics: %q: its timestamp occurs twice", line)
		}
		got.put(key, ms, v)
	}
	if !ended {
		return nil, errors.New("openmetrics: no # EOF")
	}
	return got, nil
}
