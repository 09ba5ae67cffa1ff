package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// authority is a certificate of an authority, for tests only.
const authority = `-----BEGIN CERTIFICATE-----
MIIBijCCAS+gAwIBAgIUC1W9H2k4jh8nA1kuP1bojeJTLSQwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOdGVzdCBhdXRob3JpdHkwIBcNMjYxMTIzMTcxMzI3WhgPMjEy
NjEwMzAxNzEzMjdaMBkxFzAVBgNVBAMMDnRlc3QgYXV0aG9yaXR5MFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAExvYow6H9Wbs4WHI+gNNyM9eE2mcfF9yvx5hjrbw5
e7+HYN6Qs5keP0obhowAcKtEFDWLmYAGdmEiGAtNPBbraKNTMFEwHQYDVR0OBBYE
FGM8F/XJaM8ybE9Etn3ID1TeWIXsMB8GA1UdIwQYMBaAFGM8F/XJaM8ybE9Etn3I
D1TeWIXsMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhAJ3wOb+y
iNEmGRc1WPtUJJUJkiSNtQUIXZMbiMMPunJ1AiEA9fjnpXlmWJc2pXU7UAANQvbh
VOPFnfkMzRD+E0AYMBQ=
-----END CERTIFICATE-----
`

// write makes the images of two platforms and returns the files of each archive, and the bytes of all.
func write(t *testing.T) (images map[string]map[string][]byte, all []byte) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"ca": authority, "amd64": "binary of amd64", "arm64": "binary of arm64", "doc/LICENSE": "terms", "config": "global: {}"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run([]string{"-version=1.2.3", "-created=1700000000", "-ca=" + dir + "/ca", "-doc=" + dir + "/doc", "-config=" + dir + "/config", "-o=" + dir, "linux/amd64=" + dir + "/amd64", "linux/arm64=" + dir + "/arm64"}); err != nil {
		t.Fatal(err)
	}
	images = map[string]map[string][]byte{}
	for _, v := range variants {
		raw, err := os.ReadFile(filepath.Join(dir, v.image()+"-1.2.3-oci.tar"))
		if err != nil {
			t.Fatal(err)
		}
		images[v.name], _ = untar(t, bytes.NewReader(raw))
		all = append(all, raw...)
	}
	return images, all
}

func untar(t *testing.T, r io.Reader) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, headers := map[string][]byte{}, map[string]*tar.Header{}
	for reader := tar.NewReader(r); ; {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
		headers[h.Name] = h
	}
}

// blobOf returns the blob of a descriptor, whose digest and size it checks.
func blobOf(t *testing.T, files map[string][]byte, d descriptor, mediaType string, into any) []byte {
	t.Helper()
	content := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if d.MediaType != mediaType || digest(content) != d.Digest || len(content) != d.Size {
		t.Errorf("%+v has %d bytes with digest %s", d, len(content), digest(content))
	}
	if into != nil {
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil {
			t.Error(err)
		}
	}
	return content
}

func TestRun_WritesEveryImageOfEachPlatform(t *testing.T) {
	images, raw := write(t)
	for _, v := range variants {
		files := images[v.name]
		var top, all index
		if err := json.Unmarshal(files["index.json"], &top); err != nil || len(top.Manifests) != 1 || string(files["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
			t.Fatalf("%v: %s", err, files["index.json"])
		}
		blobOf(t, files, top.Manifests[0], typeIndex, &all)
		if top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3" || len(all.Manifests) != 2 {
			t.Errorf("%+v %+v", top, all)
		}
		for i, arch := range []string{"amd64", "arm64"} {
			checkPlatform(t, v, arch, files, all.Manifests[i])
		}
	}
	if _, again := write(t); !bytes.Equal(again, raw) {
		t.Error("a second run makes other bytes")
	}
}

