// Command image writes container images, each as an archive in OCI's layout, which skopeo, podman and registries read,
// without a container engine and without a base image:
//
//	image -version 0.2.0 -created 1700000000 -doc doc -config prometheus.yml -o DIR linux/amd64=ferula linux/arm64=ferula-arm64
//
// The images are those of the table variants: they have the same files, and start as ferula or under the name of a peer.
// Each platform has two layers. The first is the same in all images: the static binary, its links under the peers' names,
// the licences (the files of -doc, in /usr/share/doc/ferula), the certificates of public authorities and /tmp. The second
// has the user and its directory. The certificates are those of this machine (-ca); the annotation
// io.ferula.ca-certificates.digest has their digest. The same arguments and files make the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
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
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// variant is an image.
type variant struct {
	name   string // in the names of the image and its archive; "" for the image ferula
	user   int    // of the process
	work   string // its working directory
	volume string // a directory that belongs to the user
	ports  []int
	entry  string
	args   []string // where a container has none
}

// variants are the images. One that starts as a peer has the user, directories and arguments of the peer's image, so that
// it replaces that image alone. deploy/Containerfile builds the same.
var variants = []variant{
	{"", 65532, "/data", "/data", []int{9490, 10901, 10902}, "/usr/bin/ferula",
		[]string{"serve", "--web.listen-address=0.0.0.0:9490", "--storage.tsdb.path=/data"}},
	{"prometheus", 65534, "/prometheus", "/prometheus", []int{9090}, "/bin/prometheus",
		[]string{"--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"}},
	{"thanos", 1001, "/", "/data", []int{10901, 10902}, "/bin/thanos", nil},
}

// image returns the name of the image.
func (v variant) image() string { return strings.TrimSuffix("ferula-"+v.name, "-") }

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
	conf := flags.String("config", "", "file for /etc/prometheus/prometheus.yml, which Prometheus' image has, too")
	out := flags.String("o", "", "directory of the archives IMAGE-VERSION-oci.tar to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version == "" || *doc == "" || *conf == "" || *out == "" || flags.NArg() == 0 {
		return errors.New("-version, -doc, -config, -o and at least one PLATFORM=BINARY are needed")
	}
	certificates, err := authorities(*ca)
	if err != nil {
		return err
	}
	files, err := documentsOf(*doc)
	if err != nil {
		return err
	}
	example, err := os.ReadFile(*conf)
	if err != nil {
		return err
	}
	files = append(files, entry{name: authoritiesPath, mode: 0o644, content: certificates}, entry{name: "tmp/", mode: 0o1777},
		entry{name: "etc/prometheus/prometheus.yml", mode: 0o644, content: example})
	for _, v := range variants {
		if name, ok := strings.CutPrefix(v.entry, "/bin/"); ok {
			files = append(files, entry{name: "bin/" + name, mode: 0o777, link: "/usr/bin/ferula"})
		}
	}
	at := time.Unix(*created, 0).UTC()
	var platforms []built
	for _, arg := range flags.Args() {
		b, err := build(at, files, arg)
		if err != nil {
			return err
		}
		platforms = append(platforms, b)
	}
	labels := map[string]string{
		"org.opencontainers.image.version": *version, "org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source":  "https://github.com/ferula-io/ferula",
		"io.ferula.ca-certificates.digest": digest(certificates),
	}
	for _, v := range variants {
		labels["org.opencontainers.image.title"] = v.image()
		if err := v.write(filepath.Join(*out, v.image()+"-"+*version+"-oci.tar"), at, labels, platforms); err != nil {
			return fmt.Errorf("%s: %w", v.image(), err)
		}
	}
	return nil
}

// built is the binary of a platform, with the files around it.
type built struct {
	platform
	files zipped
}

// build reads one PLATFORM=BINARY.
func build(at time.Time, files []entry, arg string) (built, error) {
	name, path, _ := strings.Cut(arg, "=")
	goos, arch, ok := strings.Cut(name, "/")
	if !ok || path == "" {
		return built{}, fmt.Errorf("%q is not PLATFORM=BINARY", arg)
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return built{}, err
	}
	l, err := layer(at, append(slices.Clip(files), entry{name: "usr/bin/ferula", mode: 0o755, content: binary}))
	return built{platform{arch, goos}, l}, err
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
		files = append(files, entry{name: "usr/share/doc/ferula/" + e.Name(), mode: 0o644, content: content})
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

// write writes the archive of an image.
func (v variant) write(path string, at time.Time, labels map[string]string, platforms []built) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	a := &archive{tar: tar.NewWriter(file), at: at, written: map[string]bool{}}
	return errors.Join(a.image(v, labels, platforms), a.tar.Close(), file.Close())
}

