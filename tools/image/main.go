// Command image writes a container image as an archive in OCI's layout, which skopeo, podman and
// registries read, without a container engine and without a base image:
//
//	image -version 0.2.0 -created 1700000000 -doc doc -o ferula-oci.tar linux/amd64=ferula linux/arm64=ferula-arm64
//
// Each platform has one layer: the static binary, the licences (the files of -doc, in /usr/share/doc/ferula), the certificates of
// public authorities, a user 65532 that owns /data, and /tmp. The certificates are those of this machine (-ca); the annotation io.ferula.ca-certificates.digest has their digest.
// The same arguments and files make the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// user is the user of the process, that of distroless images.
const user = 65532

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	version := flags.String("version", "", "version: the tag of the image")
	created := flags.Int64("created", 0, "time of the image and its files, in seconds since 1970")
	ca := flags.String("ca", "/etc/ssl/certs/ca-certificates.crt", "certificates of public authorities, in PEM")
	doc := flags.String("doc", "", "directory of files for /usr/share/doc/ferula: the licences")
	out := flags.String("o", "", "archive to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version == "" || *doc == "" || *out == "" || flags.NArg() == 0 {
		return errors.New("-version, -doc, -o and at least one PLATFORM=BINARY are needed")
	}
	certificates, err := authorities(*ca)
	if err != nil {
		return err
	}
	documents, err := documentsOf(*doc)
	if err != nil {
		return err
	}
	file, err := os.Create(*out)
	if err != nil {
		return err
	}
	w := &archive{tar: tar.NewWriter(file), at: time.Unix(*created, 0).UTC(), written: map[string]bool{}}
	return errors.Join(w.image(*version, append(documents, entry{authoritiesPath, 0o644, 0, certificates}), flags.Args()), w.tar.Close(), file.Close())
}

// documentsOf returns the files of a directory, under their names in the image. At least one is needed.
func documentsOf(dir string) ([]entry, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []entry
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, entry{"usr/share/doc/ferula/" + e.Name(), 0o644, 0, content})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no files", dir)
	}
	return files, nil
}

// authorities reads and checks the certificates of public authorities.
func authorities(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: install ca-certificates, or set -ca", err)
	}
	n := 0
	for rest := text; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); block.Type != "CERTIFICATE" || err != nil {
			return nil, fmt.Errorf("%s: block %d is no certificate: %w", path, n+1, err)
		}
	}
	if n == 0 {
		return nil, fmt.Errorf("%s has no certificates", path)
	}
	return text, nil
}

// archive is an OCI layout in a tar file.
type archive struct {
	tar     *tar.Writer
	at      time.Time
	written map[string]bool // blobs
}

// Media types and structures of OCI's image specification 1.1.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations"`
}

type config struct {
	platform
	Created time.Time `json:"created"`
	Config  process   `json:"config"`
	RootFS  rootFS    `json:"rootfs"`
}

