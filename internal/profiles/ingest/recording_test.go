package ingest

import (
	"bytes"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// javaForm is an upload of a Java agent: the recording and the labels of its samples.
func javaForm(t *testing.T, recording, labels []byte) (string, []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for name, content := range map[string][]byte{"jfr": recording, "labels": labels} {
		if content == nil {
			continue
		}
		part, err := w.CreateFormFile(name, name)
		if err == nil {
			_, err = part.Write(content)
		}
		must(t, err)
	}
	must(t, w.Close())
	return w.FormDataContentType(), b.Bytes()
}

func checkRecording(t *testing.T, store *memory) {
	t.Helper()
	sums := map[string]map[string]int64{}
	for _, p := range store.list() {
		if p.profile.Period != 1 || p.profile.PeriodType == nil {
			t.Errorf("a period of %d %+v", p.profile.Period, p.profile.PeriodType)
		}
		for _, sampleType := range []string{"cpu", "alloc_sample_bytes", "alloc_in_new_tlab_bytes", "contentions", "delay"} {
			for stack, v := range p.stacks(sampleType) {
				if sums[sampleType] == nil {
					sums[sampleType] = map[string]int64{}
				}
				sums[sampleType][stack] += v
			}
		}
	}
	for sampleType, frame := range map[string]string{"cpu": "Busy.spin", "alloc_sample_bytes": "Busy.main", "contentions": "Busy.main", "delay": "LockSupport.parkNanos"} {
		found := int64(0)
		for stack, v := range sums[sampleType] {
			if strings.Contains(stack, frame) {
				found += v
			}
		}
		if found == 0 {
			t.Errorf("%s has no stack with %s: %v", sampleType, frame, sums[sampleType])
		}
	}
}

func TestHandler_FlightRecordingsBecomeProfiles(t *testing.T) {
	recording, err := os.ReadFile("testdata/openjdk17.jfr.gz")
	must(t, err)
	const query = "name=shop{env=test}&format=jfr&sampleRate=100&spyName=javaspy"
	contentType, body := javaForm(t, recording, nil)
	for name, upload := range map[string][2]string{"form": {contentType, string(body)}, "body": {"application/octet-stream", string(recording)}} {
		in, store := newIngester(t, Limits{})
		if status, text := ingest(t, in, query, upload[0], []byte(upload[1])); status != http.StatusOK {
			t.Fatalf("%s: %d %s", name, status, text)
		}
		checkRecording(t, store)
	}
	in, _ := newIngester(t, Limits{})
	for name, upload := range map[string][]byte{"cut": recording[:len(recording)/2], "not one": []byte("FLR"), "none": nil} {
		if status, text := ingest(t, in, query, "application/octet-stream", upload); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	in, _ = newIngester(t, Limits{ProfileBytes: 40 << 10})
	if status, text := ingest(t, in, query, "", bytes.Repeat(recording, 1)); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	in, _ = newIngester(t, Limits{ProfileBytes: 20 << 10})
	if status, text := ingest(t, in, query, "", recording); status != http.StatusBadRequest || !strings.Contains(text, "when decompressed") {
		t.Errorf("%d %s", status, text)
	}
}

// A Java VM of this machine records the program that testdata has, and its recording is
// uploaded.
func TestHandler_PeerJVMRecordsAndUploads(t *testing.T) {
	java, err := exec.LookPath("java")
	if err != nil {
		t.Skip("there is no Java")
	}
	source, err := filepath.Abs("testdata/Busy.java")
	must(t, err)
	file := filepath.Join(t.TempDir(), "rec.jfr")
	run := exec.Command(java, "-XX:StartFlightRecording=filename="+file+",settings=profile", source)
	if out, err := run.CombinedOutput(); err != nil {
		t.Skipf("this Java cannot run a source file: %v\n%s", err, out)
	}
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	recording, err := io.ReadAll(f)
	must(t, err)
	in, store := newIngester(t, Limits{})
	in.now = time.Now
	contentType, body := javaForm(t, recording, nil)
	if status, text := ingest(t, in, "name=shop&format=jfr&sampleRate=50", contentType, body); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	checkRecording(t, store)
}

// The product of a corrupt count and a long period may overflow to a positive value.
func TestRecording_CorruptCountsOfWallClockAreErrors(t *testing.T) {
	for _, rate := range []uint64{1, 49, 100, 1000} {
		for shift := range 63 {
			r := &recording{upload: &upload{rate: rate}, building: map[*measured]*builtProfile{}}
			period, count := int64(1e9)/int64(rate), int64(1)<<shift
			err := r.add(&jfrEvent{kind: javaWall, count: count})
			if fits := count <= math.MaxInt64/period; (err == nil) != fits {
				t.Errorf("rate %d, %d samples: %v", rate, count, err)
			} else if fits && r.building[javaWall].samples[0].values[0] != count*period {
				t.Errorf("rate %d, %d samples: %v", rate, count, r.building[javaWall].samples)
			}
		}
	}
}