// image writes the whole layout.
func (a *archive) image(v variant, labels map[string]string, platforms []built) error {
	all := index{SchemaVersion: 2, MediaType: typeIndex}
	for _, p := range platforms {
		d, err := a.manifest(v, labels, p)
		if err != nil {
			return err
		}
		all.Manifests = append(all.Manifests, d)
	}
	d, err := a.document(typeIndex, all)
	if err != nil {
		return err
	}
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": labels["org.opencontainers.image.version"]}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{d}})
	if err != nil {
		return err
	}
	return errors.Join(a.file("index.json", top), a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)))
}

func (a *archive) manifest(v variant, labels map[string]string, p built) (descriptor, error) {
	name := cmp.Or(v.name, "ferula")
	own, err := layer(a.at, []entry{
		{name: strings.TrimPrefix(v.volume, "/") + "/", mode: 0o755, owner: v.user},
		{name: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\n%s:x:%d:\n", name, v.user)},
		{name: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\n%s:x:%d:%d:%s:%s:/sbin/nologin\n",
			name, v.user, v.user, name, v.volume)},
	})
	if err != nil {
		return descriptor{}, err
	}
	c := config{platform: p.platform, Created: a.at, RootFS: rootFS{Type: "layers"}, Config: process{
		User: fmt.Sprintf("%d:%d", v.user, v.user), WorkingDir: v.work, Volumes: map[string]struct{}{v.volume: {}}, Labels: labels,
		ExposedPorts: map[string]struct{}{}, Env: []string{"PATH=/usr/bin:/bin", "HOME=" + v.volume},
		Entrypoint: []string{v.entry}, Cmd: v.args,
	}}
	for _, port := range v.ports {
		c.Config.ExposedPorts[fmt.Sprintf("%d/tcp", port)] = struct{}{}
	}
	m := manifest{SchemaVersion: 2, MediaType: typeManifest, Annotations: labels}
	for _, l := range []zipped{p.files, own} {
		d, err := a.blob(typeLayer, l.content)
		if err != nil {
			return descriptor{}, err
		}
		m.Layers, c.RootFS.DiffIDs = append(m.Layers, d), append(c.RootFS.DiffIDs, l.diffID)
	}
	if m.Config, err = a.document(typeConfig, c); err != nil {
		return descriptor{}, err
	}
	d, err := a.document(typeManifest, m)
	d.Platform = &p.platform
	return d, err
}

const authoritiesPath = "etc/ssl/certs/ca-certificates.crt"

// entry is a file of the image, a link, or a directory if its name ends with a slash.
type entry struct {
	name    string
	mode    int64
	owner   int
	content []byte
	link    string // where a link leads
}

// zipped is a compressed layer.
type zipped struct {
	diffID  string // the digest of the tar archive
	content []byte
}

// layer returns files as a compressed tar archive, in the order of their names, so that a directory is before its files.
// Directories of files are added.
func layer(at time.Time, files []entry) (zipped, error) {
	has := map[string]bool{}
	for _, f := range files {
		has[f.name] = true
	}
	for _, f := range slices.Clip(files) {
		for dir := path.Dir(strings.TrimSuffix(f.name, "/")); dir != "." && !has[dir+"/"]; dir = path.Dir(dir) {
			has[dir+"/"], files = true, append(files, entry{name: dir + "/", mode: 0o755})
		}
	}
	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var out, compressed bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.content)),
			ModTime: at, Format: tar.FormatUSTAR, Linkname: f.link}
		switch {
		case f.link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return zipped{}, err
		}
		if _, err := w.Write(f.content); err != nil {
			return zipped{}, err
		}
	}
	zip := gzip.NewWriter(&compressed)
	if err := w.Close(); err != nil {
		return zipped{}, err
	}
	_, err := zip.Write(out.Bytes())
	err = errors.Join(err, zip.Close())
	return zipped{digest(out.Bytes()), compressed.Bytes()}, err
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