type process struct {
	User         string              `json:"User"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts"`
	Env          []string            `json:"Env"`
	Entrypoint   []string            `json:"Entrypoint"`
	Cmd          []string            `json:"Cmd"`
	Volumes      map[string]struct{} `json:"Volumes"`
	WorkingDir   string              `json:"WorkingDir"`
	Labels       map[string]string   `json:"Labels"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// image writes the whole layout.
func (a *archive) image(version string, files []entry, binaries []string) error {
	all := index{SchemaVersion: 2, MediaType: typeIndex}
	for _, arg := range binaries {
		name, path, _ := strings.Cut(arg, "=")
		goos, arch, ok := strings.Cut(name, "/")
		if !ok || path == "" {
			return fmt.Errorf("%q is not PLATFORM=BINARY", arg)
		}
		binary, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		d, err := a.manifest(version, platform{arch, goos}, append(slices.Clip(files), entry{"usr/bin/ferula", 0o755, 0, binary}))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all.Manifests = append(all.Manifests, d)
	}
	d, err := a.document(typeIndex, all)
	if err != nil {
		return err
	}
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": version}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{d}})
	if err != nil {
		return err
	}
	return errors.Join(a.file("index.json", top), a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)))
}

func (a *archive) manifest(version string, p platform, contents []entry) (descriptor, error) {
	plain, err := layer(a.at, contents)
	if err != nil {
		return descriptor{}, err
	}
	var compressed bytes.Buffer
	zip := gzip.NewWriter(&compressed)
	if _, err := zip.Write(plain); err != nil {
		return descriptor{}, err
	}
	if err := zip.Close(); err != nil {
		return descriptor{}, err
	}
	files, err := a.blob(typeLayer, compressed.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	labels := map[string]string{
		"org.opencontainers.image.title": "ferula", "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source": "https://github.com/ferula-io/ferula", "io.ferula.ca-certificates.digest": digest(contentOf(contents, authoritiesPath)),
	}
	settings, err := a.document(typeConfig, config{platform: p, Created: a.at, RootFS: rootFS{"layers", []string{digest(plain)}}, Config: process{
		User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/data", Volumes: map[string]struct{}{"/data": {}}, Labels: labels,
		ExposedPorts: map[string]struct{}{"9490/tcp": {}, "10901/tcp": {}, "10902/tcp": {}}, Env: []string{"PATH=/usr/bin", "HOME=/data"},
		Entrypoint: []string{"/usr/bin/ferula"}, Cmd: []string{"serve", "--web.listen-address=0.0.0.0:9490", "--storage.tsdb.path=/data"},
	}})
	if err != nil {
		return descriptor{}, err
	}
	d, err := a.document(typeManifest, manifest{2, typeManifest, settings, []descriptor{files}, labels})
	d.Platform = &p
	return d, err
}

const authoritiesPath = "etc/ssl/certs/ca-certificates.crt"

// entry is a file of the image, or a directory if its name ends with a slash.
type entry struct {
	name    string
	mode    int64
	owner   int
	content []byte
}

func contentOf(files []entry, name string) []byte {
	return files[slices.IndexFunc(files, func(e entry) bool { return e.name == name })].content
}

// layer returns the files of the image as a tar archive, in the order of their names, so that a directory is before its files.
func layer(at time.Time, files []entry) ([]byte, error) {
	files = append(slices.Clip(files), []entry{
		{"data/", 0o755, user, nil},
		{"etc/", 0o755, 0, nil},
		{"etc/group", 0o644, 0, fmt.Appendf(nil, "root:x:0:\nferula:x:%d:\n", user)},
		{"etc/passwd", 0o644, 0, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nferula:x:%d:%d:ferula:/data:/sbin/nologin\n", user, user)},
		{"etc/ssl/", 0o755, 0, nil},
		{"etc/ssl/certs/", 0o755, 0, nil},
		{"tmp/", 0o1777, 0, nil},
		{"usr/", 0o755, 0, nil},
		{"usr/bin/", 0o755, 0, nil},
		{"usr/share/", 0o755, 0, nil},
		{"usr/share/doc/", 0o755, 0, nil},
		{"usr/share/doc/ferula/", 0o755, 0, nil},
	}...)
	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.content)), ModTime: at, Format: tar.FormatUSTAR}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// document writes a blob of JSON.
func (a *archive) document(mediaType string, content any) (descriptor, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return descriptor{}, err
	}
	return a.blob(mediaType, text)
}

// blob writes content under its digest, once.
func (a *archive) blob(mediaType string, content []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
	if a.written[d.Digest] {
		return d, nil
	}
	a.written[d.Digest] = true
	return d, a.file("blobs/"+strings.Replace(d.Digest, ":", "/", 1), content)
}

func (a *archive) file(name string, content []byte) error {
	if err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: a.at, Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	_, err := io.Copy(a.tar, bytes.NewReader(content))
	return err
}