// checkPlatform checks one platform of an image.
func checkPlatform(t *testing.T, v variant, arch string, files map[string][]byte, d descriptor) {
	t.Helper()
	if *d.Platform != (platform{arch, "linux"}) {
		t.Errorf("%+v", d.Platform)
	}
	var m manifest
	var c config
	blobOf(t, files, d, typeManifest, &m)
	blobOf(t, files, m.Config, typeConfig, &c)
	content, headers := map[string][]byte{}, map[string]*tar.Header{}
	for i, l := range m.Layers {
		unzipped, err := gzip.NewReader(bytes.NewReader(blobOf(t, files, l, typeLayer, nil)))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(unzipped)
		if err != nil || len(c.RootFS.DiffIDs) != len(m.Layers) || c.RootFS.DiffIDs[i] != digest(plain) {
			t.Errorf("%v: %+v", err, c.RootFS)
		}
		more, heads := untar(t, bytes.NewReader(plain))
		maps.Copy(content, more)
		maps.Copy(headers, heads)
		for name, h := range heads {
			if parent := filepath.Dir(strings.TrimSuffix(name, "/")); parent != "." && heads[parent+"/"] == nil {
				t.Errorf("%s has no directory", name)
			}
			if h.ModTime.Unix() != 1700000000 {
				t.Errorf("%s is of %s", name, h.ModTime)
			}
		}
	}
	if string(content["usr/bin/ferula"]) != "binary of "+arch || string(content["etc/ssl/certs/ca-certificates.crt"]) != authority ||
		string(content["usr/share/doc/ferula/LICENSE"]) != "terms" || string(content["etc/prometheus/prometheus.yml"]) != "global: {}" {
		t.Errorf("%q", content)
	}
	for _, name := range []string{"bin/prometheus", "bin/thanos"} {
		if h := headers[name]; h == nil || h.Typeflag != tar.TypeSymlink || h.Linkname != "/usr/bin/ferula" {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if entry := headers[strings.TrimPrefix(c.Config.Entrypoint[0], "/")]; entry == nil {
		t.Errorf("there is no %s", c.Config.Entrypoint)
	}
	// The volume belongs to the user of the process.
	for name := range c.Config.Volumes {
		data := headers[name[1:]+"/"]
		if fmt.Sprintf("%d:%d", data.Uid, data.Gid) != c.Config.User || data.Uid == 0 || data.Typeflag != tar.TypeDir {
			t.Errorf("%s: %+v; the process is %s", name, data, c.Config.User)
		}
	}
	if c.Config.Labels["io.ferula.ca-certificates.digest"] != digest([]byte(authority)) || c.Config.Labels["org.opencontainers.image.title"] != v.image() {
		t.Errorf("%q", c.Config.Labels)
	}
	if c.Architecture != arch || c.OS != "linux" || c.Created.Unix() != 1700000000 {
		t.Errorf("%+v", c)
	}
}

// The images of this program and the stages of the Containerfile run the same processes.
func TestVariants_AreTheStagesOfTheContainerfile(t *testing.T) {
	text, err := os.ReadFile("../../deploy/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages := strings.Split(string(text), "\nFROM files")[1:]
	if len(stages) != len(variants) || !strings.HasPrefix(stages[len(stages)-1], " AS ferula\n") {
		t.Fatalf("%d stages, of which the last is built by default: %q", len(stages), stages)
	}
	for _, v := range variants {
		i := slices.IndexFunc(stages, func(stage string) bool { return strings.HasPrefix(stage, " AS "+cmp.Or(v.name, "ferula")+"\n") })
		if i < 0 {
			t.Errorf("no stage %s", v.name)
			continue
		}
		list := func(items ...string) string { return `["` + strings.Join(items, `", "`) + `"]` }
		lines := []string{
			fmt.Sprintf("USER %d:%d", v.user, v.user), "WORKDIR " + v.work, "VOLUME " + v.volume, "EXPOSE " + strings.Trim(fmt.Sprint(v.ports), "[]"),
			"ENTRYPOINT " + list(v.entry), fmt.Sprintf("COPY --chown=%d:%d data %s", v.user, v.user, v.volume),
		}
		if v.args != nil {
			lines = append(lines, "CMD "+list(v.args...))
		}
		for _, line := range lines {
			if !strings.Contains(stages[i]+"\n", "\n"+line+"\n") {
				t.Errorf("stage %s of the Containerfile has no %s", v.image(), line)
			}
		}
	}
}

func TestRun_RefusesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca")
	if err := os.WriteFile(ca, []byte(authority), 0o600); err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	doc, empty := filepath.Join(dir, "doc"), filepath.Join(dir, "empty")
	for _, d := range []string{doc, empty} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(doc, "LICENSE"), []byte("terms"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok := []string{"-version=1", "-o=" + dir, "-ca=" + ca, "-doc=" + doc, "-config=" + ca, "linux/amd64=" + binary}
	if err := run(ok); err != nil {
		t.Error(err)
	}
	for i, wrong := range map[int]string{0: "-version=", 1: "-o=", 2: "-ca=" + binary, 3: "-doc=", 4: "-config=", 5: "linux/amd64"} {
		args := slices.Clone(ok)
		args[i] = wrong
		if err := run(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	for _, wrong := range []string{"-ca=/nowhere", "-ca=main.go", "-doc=/nowhere", "-doc=" + empty, "-config=/nowhere", "-o=/nowhere", "linux=" + binary, "linux/amd64=/nowhere", "-nonsense"} {
		if err := run(append(slices.Clone(ok[:5]), wrong, ok[5])); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}
