package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// write makes an image of two platforms and returns the files of the archive.
func write(t *testing.T) (files map[string][]byte, raw []byte) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"ca": authority, "amd64": "binary of amd64", "arm64": "binary of arm64", "doc/LICENSE": "terms"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "image.tar")
	if err := run([]string{"-version=1.2.3", "-created=1700000000", "-ca=" + dir + "/ca", "-doc=" + dir + "/doc", "-o=" + out, "linux/amd64=" + dir + "/amd64", "linux/arm64=" + dir + "/arm64"}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	files, _ = untar(t, bytes.NewReader(raw))
	return files, raw
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

func TestRun_WritesAnImageOfEachPlatform(t *testing.T) {
	files, raw := write(t)
	var top, all index
	if err := json.Unmarshal(files["index.json"], &top); err != nil || len(top.Manifests) != 1 || string(files["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Fatalf("%v: %s", err, files["index.json"])
	}
	blobOf(t, files, top.Manifests[0], typeIndex, &all)
	if top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3" || len(all.Manifests) != 2 {
		t.Errorf("%+v %+v", top, all)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		d := all.Manifests[i]
		if *d.Platform != (platform{arch, "linux"}) {
			t.Errorf("%+v", d.Platform)
		}
		var m manifest
		var c config
		blobOf(t, files, d, typeManifest, &m)
		blobOf(t, files, m.Config, typeConfig, &c)
		unzipped, err := gzip.NewReader(bytes.NewReader(blobOf(t, files, m.Layers[0], typeLayer, nil)))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(unzipped)
		if err != nil || !slices.Equal(c.RootFS.DiffIDs, []string{digest(plain)}) {
			t.Errorf("%v: %+v", err, c.RootFS)
		}
		content, headers := untar(t, bytes.NewReader(plain))
		if string(content["usr/bin/ferula"]) != "binary of "+arch || string(content["etc/ssl/certs/ca-certificates.crt"]) != authority || string(content["usr/share/doc/ferula/LICENSE"]) != "terms" {
			t.Errorf("%q", content)
		}
		// The volume belongs to the user of the process.
		data := headers["data/"]
		if fmt.Sprintf("%d:%d", data.Uid, data.Gid) != c.Config.User || data.Uid == 0 || data.Typeflag != tar.TypeDir {
			t.Errorf("/data: %+v; the process is %s", data, c.Config.User)
		}
		if c.Config.Labels["io.ferula.ca-certificates.digest"] != digest([]byte(authority)) {
			t.Errorf("%q", c.Config.Labels)
		}
		for name, h := range headers {
			if parent := filepath.Dir(strings.TrimSuffix(name, "/")); parent != "." && headers[parent+"/"] == nil {
				t.Errorf("%s has no directory", name)
			}
			if h.ModTime.Unix() != 1700000000 {
				t.Errorf("%s is of %s", name, h.ModTime)
			}
		}
		if c.Architecture != arch || c.OS != "linux" || c.Created.Unix() != 1700000000 {
			t.Errorf("%+v", c)
		}
	}
	if _, again := write(t); !bytes.Equal(again, raw) {
		t.Error("a second run makes other bytes")
	}
}

// The image of this program and that of the Containerfile run the same process.
func TestRun_SettingsAreThoseOfTheContainerfile(t *testing.T) {
	text, err := os.ReadFile("../../deploy/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	files, _ := write(t)
	for name, blob := range files {
		var c config
		if !strings.HasPrefix(name, "blobs/") || json.Unmarshal(blob, &c) != nil || c.Config.User == "" {
			continue
		}
		entry, _ := json.Marshal(c.Config.Entrypoint)
		cmd, _ := json.Marshal(c.Config.Cmd)
		for _, line := range []string{
			"USER " + c.Config.User, "WORKDIR " + c.Config.WorkingDir, "VOLUME /data", "EXPOSE 9490 10901 10902",
			"ENTRYPOINT " + string(entry), "CMD " + strings.ReplaceAll(string(cmd), `","`, `", "`),
		} {
			if !strings.Contains(string(text), "\n"+line+"\n") {
				t.Errorf("Containerfile has no %s", line)
			}
		}
		if len(c.Config.ExposedPorts) != 3 || len(c.Config.Volumes) != 1 {
			t.Errorf("%+v", c.Config)
		}
		return
	}
	t.Error("no configuration found")
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
	ok := []string{"-version=1", "-o=" + dir + "/o", "-ca=" + ca, "-doc=" + doc, "linux/amd64=" + binary}
	if err := run(ok); err != nil {
		t.Error(err)
	}
	for i, wrong := range map[int]string{0: "-version=", 1: "-o=", 2: "-ca=" + binary, 3: "-doc=", 4: "linux/amd64"} {
		args := slices.Clone(ok)
		args[i] = wrong
		if err := run(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	for _, wrong := range []string{"-ca=/nowhere", "-ca=main.go", "-doc=/nowhere", "-doc=" + empty, "linux=" + binary, "linux/amd64=/nowhere", "-nonsense"} {
		if err := run(append(slices.Clone(ok[:4]), wrong, ok[4])); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}
